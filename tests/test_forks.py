"""A thread holds a lock while the process is forked; the forked process does not wait for it."""

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from relive import errors
from relive.publish import DatasetBuilder, dataset
from relive.publish.read.dataset import PublishedDataset
from relive.publish.read.table import Table
from relive.publish.read.warm import BackgroundWarming
from relive.publish.version.lookup import Version
from relive.publish.version.manifest import Manifest
from relive.replay import ReplayRecorder, ReplayRun
from relive.store.cache import CachedRoot, open_cache
from relive.store.remote import hidden
from relive.store.roots.memory import MemoryRoot

_CHILD_S = 60.0

pytestmark = [
    # Another test may have imported JAX, or started threads.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


def in_a_fork(locks: list[Any], work: Callable[[], object]) -> str:
    """Return what `work` raises, or nothing, in a process that is forked while a thread has locks.

    One that does not end is killed.
    """
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            work()
            os.write(writing, b" ")
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    release.set()
    thread.join()
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], _CHILD_S)
    if not ready:
        os.kill(child, signal.SIGKILL)
    found = os.read(reading, 1000).decode() if ready else "it did not end"
    os.close(reading)
    os.waitpid(child, 0)
    return found.strip()


def locks_of(*classes: type) -> list[Any]:
    """Return the locks of all cached properties, which they have in Python 3.11."""
    found = [each for kind in classes for each in vars(kind).values()]
    properties: list[Any] = [each for each in found if isinstance(each, cached_property)]
    return [each.lock for each in properties if hasattr(each, "lock")]


def test_a_forked_process_reads_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIVE_CACHE_DIR", str(tmp_path))
    server = MemoryRoot(tmp_path.name)
    rows = pa.table({"x": range(30_000), "y": [[1]] * 30_000})
    with DatasetBuilder("ws/name", root=server) as builder:
        builder.add_table("main", rows)
        builder.publish()
    ds = dataset("ws/name", root=CachedRoot(server, open_cache()), mode="hybrid")
    table = ds.table().filter("x >= 10")
    shards = ds._shards("main")
    warming: Any = shards.after_read
    cache = ds._blobs.cache
    assert cache is not None

    def read() -> None:
        assert next(iter(ds.table().batches(100)))["x"].to_pylist() == list(range(100))
        assert list(table.gather([0])["x"]) == [10]
        shard = ds.version.manifest.tables["main"].shards[0]
        with pytest.raises(errors.ReliveError):
            shards.read_many([(0, 0, shard.blob.nbytes + 1)])
        assert ds.info["rows"] == 30_000
        assert ds.version.manifest.nbytes
        cache.owns(shards.blob_refs())

    assert isinstance(warming.__self__, BackgroundWarming)
    disk = cache.disk
    locks = [
        shards._lock,
        warming.__self__._lock,
        ds._blobs._lock,
        cache.use._lock,
        disk._lock,
        disk.usage._lock,
        disk.pins._lock,
        disk.writer._changed,
        *locks_of(Table, PublishedDataset, Version, Manifest),
    ]
    assert in_a_fork(locks, read) == ""
    read()


def test_a_forked_process_draws_transitions(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        for number in range(9):
            recorder.step([float(number)], 0, 1.0)
    made = ReplayRun(tmp_path, "run").transitions(min_size=1, follow=True)

    def draw() -> None:
        assert len(made.sample(4, seed=1)["reward"]) == 4

    assert in_a_fork([made._refreshing, made._limit._lock], draw) == ""
    draw()


def test_a_forked_process_pickles_secrets() -> None:
    secret = hidden.Hidden("secret", "public")
    assert in_a_fork([hidden._lock], lambda: hidden._name_of(secret.value)) == ""
