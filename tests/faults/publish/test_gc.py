"""A gc beside publishers and readers, all of them processes, one of which is killed every round.

`RELIVE_GC_ROUNDS` says how many rounds there are in a directory, and a quarter of it on a server
(`make faults`: 200). Nothing is ever lost that a version names, and in the end a gc that was
killed is completed.
"""

import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from relive.publish import collect_garbage
from relive.publish.manage.references import References
from relive.publish.retention import held_object
from relive.publish.retention.leases import find_leases
from relive.publish.version.catalog import Catalog
from relive.publish.version.manifest import Manifest
from relive.publish.version.names import Reference
from relive.store.blobs import Blobs, blob_key
from relive.store.roots.root import Root
from tests.faults.publish.programs import collector
from tests.faults.publish.programs.publisher import Target
from tests.processes import running
from tests.servers import SeaweedFS

Note = Callable[[str, object], None]
ROUNDS = int(os.environ.get("RELIVE_GC_ROUNDS", "4"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
LIFE = 20
"""How many rounds use one root: its list of versions grows."""
ENOUGH = 50
"""From so many rounds on, something of everything must have happened."""
ROUND_S = 1.0 if ROUNDS >= ENOUGH else 0.5
KILLED = -9
PROGRAMS = (
    collector.publish_things,
    collector.publish_things,
    collector.delete_blobs,
    collector.read_things,
)
pytestmark = pytest.mark.timeout(7200)


def run_round(target: Target, number: int, counts: Counter[str]) -> None:
    """Let all programs work for a while; kill one of them, not the reader, at any moment."""
    draw = random.Random(SEED * 100_000 + number)  # noqa: S311
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([collector.__name__])
    pipes = [context.Pipe() for _ in PROGRAMS]
    processes = [
        context.Process(target=program, args=(target, draw.randrange(2**32), theirs))
        for program, (_, theirs) in zip(PROGRAMS, pipes, strict=True)
    ]
    with running(processes):
        for mine, theirs in pipes:
            theirs.close()
            assert mine.poll(60)
            assert mine.recv() == "ready"
        for mine, _ in pipes:
            mine.send("go")
        victim = draw.choice([0, 1, 2, 2])
        wait_s = draw.uniform(0, ROUND_S)
        time.sleep(wait_s)
        processes[victim].kill()
        time.sleep(ROUND_S - wait_s)
        for place, (mine, _) in enumerate(pipes):
            if place != victim:
                mine.send("end")
        for place, (mine, _) in enumerate(pipes):
            if place == victim:
                continue
            assert mine.poll(120), PROGRAMS[place].__name__
            done = mine.recv()
            if place == 2:
                counts["deleted"] += sum(done)
                counts["collections"] += len(done)
            elif place == 3:
                counts["read"] += sum(done)
            else:
                counts.update(done)
        for process in processes:
            process.join(60)
    assert [each.exitcode for each in processes] == [
        KILLED if place == victim else 0 for place in range(len(PROGRAMS))
    ]
    counts["gc killed" if victim == 2 else "publisher killed"] += 1


def check_all(root: Root) -> References:
    """Check every byte of every blob that a manifest or pointer names."""
    references = References(root)
    references.update()
    blobs, catalog = Blobs(root), Catalog(root)
    manifests = [entry.key for entry in root.list("manifests") if len(entry.key.split("/")) == 4]
    for key in manifests:
        name = key.rpartition("/")[2].removesuffix(".json")
        if len(name) != 64:
            continue
        manifest = catalog.complete(Manifest.parse(root.get(key).data, key), key)
        for ref in manifest.blobs():
            blobs.read(ref)
    for dataset in catalog.list():
        pointer = catalog.pointer(dataset)
        if pointer is not None and not pointer.is_withdrawn:
            catalog.resolve(Reference(dataset, None))
    return references


def campaign(target: Target, rounds: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Run rounds on one root; after each, check everything. At the end one gc cleans up."""
    root, counts = target.open(), Counter[str]()
    for number in range(rounds):
        here = target._replace(address=f"{target.address}/{number // LIFE}")
        if not here.options:  # a gc that begins before any publisher refuses a missing directory
            Path(here.address).mkdir(parents=True, exist_ok=True)
        root = here.open()
        run_round(here, number, counts)
        check_all(root)
    monkeypatch.setattr(held_object, "POLL_S", 0.05)
    while any(lease.is_valid for lease in find_leases(root, held_object.store_time(root))):
        time.sleep(0.1)  # a publisher that was killed has left its lease
    catalog = Catalog(root)
    for dataset in catalog.list():
        catalog.withdraw_old(dataset, "at the end", keep_last=0)
    left = collect_garbage(root, grace_s=0, dry_run=False).deleted
    counts["deleted at the end"] += left
    named = check_all(root).digests
    assert {entry.key for entry in root.list("blobs")} == {blob_key(each) for each in named}
    assert list(root.list("leases")) == []
    assert len(list(root.list("gc"))) == 1
    assert counts["publish"]
    assert counts["collections"]
    assert counts["deleted"] + left
    if rounds >= ENOUGH:
        assert min(counts["deleted"], counts["read"], counts["withdraw"]) > rounds
    return counts


def test_in_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    target = Target(os.fspath(tmp_path / "root"), {}, tmp_path)
    counts = campaign(target, ROUNDS, monkeypatch)
    record_property("figure", f"gc: {ROUNDS} rounds in a directory, {dict(counts)}")


@pytest.mark.needs("obstore", "seaweedfs")
def test_on_a_server(
    seaweed: SeaweedFS,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Note,
) -> None:
    rounds = max(ROUNDS // 4, 2)
    target = Target(bucket, seaweed.options(), tmp_path)
    counts = campaign(target, rounds, monkeypatch)
    record_property("figure", f"gc: {rounds} rounds on a server, {dict(counts)}")
