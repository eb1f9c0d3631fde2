"""Tables in an object store: how many requests, how many bytes, faults and damage on the way."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from relive import errors
from relive.publish.read import scan
from relive.publish.read.dataset import PublishedDataset, dataset
from relive.publish.read.rows import DECODED
from relive.publish.read.table import Table
from relive.store.blobs import LEAF_BYTES
from tests.publish.read.sample_tables import in_files, publish, random_rows
from tests.servers import Nginx, Proxy, SeaweedFS

pytestmark = pytest.mark.needs("obstore", "seaweedfs")

ROWS = random_rows(4000)


class Remote:
    """A dataset in an object store, read through a proxy that counts."""

    def __init__(self, seaweed: SeaweedFS, address: str, proxy: Proxy) -> None:
        self.seaweed, self.address, self.proxy = seaweed, address, proxy

    def publish(self, **tables: Any) -> str:
        """Publish tables past the proxy."""
        return publish(self.address, tables, **self.seaweed.options())

    def open(self, version: str | None = None, mode: str = "remote") -> PublishedDataset:
        """Open the dataset through the proxy, which counts from now on."""
        self.proxy.clear()
        options = self.seaweed.options(self.proxy.url)
        return dataset("test/data", version, mode, self.address, **options)

    def received(self, part: str = "") -> int:
        """Return the bytes of responses for objects with `part` in their path."""
        return sum(each.sent for each in self.proxy.log if part in each.path)

    @property
    def blobs(self) -> list[str]:
        """The paths of blobs that were requested."""
        return [each.path for each in self.proxy.log if "/blobs/" in each.path]


@pytest.fixture
def remote(seaweed: SeaweedFS, bucket: str, proxy: Proxy) -> Remote:
    DECODED.clear()
    return Remote(seaweed, bucket, proxy)


@pytest.fixture
def own(remote: Remote) -> Remote:
    """Publish 4 MB as relive writes them."""
    remote.publish(main=ROWS)
    return remote


@pytest.fixture
def files(remote: Remote, tmp_path: Path) -> Remote:
    """Publish the same rows in four files of another program."""
    remote.publish(main=in_files(ROWS, tmp_path / "files", [1000, 2000, 3000], 500))
    return remote


def test_remote_schema_no_pull(own: Remote) -> None:
    """The schema and the number of rows need one request, for the pointer."""
    ds = own.open()
    assert ds.table().schema().equals(ROWS.schema)
    assert ds.table().count() == ROWS.num_rows
    assert ds.table().select(["id"]).filter(pc.field("id") > 3).schema().names == ["id"]
    assert own.proxy.count == 1
    assert own.blobs == []


def test_remote_stream_batches(
    own: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches arrive before everything is fetched, and nothing is written to disk."""
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "RELIVE_CACHE_DIR", "HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path / "written"))
    stream = own.open().table().batches(1000)
    first = next(stream)
    assert first.num_rows == 1000
    assert own.received() < ROWS.nbytes / 2
    rows = pa.Table.from_batches([first, *stream])
    assert rows.equals(ROWS)
    assert own.received() < 1.1 * ROWS.nbytes
    assert not (tmp_path / "written").exists()


def test_first_batch_needs_two_requests(own: Remote) -> None:
    batch = next(own.open().table().batches(1024))
    assert batch.column("id").to_pylist() == list(range(1024))
    assert own.proxy.methods() == ["GET"] * 2  # the pointer, then the data


def test_first_batch_of_other_files_needs_five_requests(files: Remote) -> None:
    batch = next(files.open().table().batches(1024))
    assert batch.num_rows == 1024
    assert files.proxy.count <= 5


def test_first_batch_by_digest(own: Remote) -> None:
    digest = own.open().digest
    batch = next(own.open(digest).table().batches(1024))
    assert batch.num_rows == 1024
    # The manifest; then the footer; then the leaf table and the data at once.
    assert own.proxy.count == 4


def test_head_of_own_tables_reads_less_than_two_megabytes(own: Remote) -> None:
    assert own.open().table().head(5).equals(ROWS.slice(0, 5))
    assert own.received() < 2e6
    assert own.proxy.count == 2


