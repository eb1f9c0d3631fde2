"""`warm`: everything once, by any number of processes, within the limit."""

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from relive import errors
from relive.publish.read import warm
from relive.publish.read.dataset import dataset
from relive.publish.read.warm import CHUNK_BYTES
from relive.store.cache.claims import Claims
from tests.processes import running
from tests.publish.cache.remote_dataset import RemoteDataset, cache_of
from tests.publish.read.sample_tables import publish, random_rows
from tests.store.cache.blob_fixtures import allocated

pytestmark = pytest.mark.needs("obstore", "seaweedfs")

ROWS = random_rows(6000)


@pytest.fixture
def stored(remote: RemoteDataset) -> RemoteDataset:
    """Publish 6 MB in three files."""
    remote.publish(ROWS, 3)
    return remote


def test_warm_fetches_everything_once(stored: RemoteDataset) -> None:
    calls: list[tuple[int, int | None]] = []
    ds = stored.open()
    report = ds.warm(progress=lambda done, total: calls.append((done, total)))
    assert report.is_complete
    assert report.shards == 3
    assert ROWS.nbytes < report.bytes <= report.fetched_bytes < 1.01 * report.bytes
    assert calls[-1] == (report.bytes, report.bytes)
    assert stored.received() == report.fetched_bytes
    again = stored.open().warm()
    assert (again.is_complete, again.fetched_bytes) == (True, 0)
    assert stored.received() == 0
    assert stored.open(mode="local").table().arrow().equals(ROWS)
    assert stored.proxy.count == 0


def test_warm_some_shards(stored: RemoteDataset) -> None:
    ds = stored.open()
    shards = ds.version.manifest.tables["main"].shards
    assert ds.warm(shards=slice(0, 0)).bytes == 0
    assert ds.warm(["main"], [1]).bytes == shards[1].blob.nbytes
    assert stored.open().warm(shards=slice(1, 2)).fetched_bytes == 0
    assert ds.warm(max_bytes=shards[0].blob.nbytes * 2 - 1).shards == 1
    assert ds.warm(max_bytes="4.5MB").shards == 2
    with pytest.raises(errors.OutOfRangeError, match="has 3 shards, got 3"):
        ds.warm(shards=[3])
    with pytest.raises(errors.ReliveError, match="`other`"):
        ds.warm(["other"])
    with pytest.raises(errors.InvalidError, match="`max_bytes` must be a number of bytes"):
        ds.warm(max_bytes="many")
    for mode in ("remote", "local"):
        with pytest.raises(errors.InvalidError, match=f"mode='{mode}'"):
            stored.open(mode=mode).warm()


def test_a_directory_needs_no_cache(tmp_path: Path) -> None:
    publish(tmp_path / "root", {"main": ROWS.slice(0, 10)})
    report = dataset("test/data", root=tmp_path / "root").warm()
    assert (report.is_complete, report.fetched_bytes) == (True, 0)
    assert not (tmp_path / "relive-cache" / "blobs").exists()


def test_warm_stops_at_the_limit(stored: RemoteDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIVE_CACHE_LIMIT", "4MB")
    ds = stored.open()
    report = ds.warm()
    assert not report.is_complete
    assert report.fetched_bytes <= report.bytes * 1.01
    assert 1e6 < allocated(stored.cache_directory) <= 4e6
    assert ds.table().arrow().equals(ROWS)


def test_pinned_versions_are_not_evicted(
    stored: RemoteDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIVE_CACHE_LIMIT", "5MB")
    ds = stored.open()
    assert ds.warm(shards=[0], pin=True).is_complete
    other = random_rows(4000, seed=1)
    stored.publish(other, 2)
    newer = stored.open()
    newer.warm()
    newer.warm()
    kept = stored.open(ds.digest).warm(shards=[0])
    assert (kept.is_complete, kept.fetched_bytes) == (True, 0)
    assert cache_of(ds).disk.pins.names() == [ds.pinned]
    assert ds.unpin()
    assert not ds.unpin()
    time.sleep(0.01)
    last = stored.open()
    last.warm()
    assert stored.open(ds.digest).warm(shards=[0]).fetched_bytes > 0


def warm_when_told(address: str, options: dict[str, Any], pipe: Connection) -> None:
    """Warm the dataset in this process, in small chunks; send what the report says."""
    os.environ.update(pipe.recv())  # the fork server has those of another test
    warm.CHUNK_BYTES = 1 << 20  # type: ignore[misc]
    ds = dataset("test/data", root=address, **options)
    pipe.send("ready")
    pipe.recv()
    report = ds.warm()
    pipe.send((report.is_complete, report.fetched_bytes))


def test_eight_processes_share_the_work(remote: RemoteDataset) -> None:
    rows = random_rows(12_000)
    remote.publish(rows, 6, 2000)  # each file is two chunks
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pipes = [context.Pipe() for _ in range(8)]
    processes = [
        context.Process(target=warm_when_told, args=(remote.address, remote.options, theirs))
        for _, theirs in pipes
    ]
    variables = {name: value for name, value in os.environ.items() if name.startswith("RELIVE_")}
    with running(processes):
        for mine, theirs in pipes:
            theirs.close()
            mine.send(variables)
        assert [mine.recv() for mine, _ in pipes] == ["ready"] * 8
        remote.proxy.clear()
        for mine, _ in pipes:
            mine.send("go")
        reports = [mine.recv() for mine, _ in pipes]
    total = remote.open().info["bytes"]
    assert [is_complete for is_complete, _ in reports] == [True] * 8
    remote.proxy.clear()
    assert remote.open(mode="local").table().arrow().equals(rows)
    assert remote.proxy.count == 0
    assert sum(fetched for _, fetched in reports) <= 1.05 * total


def test_a_killed_process_is_not_waited_for_long(
    stored: RemoteDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = stored.open()
    ref = ds.version.manifest.tables["main"].shards[0].blob
    assert ref.nbytes < CHUNK_BYTES
    dead = Claims(cache_of(ds).disk.base)
    assert dead.take(f"{ref.digest}.0")
    dead._ended.set()  # no heartbeat any more
    monkeypatch.setattr("relive.store.cache.claims.STALE_S", 1.0)
    started = time.monotonic()
    assert ds.warm().is_complete
    assert 0.5 < time.monotonic() - started < 5


def test_hybrid_fetches_the_rest_in_the_background(stored: RemoteDataset) -> None:
    ds = stored.open(mode="hybrid")
    assert ds.table().head(5).num_rows == 5
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        refs = [shard.blob for shard in ds.version.manifest.tables["main"].shards]
        missing = [cache_of(ds).disk.missing(ref.digest, ref.nbytes, 0, ref.nbytes) for ref in refs]
        if not any(missing):
            break
        time.sleep(0.05)
    stored.flush(ds)
    assert stored.received() < 1.2 * ROWS.nbytes
    assert stored.open(mode="local").table().arrow().equals(ROWS)


def test_publishing_seeds_the_cache(remote: RemoteDataset) -> None:
    remote.publish(ROWS, 3, seed=True)
    ds = remote.open()
    assert ds.table().arrow().equals(ROWS)
    assert remote.received() == 0
    assert remote.proxy.count == 1
