"""Of two publishers at the same moment one wins; the other's version exists, and it is told.

`RELIVE_PUBLISH_RACES` says how often (`make faults`: 200): most in a directory, some on a server,
which takes up to a second for a contended put.
"""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relive.publish.version.catalog import Catalog
from relive.publish.version.names import Reference
from relive.store.roots import open_root
from relive.store.roots.root import Root
from tests.faults.publish.programs.check import check, check_all
from tests.faults.publish.programs.publisher import ID, Target, publish, race
from tests.processes import running
from tests.servers import SeaweedFS

Note = Callable[[str, object], None]
RACES = int(os.environ.get("RELIVE_PUBLISH_RACES", "10"))
ON_A_SERVER = max(RACES // 5, 2)
pytestmark = pytest.mark.timeout(3600)


def check_races(root: Root, target: Target, rounds: int) -> tuple[int, int]:
    """Run races of two processes; return how often each won."""
    publish(root, 1_000)
    catalog = Catalog(root)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([race.__module__])
    barrier = context.Barrier(2)
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    processes = [
        context.Process(target=race, args=(target, number, rounds, barrier, theirs))
        for number, (_, theirs) in enumerate(pipes)
    ]
    won = [0, 0]
    pairs: list[list[tuple[str, str | None]]] = []
    with running(processes):
        for _ in range(rounds):
            for pipe, _ in pipes:
                assert pipe.poll(120)
            pairs.append([pipe.recv() for pipe, _ in pipes])
            conflicts = [current for _, current in pairs[-1]]
            assert conflicts.count(None) == 1, pairs[-1]
            winner = conflicts.index(None)
            won[winner] += 1
            digests = [digest for digest, _ in pairs[-1]]
            assert conflicts[1 - winner] == digests[winner]
            for number, digest in enumerate(digests):
                version = catalog.resolve(Reference(ID, digest))
                assert check(version) == 2 * (len(pairs) - 1) + number
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
    last = pairs[-1][[current for _, current in pairs[-1]].index(None)][0]
    assert catalog.resolve(Reference(ID, None)).digest == last
    pointer = catalog.pointer(ID)
    assert pointer is not None
    assert pointer.sequence == rounds + 1
    listed = check_all(root)
    assert len(listed) == 2 * rounds + 1
    assert set(listed) >= {digest for pair in pairs for digest, _ in pair}
    return won[0], won[1]


def test_races_in_a_directory(tmp_path: Path, record_property: Note) -> None:
    address = os.fspath(tmp_path / "root")
    rounds = RACES - ON_A_SERVER
    won = check_races(open_root(address), Target(address, {}, tmp_path), rounds)
    record_property("figure", f"publish: {rounds} races in a directory, won {won[0]} to {won[1]}")


@pytest.mark.needs("obstore", "seaweedfs")
def test_races_on_a_server(
    seaweed: SeaweedFS, bucket: str, tmp_path: Path, record_property: Note
) -> None:
    target = Target(bucket, seaweed.options(), tmp_path)
    won = check_races(target.open(), target, ON_A_SERVER)
    record_property("figure", f"publish: {ON_A_SERVER} races on a server, won {won[0]} to {won[1]}")
