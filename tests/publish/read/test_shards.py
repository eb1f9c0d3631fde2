"""Reads of the same shard at once request its leaf table once, and do not wait for more."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relive.errors import StorageError
from relive.publish.read import shards as module
from relive.publish.read.shards import TableShards
from relive.store.blobs import Blobs, blob_key
from relive.store.roots import open_root
from relive.store.roots.root import Check, Data, KeyRange
from tests.publish.read.sample_tables import published, random_rows, write
from tests.publish.version.example_versions import RecordedRoot


class SlowRoot(RecordedRoot):
    """Returns leaf tables after `tables_go`, and data of the first read after `go` is set."""

    def __init__(self, shards: TableShards) -> None:
        super().__init__(shards.blobs.root)
        self.path = None  # as of an object store
        self.go = threading.Event()
        self.tables = {
            blob_key(shard.blob.leaves) for shard in shards.entry.shards if shard.blob.leaves
        }
        self.began = threading.Event()
        self.tables_go = threading.Event()
        self.fails = False

    def read_ranges(
        self, ranges: Sequence[KeyRange], check: Check | None = None, *, gap: int | None = None
    ) -> list[Data]:
        first = not self.began.is_set()
        self.began.set()
        tables = [each for each in ranges if each[0] in self.tables]
        assert self.tables_go.wait(20)
        found = super().read_ranges(tables, check, gap=gap)
        if first:
            assert self.go.wait(20)
            if self.fails:
                raise StorageError("broken")
        return found + super().read_ranges(ranges[len(tables) :], check, gap=gap)


@pytest.fixture
def shards(tmp_path: Path) -> TableShards:
    """A shard with a leaf table, as an object store has it."""
    file = write(random_rows(400), tmp_path / "a.parquet", 50)
    made = published(tmp_path / "root", {"main": [file]})
    entry = made.version.manifest.tables["main"]
    return TableShards(entry, Blobs(open_root(tmp_path / "root")), lambda _: None, "main")


def slow(shards: TableShards) -> tuple[TableShards, SlowRoot]:
    root = SlowRoot(shards)
    return TableShards(shards.entry, Blobs(root), lambda _: None, "main"), root


def test_the_second_read_waits_for_the_leaf_table_only(
    shards: TableShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_WAIT_S", 60)
    whole = bytes(shards.read_many([(0, 0, 99_000)])[0])
    again, root = slow(shards)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(again.read_many, [(0, 0, 90_000)])
        assert root.began.wait(20)
        second = pool.submit(again.read_many, [(0, 70_000, 99_000)])
        time.sleep(0.1)
        root.tables_go.set()
        assert bytes(second.result(20)[0]) == whole[70_000:]  # while the first one still waits
        root.go.set()
        assert bytes(first.result(20)[0]) == whole[:90_000]
    (table,) = root.tables
    assert [key for _, key in root.requests].count(table) == 1


def test_after_an_error_the_next_read_requests_the_leaf_table(shards: TableShards) -> None:
    again, root = slow(shards)
    root.fails = True
    root.tables_go.set()
    root.go.set()
    with pytest.raises(StorageError, match="broken"):
        again.read_many([(0, 0, 90_000)])
    assert len(bytes(again.read_many([(0, 0, 90_000)])[0])) == 90_000
