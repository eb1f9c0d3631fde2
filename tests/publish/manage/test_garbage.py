"""`collect_garbage` deletes what no version names, and nothing else."""

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from relive.errors import (
    ConflictError,
    InvalidError,
    InvalidTypeError,
    LockedError,
    ManifestCorruptedError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    UnsupportedError,
    VersionWithdrawnError,
)
from relive.publish import DatasetBuilder, collect_garbage, dataset, validate
from relive.publish.manage import garbage
from relive.publish.retention import announcements, held_object, leases
from relive.publish.retention.announcements import Announcement, HeldAnnouncement
from relive.publish.retention.leases import Lease
from relive.publish.version.canonical import encode
from relive.publish.version.catalog import Catalog
from relive.publish.version.listing import parse_log
from relive.publish.version.names import DatasetId, Reference, log_key, manifest_key, tombstone_key
from relive.store.blobs import blob_key, describe_bytes
from relive.store.roots import open_root
from relive.store.roots.memory import MemoryRoot
from relive.store.roots.root import Root
from tests.publish.manage.turns import Turns
from tests.publish.version.example_versions import CarelessRoot, RecordedRoot, many_shards
from tests.servers import Nginx, Proxy, SeaweedFS

ID = DatasetId("lab", "arm")
EXPIRED = -1e9


def publish(root: Root, *numbers: int, base: str | None = None, **options: Any) -> str:
    """Publish a version with one table for each number; each has a leaf table."""
    with DatasetBuilder(f"{ID}", root, base) as builder:
        for number in numbers:
            rows = np.random.default_rng(number).integers(0, 2**62, 12_000)
            builder.replace_table(f"t{number}", pa.table({"n": rows}))
        return str(builder.publish(**options))


def withdraw(root: Root, digest: str) -> None:
    Catalog(root).withdraw(Reference(ID, digest), "for a test")


def gc(root: Root, **options: Any) -> garbage.GarbageReport:
    return collect_garbage(root, **{"grace_s": 0, "dry_run": False, **options})


def blobs(root: Root) -> set[str]:
    return {entry.key for entry in root.list("blobs")}


@pytest.fixture(
    params=[
        "directory",
        "memory",
        pytest.param("s3", marks=pytest.mark.needs("obstore", "seaweedfs")),
    ]
)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """Return an empty root of every kind that can be written."""
    if request.param == "s3":
        seaweed: SeaweedFS = request.getfixturevalue("seaweed")
        return open_root(request.getfixturevalue("bucket"), **seaweed.options())
    if request.param == "memory":
        return MemoryRoot(request.node.name)
    return open_root(tmp_path / "root")


@pytest.fixture
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Root:
    """Return an empty root in memory, and let nobody wait for long."""
    monkeypatch.setattr(held_object, "POLL_S", 0.01)
    return MemoryRoot(request.node.name)


def test_what_a_withdrawn_version_alone_named_is_deleted(root: Root) -> None:
    first = publish(root, 1, 2)
    second = publish(root, 2, 3)
    before = blobs(root)
    assert len(before) == 6
    report = gc(root)
    assert (report.versions, report.blobs, report.garbage, report.deleted) == (2, 6, 0, 0)
    withdraw(root, first)
    report = collect_garbage(root, grace_s=0)
    assert (report.versions, report.garbage, report.deleted) == (1, 2, 0)
    assert blobs(root) == before
    seen: list[tuple[int, int | None]] = []
    report = gc(root, progress=lambda *each: seen.append(each))
    assert (report.garbage, report.deleted) == (2, 2)
    assert report.deleted_bytes == report.garbage_bytes > 90_000
    assert seen == [(2, 2)]
    assert len(blobs(root)) == 4
    assert validate(f"{ID}@{second}", "full", root=root).ok
    assert list(root.list("leases")) == []
    assert [entry.key for entry in root.list("gc")] == [announcements.KEY]
    # What was deleted is uploaded again by whoever needs it.
    assert publish(root, 1, 2) == first
    assert validate(f"{ID}@{first}", "full", root=root).ok


