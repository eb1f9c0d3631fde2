"""A publisher that is killed leaves the old version or the new one, complete.

`RELIVE_PUBLISH_KILLS` says how many publishers are killed on a server and as many in a directory
(`make faults`: 240): at every request in turn, before it reaches the server and after it was
answered; in a directory also at any other moment. Every time the next run finishes the work.
"""

import multiprocessing
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from relive.publish.version.catalog import Catalog
from relive.store.roots import open_root
from relive.store.roots.root import Root
from tests.faults.publish.programs.check import check_all, latest
from tests.faults.publish.programs.publisher import ID, Target, publish, publish_and_die
from tests.processes import running
from tests.publish.version.example_versions import RecordedRoot
from tests.servers import Proxy, SeaweedFS

Note = Callable[[str, object], None]
KILLS = int(os.environ.get("RELIVE_PUBLISH_KILLS", "6"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
KILLED = -9
LIFE = 12
"""How many versions a dataset has before another one is begun."""
pytestmark = pytest.mark.timeout(3600)


def spread(boundaries: int) -> Iterator[int]:
    """Return the boundaries at which publishers are killed, as many as there are kills.

    With few kills, evenly spread; with many, each in turn again and again.
    """
    for kill in range(KILLS):
        yield kill % boundaries if boundaries <= KILLS else kill * boundaries // KILLS


def killed(
    target: Target,
    number: int,
    at: int | None,
    aim: Callable[[BaseProcess], object] | None = None,
) -> bool:
    """Let a process publish and be killed; return whether it was, or had already ended.

    `aim` is called with it when it is about to begin.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([publish_and_die.__module__])
    pipe, theirs = context.Pipe()
    process = context.Process(target=publish_and_die, args=(target, number, theirs, at))
    with running([process]):
        theirs.close()
        assert pipe.poll(60)
        assert pipe.recv() == "ready"
        if aim is not None:
            aim(process)
        pipe.send("go")
        process.join(120)
    assert process.exitcode in {0, KILLED}
    return process.exitcode == KILLED


def finish(root: Root, number: int, known: list[str]) -> str:
    """Check what readers see after a kill, publish again, and check that all is complete."""
    before = known[-1] if known else None
    seen = latest(root)
    listed = check_all(root)
    assert set(known) <= set(listed)
    new = publish(root, number)
    assert seen in {before, new}
    assert latest(root) == new
    assert check_all(root) == [*known, new]
    catalog = Catalog(root)
    assert catalog.tags(ID)[f"v{number}"] == new
    assert catalog.list(ID.workspace) == [ID]
    recorded = RecordedRoot(root)
    assert publish(recorded, number) == new
    assert recorded.writes == []
    assert len(recorded.requests) <= 4
    return new


def boundaries_of(root: Root, number: int) -> int:
    """Return how many requests it takes to publish a version."""
    recorded = RecordedRoot(root)
    publish(recorded, number)
    return len(recorded.requests)


@pytest.mark.parametrize("what", ["first", "next"])
def test_killed_at_every_request_to_a_directory(
    what: str, tmp_path: Path, record_property: Note
) -> None:
    """The first version of an empty root, which is tested before, or one on top of others."""
    folder = tmp_path / "measured"
    boundaries = boundaries_of(open_root(folder), 0)
    if what == "next":
        boundaries = boundaries_of(open_root(folder), 1)
    known: list[str] = []
    for kill, at in enumerate(spread(boundaries)):
        if what == "first" or kill % LIFE == 0:
            shutil.rmtree(folder)
            folder = tmp_path / f"{kill}"
            known = [] if what == "first" else [publish(open_root(folder), 0)]
        target = Target(os.fspath(folder), {}, tmp_path)
        number = kill % LIFE + 1
        assert killed(target, number, at + 1)
        known.append(finish(target.open(), number, known))
    note = f"{KILLS} kills at {boundaries} requests to a directory"
    record_property("figure", f"publish: {note}, {what} version")


def test_killed_at_any_moment_in_a_directory(tmp_path: Path, record_property: Note) -> None:
    rng = np.random.default_rng(SEED)
    folder = tmp_path / "measured"
    publish(open_root(folder), 0)
    began = time.monotonic()
    publish(open_root(folder), 1)
    longest_s = time.monotonic() - began
    known: list[str] = []
    kills = 0
    for kill in range(KILLS):
        if kill % LIFE == 0:
            shutil.rmtree(folder)
            folder = tmp_path / f"{kill}"
            known = [publish(open_root(folder), 0)]

        def aim(process: BaseProcess) -> None:
            threading.Timer(rng.uniform(0, longest_s), process.kill).start()

        target = Target(os.fspath(folder), {}, tmp_path)
        number = kill % LIFE + 1
        kills += killed(target, number, None, aim)
        known.append(finish(target.open(), number, known))
    record_property("figure", f"publish: {kills} kills at any moment in a directory")


@pytest.mark.needs("obstore", "seaweedfs")
@pytest.mark.parametrize("what", ["first", "next"])
def test_killed_at_every_request_to_a_server(
    what: str, seaweed: SeaweedFS, proxy: Proxy, tmp_path: Path, record_property: Note
) -> None:
    address = empty_root(seaweed)
    for number in range(1 if what == "first" else 2):
        proxy.clear()
        publish(open_root(address, **seaweed.options(proxy.url)), number)
    requests = proxy.count
    known: list[str] = []
    kills = 0
    for kill, place in enumerate(spread(2 * requests)):
        if what == "first" or kill % LIFE == 0:
            address, known = empty_root(seaweed), []
            if what == "next":
                known.append(publish(open_root(address, **seaweed.options()), 0))

        def aim(process: BaseProcess, place: int = place) -> None:
            assert process.pid is not None
            proxy.clear()
            proxy.kill_at(place // 2 + 1, process.pid, answered=place % 2 == 1)

        number = kill % LIFE + 1
        kills += killed(Target(address, seaweed.options(proxy.url), tmp_path), number, None, aim)
        proxy.before = proxy.after = None
        known.append(finish(open_root(address, **seaweed.options()), number, known))
    assert kills >= 0.9 * KILLS  # uploads are parallel: another order may need fewer requests
    note = f"{kills} kills at {requests} requests to a server, before and after them"
    record_property("figure", f"publish: {note}, {what} version")


def empty_root(seaweed: SeaweedFS) -> str:
    """Return the address of an empty root; of one bucket, as every bucket takes space."""
    seaweed.put("kills/.made", b"")  # so that the bucket exists
    return f"s3://kills/{secrets.token_hex(6)}"