def test_limit_fetches_no_more_than_needed(files: Remote) -> None:
    assert sum(batch.num_rows for batch in files.open().table().batches(100, limit=600)) == 600
    assert files.received("/blobs/") < 1_200_000
    assert len(files.blobs) <= 3


@pytest.mark.parametrize("how", ["expression", "sql"])
@pytest.mark.parametrize("columns", [["id", "score"], ["payload"], None])
def test_filtered_reads_fetch_only_what_statistics_cannot_exclude(
    files: Remote, tmp_path: Path, how: str, columns: list[str] | None
) -> None:
    condition: Any = (pc.field("id") >= 900) & (pc.field("id") < 1300)
    table = files.open().table()
    chosen = table if columns is None else table.select(columns)
    found = chosen.filter(condition if how == "expression" else "id >= 900 and id < 1300").arrow()
    assert found.equals(ROWS.slice(900, 400).select(columns or ROWS.schema.names))
    assert files.received("/blobs/") == needed(tmp_path / "files", 900, 1300, columns)


def needed(folder: Path, begin: int, end: int, columns: list[str] | None) -> int:
    """Return the bytes of leaves that such a read has to fetch; leaf tables are inlined."""
    total = 0
    for path in sorted(folder.iterdir()):
        size, leaves = path.stat().st_size, set[int]()
        metadata = pq.read_metadata(path)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            ids = group.column(0).statistics
            if ids.max < begin or ids.min >= end:
                continue
            for column in map(group.column, range(group.num_columns)):
                if columns is None or column.path_in_schema in {*columns, "id"}:
                    start = column.dictionary_page_offset or column.data_page_offset
                    start = min(start, column.data_page_offset)
                    stop = start + column.total_compressed_size
                    leaves |= set(range(start // LEAF_BYTES, -(-stop // LEAF_BYTES)))
        total += sum(min(size, (leaf + 1) * LEAF_BYTES) - leaf * LEAF_BYTES for leaf in leaves)
    return total


def test_columns_are_fetched_alone(files: Remote) -> None:
    found = files.open().table().select(["id", "label"]).arrow()
    assert found.equals(ROWS.select(["id", "label"]))
    assert files.received("/blobs/") < ROWS.nbytes / 2


def test_gather_fetches_each_row_group_once(files: Remote) -> None:
    table = files.open().table().select(["id", "label"])
    indices = np.random.default_rng(0).integers(0, 4000, 500)
    batch = table.gather(indices)
    np.testing.assert_array_equal(np.asarray(batch["id"]), indices)
    requested = files.proxy.count
    assert len(files.blobs) <= 4 * (4 + 1)
    table.gather(np.arange(4000))
    assert files.proxy.count == requested


@pytest.mark.needs("duckdb")
def test_queries_fetch_ahead(files: Remote) -> None:
    ds = files.open()
    found = ds.query("select sum(id) as n, sum(label) as m from main where score >= 0")
    assert found.to_pydict()["n"] == [sum(range(4000))]
    # 8 row groups of three columns; the ends of four files, and their leaf tables.
    assert files.proxy.count < 3 * 8 + 1
    assert files.received() < ROWS.nbytes / 2


@pytest.mark.needs("duckdb")
def test_queries_open_only_what_they_name(remote: Remote) -> None:
    remote.publish(main=ROWS.slice(0, 100), other=pa.table({"x": [1, 2]}))
    assert remote.open().query("select sum(x) as n from other").to_pydict() == {"n": [3]}
    assert remote.proxy.count <= 3


@pytest.mark.parametrize("fault", ["busy", "reset", "silent"])
def test_faults_change_no_row(files: Remote, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(scan, "STEP_BYTES", 100_000)
    setattr(files.proxy.troubles, fault, 0.1)
    files.proxy.troubles.silent_s = 0.5
    requests = 0
    for _ in range(4):
        table = files.open().table()
        assert table.select(["id", "payload"]).arrow().equals(ROWS.select(["id", "payload"]))
        assert table.filter(pc.field("id") >= 3990).select(["id"]).count() == 10
        requests += files.proxy.count
    assert requests > 40


def test_one_percent_of_all_faults_changes_no_row(
    files: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "STEP_BYTES", 30_000)
    troubles = files.proxy.troubles
    troubles.busy = troubles.reset = troubles.silent = 0.01
    troubles.silent_s = 0.5
    requests = 0
    for _ in range(12):
        assert files.open().table().arrow().equals(ROWS)
        requests += files.proxy.count
    assert requests > 100


@pytest.mark.parametrize("offset", [4, 70_000, 200_000])
def test_bytes_changed_on_the_way_are_detected(files: Remote, offset: int) -> None:
    shard = files.open().version.manifest.tables["main"].shards[0]
    assert shard.blob.leaves is not None
    files.proxy.troubles.flip = (shard.blob.digest, offset)
    with pytest.raises(errors.CorruptError, match=shard.blob.digest):
        files.open().table().arrow()
    files.proxy.troubles.flip = (shard.blob.leaves, offset % 100)
    digest = files.open().digest
    with pytest.raises(errors.CorruptError, match=shard.blob.leaves):
        files.open(digest).table().arrow()
    assert files.open().table().arrow().equals(ROWS)  # `latest` inlines the table
    files.proxy.troubles.flip = ("latest.json", 200 + offset % 1000)
    with pytest.raises((errors.CorruptError, errors.UnsupportedError)):
        files.open()
    files.proxy.troubles.flip = None
    assert files.open().table().arrow().equals(ROWS)


def test_missing_blob(files: Remote) -> None:
    from relive.store.blobs import blob_key
    from relive.store.roots.open import open_root

    ds = files.open()
    digest = ds.version.manifest.tables["main"].shards[2].blob.digest
    open_root(files.address, **files.seaweed.options()).delete([blob_key(digest)])
    assert ds.table().head(1500).num_rows == 1500
    with pytest.raises(errors.NotFoundError, match=digest):
        ds.table().arrow()


def test_offline_is_found_out_at_once(remote: Remote) -> None:
    started = time.monotonic()
    with pytest.raises(errors.OfflineError):
        dataset("test/data", root=remote.address, **remote.seaweed.options("http://127.0.0.1:1"))
    assert time.monotonic() - started < 10


def test_a_busy_server_is_asked_again(own: Remote) -> None:
    own.proxy.troubles.canned = [(503, b"<Error><Code>SlowDown</Code></Error>")] * 2
    assert own.open().table().count() == ROWS.num_rows
    assert own.proxy.count == 3


def test_missing_dataset(remote: Remote) -> None:
    with pytest.raises(errors.DatasetNotFoundError, match="no dataset `test/data`"):
        remote.open()


@pytest.mark.needs("nginx")
def test_a_plain_web_server_is_a_root(nginx: Nginx) -> None:
    publish(nginx.files / "root", {"main": ROWS})
    nginx.log()
    ds = dataset("test/data", root=f"{nginx.url}/root")
    assert next(ds.table().batches(1000)).num_rows == 1000
    assert len(nginx.log()) == 2
    assert ds.table().arrow().equals(ROWS)
    assert [each.is_latest for each in ds.versions] == [True]


def sums(table: Table) -> tuple[int, int]:
    """Read a table in another process."""
    total = sum(int(batch.column(0).to_numpy().sum()) for batch in table.batches(500))
    return total, int(np.asarray(table.gather([7, 3])["id"]).sum())


def sums_in(method: str, table: Table) -> tuple[int, int]:
    """Read a table here, then in a process started from here."""
    assert sums(table)[1] == 10
    with multiprocessing.get_context(method).Pool(1) as pool:
        found: tuple[int, int] = pool.apply(sums, (table,))
        return found


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(own: Remote, method: str, spawned_pool: ProcessPoolExecutor) -> None:
    table = own.open().table().select(["id"]).filter(pc.field("id") < 2000)
    assert spawned_pool.submit(sums_in, method, table).result() == (sum(range(2000)), 10)