def test_young_blobs_are_kept(root: Root) -> None:
    publish(root, 1)
    root.put(blob_key("ab" * 32), b"of a publisher that was killed")
    report = gc(root, grace_s=3600)
    assert (report.young, report.garbage, report.deleted) == (1, 0, 0)
    assert blob_key("ab" * 32) in blobs(root)
    report = gc(root)
    assert (report.young, report.deleted) == (0, 1)


def test_age_is_that_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = open_root(tmp_path / "root")
    publish(root, 1)
    key = blob_key("ab" * 32)
    root.put(key, b"old")
    path = tmp_path / "root" / key
    os.utime(path, (time.time() - 7200,) * 2)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # of this machine
    assert gc(root, grace_s=7300).deleted == 0
    assert gc(root, grace_s=7000).deleted == 1


def test_other_objects_are_left_alone(memory: Root) -> None:
    publish(memory, 1)
    others = ["blobs/ab/cd/notes.txt", f"blobs/{'a' * 64}", f"blobs/00/11/{'a' * 64}", "else/x"]
    for key in others:
        memory.put(key, b"not a blob")
    assert gc(memory).deleted == 0
    assert set(others) <= {entry.key for entry in memory.list()}


def test_a_killed_gc_is_completed(memory: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_DELETED", 1)
    first = publish(memory, 1, 2)
    publish(memory, 3)
    withdraw(memory, first)

    class Killed(BaseException):
        pass

    deleted = 0

    def kill(verb: str, key: str) -> None:
        nonlocal deleted
        if deleted >= 2:
            raise Killed
        deleted += verb == "delete" and key.startswith("blobs/")

    with pytest.raises(Killed):
        gc(RecordedRoot(memory, kill))
    found = Announcement.find(memory)
    assert found is not None
    assert len(found.digests(memory) or ()) == 4
    assert len(blobs(memory)) == 6 - 2 + 0
    with pytest.raises(LockedError, match="another gc"):
        gc(memory, wait_s=0)
    # Who publishes something else does not wait for it.
    publish(memory, 4)
    monkeypatch.setattr(announcements, "SLACK_S", EXPIRED)
    report = gc(memory, wait_s=0)
    assert report.deleted == 2
    assert [entry.key for entry in memory.list("gc")] == [announcements.KEY]
    assert collect_garbage(memory, grace_s=0).garbage == 0


def test_a_publisher_waits_for_a_gc_that_deletes_what_it_needs(memory: Root) -> None:
    first = publish(memory, 1, 2)
    second = publish(memory, 3)
    withdraw(memory, first)
    results: dict[str, str] = {}
    threads: list[threading.Thread] = []

    def start(number: int) -> None:
        def run() -> None:
            results[str(number)] = publish(memory, number, set_latest=False)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    def before(verb: str, key: str) -> None:
        if verb == "delete" and key.startswith("blobs/") and not threads:
            start(1)
            start(5)
            threads[1].join(30)
            assert "5" in results  # its blobs are not announced
            time.sleep(0.1)
            assert "1" not in results
            assert list(memory.list("leases")) == []  # the gc could be waiting for it

    assert gc(RecordedRoot(memory, before)).deleted == 4
    for thread in threads:
        thread.join(30)
    for digest in (*results.values(), second):
        assert validate(f"{ID}@{digest}", "full", root=memory).ok


def test_a_publisher_takes_the_place_of_a_killed_gc(
    memory: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = publish(memory, 1)
    publish(memory, 2)
    withdraw(memory, digest)
    dead = HeldAnnouncement(memory)
    dead.acquire(0)
    dead.announce([key.rpartition("/")[2] for key in blobs(memory)])
    dead.stop()
    monkeypatch.setattr(announcements, "SLACK_S", EXPIRED)
    assert publish(memory, 1) == digest
    with pytest.raises(LockedError, match="withdrew"):
        dead.check()
    assert validate(f"{ID}@{digest}", "full", root=memory).ok


def test_a_list_that_is_lost_announces_every_blob(memory: Root) -> None:
    held = HeldAnnouncement(memory)
    held.acquire(0)
    held.announce([])
    memory.delete([entry.key for entry in memory.list("gc") if entry.key != announcements.KEY])
    reads = 0

    def before(verb: str, key: str) -> None:
        nonlocal reads
        reads += (verb, key) == ("get", announcements.KEY)
        if reads == 4:
            assert list(memory.list("leases")) == []
            held.release()
        assert reads >= 4 or not key.startswith("blobs/")

    digest = publish(RecordedRoot(memory, before), 1)
    assert reads > 4
    assert validate(f"{ID}@{digest}", "full", root=memory).ok


def test_a_list_that_was_replaced_is_not_waited_for(memory: Root) -> None:
    """The gc announces the next blobs while a publisher reads which the announcement names."""
    key = describe_bytes(b"nothing that is needed")[0].digest
    held = HeldAnnouncement(memory)
    held.acquire(0)
    held.announce([key])
    seen: list[str] = []

    def before(verb: str, key: str) -> None:
        if verb == "get" and key.startswith("gc/") and key != announcements.KEY:
            seen.append(key)
            if len(seen) == 1:
                held.announce(["0" * 64])

    digest = publish(RecordedRoot(memory, before), 1)
    assert len(set(seen)) == 2
    held.release()
    assert validate(f"{ID}@{digest}", "full", root=memory).ok


def test_a_gc_waits_for_publishers_that_began_before(
    memory: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = publish(memory, 1)
    publish(memory, 2)
    withdraw(memory, digest)
    lease = Lease(memory)
    assert lease.take()
    with pytest.raises(LockedError, match="1 publisher "):
        gc(memory, wait_s=0.05)
    assert len(blobs(memory)) == 4
    monkeypatch.setattr(leases, "SLACK_S", EXPIRED)
    assert gc(memory, wait_s=0).deleted == 2
    assert not lease.renew()
    assert not lease.renew()
    lease.release()


def test_leases_are_not_waited_for_that_came_later(memory: Root) -> None:
    digest = publish(memory, 1)
    publish(memory, 2)
    withdraw(memory, digest)
    lease = Lease(memory)

    def before(verb: str, key: str) -> None:
        if (verb, key) == ("list", "manifests/") and Announcement.find(memory).blobs:  # type: ignore[union-attr]
            lease.take()

    assert gc(RecordedRoot(memory, before), wait_s=0).deleted == 2
    assert lease.renew()
    lease.release()


def test_a_publisher_that_was_suspended_uploads_again(
    memory: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It sleeps after it saw that its blobs exist, and a gc considers it dead."""
    digest = publish(memory, 1, 2)
    publish(memory, 3)
    withdraw(memory, digest)
    reports = []

    def before(verb: str, key: str) -> None:
        if (verb, key) == ("create", manifest_key(ID, digest)):
            with monkeypatch.context() as patch:
                patch.setattr(leases, "SLACK_S", EXPIRED)
                reports.append(gc(memory))

    assert publish(RecordedRoot(memory, before), 1, 2) == digest
    assert [each.deleted for each in reports] == [4]
    assert "checked again" in caplog.text
    assert validate(f"{ID}@{digest}", "full", root=memory).ok


def test_a_gc_that_was_suspended_deletes_nothing(
    memory: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps after it looked at the manifests, and a publisher considers it dead."""
    digest = publish(memory, 1, 2)
    publish(memory, 3)
    withdraw(memory, digest)
    lists = 0

    def before(verb: str, key: str) -> None:
        nonlocal lists
        lists += (verb, key) == ("list", "manifests/")
        if lists == 2 and verb == "replace":  # the renewal before it deletes
            lists += 1
            with monkeypatch.context() as patch:
                patch.setattr(announcements, "SLACK_S", EXPIRED)
                assert publish(memory, 1, 2) == digest

    with pytest.raises(LockedError, match="withdrew"):
        gc(RecordedRoot(memory, before))
    assert lists == 3
    assert validate(f"{ID}@{digest}", "full", root=memory).ok


def test_what_is_inherited_may_be_gone(memory: Root) -> None:
    old = publish(memory, 1, 2)
    publish(memory, 3)
    builders = [DatasetBuilder(f"{ID}", memory, old) for _ in range(2)]
    for builder in builders:
        builder.add_table("more", pa.table({"n": [1]}))
    withdraw(memory, old)
    # Its blobs are still there: they are looked for one by one.
    found = builders[0].publish(set_latest=False)
    assert validate(f"{ID}@{found}", "full", root=memory).ok
    withdraw(memory, found)
    assert gc(memory).deleted == 5
    before = {entry.key for entry in memory.list("manifests")}
    with pytest.raises(NotFoundError, match="does not exist"):
        builders[1].publish()
    assert {entry.key for entry in memory.list("manifests")} == before
    assert list(memory.list("leases")) == []


def test_inherited_blobs_go_while_the_publisher_sleeps(
    memory: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = publish(memory, 1, 2)
    latest = publish(memory, 3)
    done: list[str] = []

    def before(verb: str, key: str) -> None:
        if verb == "create" and key.startswith("manifests/") and not done:
            done.append(key)
            withdraw(memory, old)
            with monkeypatch.context() as patch:
                patch.setattr(leases, "SLACK_S", EXPIRED)
                gc(memory)

    with pytest.raises(NotFoundError, match="does not exist"):
        publish(RecordedRoot(memory, before), 4, base=old)
    assert dataset(f"{ID}", root=memory).digest == latest  # readers never saw it
    assert validate(f"{ID}", "full", root=memory).ok


def test_a_version_that_only_a_pointer_has_is_kept(memory: Root) -> None:
    digest = publish(memory, 1)
    memory.delete([manifest_key(ID, digest)])
    assert gc(memory).deleted == 0
    assert len(blobs(memory)) == 2


def test_what_cannot_be_read_stops_it(memory: Root) -> None:
    digest = publish(memory, 1)
    publish(memory, 2)
    memory.put(blob_key("ab" * 32), b"garbage")
    key = manifest_key(ID, digest)
    good = memory.get(key).data
    memory.put(key, good[:-1] + b" ")
    with pytest.raises(ManifestCorruptedError, match="digest"):
        gc(memory)
    tree = {**json.loads(good), "episodes": {}}
    data = encode(tree)
    memory.delete([key])
    memory.put(manifest_key(ID, describe_bytes(data)[0].digest), data)
    with pytest.raises(UnsupportedError, match="episodes"):
        gc(memory)
    assert blob_key("ab" * 32) in blobs(memory)
    assert Announcement.find(memory).owner is None  # type: ignore[union-attr]


def test_a_thousand_shards(memory: Root) -> None:
    """The lists of shards, and what they list, are named too."""
    manifest = many_shards(1500)
    for ref in manifest.blobs():
        memory.put(blob_key(ref.digest), b"x")
    catalog = Catalog(memory)
    catalog.commit(ID, manifest, {}, expected=None)
    assert gc(memory).garbage == 0
    catalog.withdraw(Reference(ID, manifest.digest), "for a test")
    assert gc(memory).deleted == len(list(manifest.blobs())) > 1500


def test_the_only_version_can_be_withdrawn(root: Root) -> None:
    digest = publish(root, 1, tag="v1")
    catalog = Catalog(root)
    with pytest.raises(InvalidError, match="tag"):
        withdraw(root, digest)
    catalog.untag(ID, "v1")
    withdraw(root, digest)
    with pytest.raises(VersionWithdrawnError, match="for a test"):
        dataset(f"{ID}", root=root)
    with pytest.raises(VersionWithdrawnError):
        dataset(f"{ID}@{digest}", root=root)
    (info,) = catalog.versions(ID)
    assert (info.is_latest, info.withdrawn) == (False, "for a test")
    assert gc(root).deleted == 2
    assert blobs(root) == set()
    assert publish(root, 1) == digest
    assert dataset(f"{ID}", root=root).digest == digest
    assert validate(f"{ID}", "full", root=root).ok
    (info,) = catalog.versions(ID)
    assert (info.is_latest, info.withdrawn) == (True, None)


def test_another_version_after_the_only_one(memory: Root) -> None:
    first = publish(memory, 1)
    withdraw(memory, first)
    second = publish(memory, 2)
    catalog = Catalog(memory)
    assert catalog.resolve(Reference(ID, None)).digest == second
    assert [each.withdrawn is None for each in catalog.versions(ID)] == [False, True]
    with pytest.raises(VersionWithdrawnError):
        catalog.rollback(ID)


def test_a_publisher_beside_who_withdraws_the_only_version(memory: Root) -> None:
    """Whatever the order, `latest` names the new version in the end."""
    requests = []
    withdraw(RecordedRoot(memory, lambda *each: requests.append(each)), publish(memory, 1))
    for place in range(len(requests)):
        root = MemoryRoot(f"{memory.name}-{place}")
        first = publish(root, 1)
        seen: list[str] = []
        made: list[str] = []

        def before(
            _verb: str,
            key: str,
            root: Root = root,
            seen: list[str] = seen,
            made: list[str] = made,
            place: int = place,
        ) -> None:
            seen.append(key)
            if len(seen) == place + 1:
                made.append(publish(root, 2))

        with contextlib.suppress(ConflictError, InvalidError):  # `latest` moved meanwhile
            withdraw(RecordedRoot(root, before), first)
        assert Catalog(root).resolve(Reference(ID, None)).digest == made[0]
        assert validate(f"{ID}", "full", root=root).ok


def test_a_refused_withdrawal_changes_nothing(memory: Root) -> None:
    """Whatever another process does at whatever moment."""
    requests = []
    only = publish(memory, 1)
    withdraw(RecordedRoot(memory, lambda *each: requests.append(each)), only)
    others: dict[str, Callable[[Root, str], object]] = {
        "tag": lambda root, first: Catalog(root).tag(Reference(ID, first), "v1"),
        "another": lambda root, _: publish(root, 2),
        "again": lambda root, _: publish(root, 1),
        "withdraw": withdraw,
    }
    refused = set[str]()
    begin = requests.index(("create", tombstone_key(ID, only)))
    for (name, act), place in product(others.items(), range(begin, len(requests))):
        root = MemoryRoot(f"{memory.name}-{name}-{place}")
        first = publish(root, 1)
        seen: list[str] = []
        bound = partial(act, root, first)

        def before(
            _verb: str,
            key: str,
            seen: list[str] = seen,
            place: int = place,
            act: Callable[[], object] = bound,
        ) -> None:
            seen.append(key)
            if len(seen) == place + 1:
                with contextlib.suppress(VersionWithdrawnError):  # a tag that came too late
                    act()

        tombstone = tombstone_key(ID, first)
        try:
            withdraw(RecordedRoot(root, before), first)
        except (ConflictError, InvalidError):
            refused.add(name)
            assert root.exists([tombstone, manifest_key(ID, first)]) == [False, True]
            pointer = Catalog(root).pointer(ID)
            assert pointer is not None
            assert not pointer.is_withdrawn
            assert (pointer.digest == first) is (name != "another")
            assert {each.withdrawn for each in Catalog(root).versions(ID)} == {None}
            assert validate(f"{ID}@{first}", "full", root=root).ok
        is_there = root.exists([manifest_key(ID, first)])[0]
        assert root.exists([tombstone])[0] is not is_there
        (log,) = root.get_many([log_key(ID)])
        assert log is not None
        known = {each.digest: each.withdrawn for each in parse_log(log.data, "log")}
        assert (known[first] is None) is is_there
        if name == "withdraw":
            assert not is_there
    assert refused == set(others) - {"withdraw"}


def test_withdrawals_at_the_same_time(memory: Root) -> None:
    """The tombstone stays, or the manifest, also if one of them fails at any request."""
    outcomes = set[str]()
    for number in range(120):
        draw = random.Random(number)  # noqa: S311
        root = MemoryRoot(f"{memory.name}-{number}")
        first = publish(root, 1)
        if draw.random() < 0.3:
            publish(root, 2)
        fails_at = draw.randrange(8, 20) if number % 2 else None

        def failing(root: Root, first: str = first, fails_at: int | None = fails_at) -> None:
            seen = 0

            def before(verb: str, key: str) -> None:
                nonlocal seen
                seen += 1
                if seen == fails_at:
                    raise StorageError(f"cannot {verb} `{key}`")

            withdraw(RecordedRoot(root, before), first)

        turns = Turns(number)
        turns.run(root, {"one": failing, "other": partial(withdraw, digest=first)})
        tombstone, manifest = root.exists([tombstone_key(ID, first), manifest_key(ID, first)])
        one, other = turns.results["one"], turns.results["other"]
        outcomes.add(f"{type(one).__name__} {type(other).__name__}")
        assert tombstone or manifest, (turns.results, turns.log)
        if None in {one, other}:
            assert (tombstone, manifest) == (True, False), (turns.results, turns.log)
        if manifest:
            assert validate(f"{ID}@{first}", "full", root=root).ok
            Catalog(root).resolve(Reference(ID, None))
            withdraw(root, first)
    assert {"NoneType NoneType", "StorageError NoneType"} <= outcomes


def test_stores_that_ignore_conditions_are_refused(memory: Root) -> None:
    careless = CarelessRoot(memory)
    with DatasetBuilder(f"{ID}", careless) as builder:
        builder.add_table("main", pa.table({"n": [1]}))
        builder.publish(lock=True)
    assert not any(key.startswith("leases/") for _, key in careless.requests)
    with pytest.raises(UnsupportedError):
        gc(careless)


@pytest.mark.needs("obstore", "nginx")
def test_a_web_server_is_refused(nginx: Nginx) -> None:
    with pytest.raises(ReadOnlyError):
        gc(open_root(nginx.url))


def test_arguments(memory: Root) -> None:
    with pytest.raises(InvalidError, match="grace_s"):
        gc(memory, grace_s=-1)
    with pytest.raises(InvalidError, match="grace_s"):
        gc(memory, grace_s=float("nan"))
    with pytest.raises(InvalidTypeError, match="`grace_s` must be a number"):
        gc(memory, grace_s="1h")
    for wait_s in (-1, float("nan")):
        with pytest.raises(InvalidError, match="wait_s"):
            gc(memory, wait_s=wait_s)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_directory_that_does_not_exist(tmp_path: Path, *, dry_run: bool) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        collect_garbage(tmp_path / "typo", dry_run=dry_run)
    assert not (tmp_path / "typo").exists()


@pytest.mark.needs("obstore", "seaweedfs")
def test_a_republish_writes_no_lease(bucket: str, seaweed: SeaweedFS, proxy: Proxy) -> None:
    root = open_root(bucket, **seaweed.options(proxy.url))
    publish(root, 1)
    proxy.clear()
    publish(root, 1)
    assert set(proxy.methods()) <= {"GET", "HEAD"}
    assert proxy.count <= 4
    publish(root, 2)
    written = [each.method for each in proxy.log if "/leases/" in each.path]
    assert written == ["PUT", "PUT"]  # and it is deleted by a request to the bucket
    assert list(root.list("leases")) == []
