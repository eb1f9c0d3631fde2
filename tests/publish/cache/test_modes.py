"""Modes: what is requested, what is kept, and what works without a server."""

import multiprocessing
import socket
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from relive import errors
from relive.publish.read.dataset import dataset
from relive.publish.read.table import Table
from relive.publish.version.catalog import Catalog
from relive.publish.version.names import parse_reference
from relive.store.roots.open import open_root
from tests.publish.cache.remote_dataset import RemoteDataset
from tests.publish.read.sample_tables import publish, random_rows
from tests.servers import Nginx

pytestmark = pytest.mark.needs("obstore", "seaweedfs")

ROWS = random_rows(4000)


@pytest.fixture
def stored(remote: RemoteDataset) -> RemoteDataset:
    """Publish 4 MB in four files."""
    remote.publish(ROWS, 4)
    return remote


def pages(remote: RemoteDataset) -> list[Path]:
    return [*(remote.cache_directory / "blobs" / "pages").rglob("*.*")]


def test_cache_no_redownload(stored: RemoteDataset) -> None:
    ds = stored.open()
    assert ds.table().arrow().equals(ROWS)
    assert stored.received() > ROWS.nbytes
    stored.flush(ds)
    again = stored.open()
    assert again.table().arrow().equals(ROWS)
    assert stored.received() == 0
    assert [(each.method, each.status) for each in stored.proxy.log] == [("GET", 304)]
    assert again._blobs.stats.hits > 0


def test_nothing_is_written_before_the_first_batch(stored: RemoteDataset) -> None:
    ds = stored.open()
    assert not stored.cache_directory.exists()
    batch = next(ds.table().batches(500))
    assert batch.num_rows == 500
    assert not stored.cache_directory.exists()
    assert stored.proxy.count <= 4
    stored.flush(ds)
    assert pages(stored)


def test_remote_uses_no_cache(stored: RemoteDataset) -> None:
    for _ in range(2):
        assert stored.open(mode="remote").table().arrow().equals(ROWS)
        assert stored.received() > ROWS.nbytes
    assert not stored.cache_directory.exists()


def test_local_makes_no_request(stored: RemoteDataset) -> None:
    with pytest.raises(errors.NotCachedError, match=r"`test/data` of .* is not in the cache"):
        stored.open(mode="local")
    assert stored.proxy.count == 0
    ds = stored.open()
    digest = ds.digest
    ds.table().head(1200)  # the first two of four files
    stored.flush(ds)
    for version in (None, digest, digest[:64]):
        local = stored.open(version, mode="local")
        assert local.table().head(1000).equals(ROWS.slice(0, 1000))
        with pytest.raises(errors.NotCachedError, match="is not in the cache") as caught:
            local.table().arrow()
        assert "relive warm" in (caught.value.hint or "")
        assert local.info["rows"] == 4000
        assert stored.proxy.count == 0
    with pytest.raises(errors.NotCachedError):
        stored.open("v7", mode="local")
    with pytest.raises(FileNotFoundError):
        stored.open("0" * 64, mode="local")
    assert stored.proxy.count == 0


def test_offline_auto_opens_the_last_version(stored: RemoteDataset) -> None:
    first = stored.open()
    assert first.table().arrow().equals(ROWS)
    pinned = first.digest
    stored.flush(first)
    stored.go_offline()
    for version in (None, pinned):
        started = time.monotonic()
        with pytest.warns(RuntimeWarning, match=r"what was last seen of .* is used"):
            ds = stored.open(version)
        assert time.monotonic() - started < 3
        assert ds.digest == pinned
        assert ds.table().arrow().equals(ROWS)
    for mode in ("hybrid", "auto"):
        with pytest.warns(RuntimeWarning, match="last seen"):
            assert stored.open(mode=mode).table().head(3).num_rows == 3
    with pytest.raises(errors.OfflineError):
        stored.open(mode="remote")
    started = time.monotonic()
    for version in ("v7", "0" * 64):
        with pytest.raises(errors.OfflineError):
            stored.open(version)
    assert time.monotonic() - started < 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stored.open(mode="local").table().arrow().equals(ROWS)


def test_a_server_that_does_not_answer_is_offline(stored: RemoteDataset) -> None:
    ds = stored.open()
    stored.flush(ds)
    stored.proxy.troubles.silent, stored.proxy.troubles.silent_s = 1.0, 6.0
    started = time.monotonic()
    with pytest.warns(RuntimeWarning, match="did not answer within 2 seconds"):
        assert stored.open().digest == ds.digest
    assert time.monotonic() - started < 3
    stored.proxy.troubles.silent = 0.0


def test_a_new_version_is_seen(stored: RemoteDataset) -> None:
    old = stored.open()
    stored.flush(old)
    rows = random_rows(10)
    digest = stored.publish(rows)
    new = stored.open()
    assert new.digest == digest != old.digest
    assert new.table().arrow().equals(rows)
    stored.flush(new)
    assert stored.open(mode="local").digest == digest
    assert stored.open(old.digest, mode="local").digest == old.digest


def test_a_withdrawn_version_is_refused_although_it_is_cached(stored: RemoteDataset) -> None:
    old = stored.open()
    old.table().head(5)
    stored.flush(old)
    stored.publish(random_rows(10))
    catalog = Catalog(open_root(stored.address, **stored.seaweed.options()))
    catalog.withdraw(parse_reference(old.pinned), "wrong labels")
    with pytest.raises(errors.VersionWithdrawnError):
        stored.open(old.digest)


def test_roots_at_different_endpoints_are_different(stored: RemoteDataset) -> None:
    ds = stored.open()
    stored.flush(ds)
    with pytest.raises(errors.NotCachedError):
        dataset("test/data", mode="local", root=stored.address, **stored.seaweed.options())


def test_changed_bytes_are_fetched_again(stored: RemoteDataset) -> None:
    ds = stored.open()
    assert ds.table().arrow().equals(ROWS)
    stored.flush(ds)
    (path, *_) = pages(stored)
    for number, path in enumerate(pages(stored)):
        data = bytearray(path.read_bytes())
        data[(number * 98_765) % len(data)] ^= 8
        path.write_bytes(data)
    again = stored.open()
    assert again.table().arrow().equals(ROWS)
    assert stored.received() > 0
    stored.flush(again)
    assert stored.open().table().arrow().equals(ROWS)
    assert stored.received() == 0


@pytest.mark.parametrize("what", ["seen", "whole"])
def test_damaged_documents_are_read_again(stored: RemoteDataset, what: str) -> None:
    ds = stored.open()
    assert ds.table().arrow().equals(ROWS)
    stored.flush(ds)
    files = [
        each for each in (stored.cache_directory / "blobs" / what).rglob("*") if each.is_file()
    ]
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    again = stored.open()
    assert again.table().arrow().equals(ROWS)
    stored.flush(again)
    assert stored.open(mode="local").table().arrow().equals(ROWS)


def test_a_directory_is_read_in_place(tmp_path: Path) -> None:
    publish(tmp_path / "root", {"main": pa.table({"x": [1, 2]})})
    for mode in ("auto", "remote", "hybrid", "local"):
        ds = dataset("test/data", mode=mode, root=tmp_path / "root")
        assert ds.table().arrow().to_pydict() == {"x": [1, 2]}
        assert ds._blobs.cache is None
    assert not (tmp_path / "relive-cache" / "blobs").exists()


@pytest.mark.needs("nginx")
def test_a_web_server(nginx: Nginx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIVE_CACHE_FREE", "0")
    publish(nginx.files / "root", {"main": ROWS})
    ds = dataset("test/data", root=f"{nginx.url}/root")
    assert ds.table().arrow().equals(ROWS)
    assert ds._blobs.cache is not None
    ds._blobs.cache.flush()
    nginx.log()
    assert dataset("test/data", root=f"{nginx.url}/root").table().arrow().equals(ROWS)
    assert [each.status for each in nginx.log()] == [304]
    local = dataset("test/data", mode="local", root=f"{nginx.url}/root")
    assert local.table().arrow().equals(ROWS)
    assert nginx.log() == []


def total(table: Table) -> int:
    """Read a table in another process."""
    return sum(int(batch.column(0).to_numpy().sum()) for batch in table.batches(500))


def total_in(method: str, table: Table) -> int:
    """Read a table here, then in a process started from here."""
    assert total(table) == sum(range(4000))
    cache = table.selection().shards.blobs.cache
    assert cache is not None
    cache.flush()  # another process does not see what waits to be written
    with multiprocessing.get_context(method).Pool(1) as pool:
        found: int = pool.apply(total, (table,))
        return found


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_processes_share_the_cache(
    stored: RemoteDataset, method: str, spawned_pool: ProcessPoolExecutor
) -> None:
    table = stored.open().table().select(["id"])
    assert spawned_pool.submit(total_in, method, table).result() == sum(range(4000))
    local = stored.open(mode="local").table().select(["id"])
    assert spawned_pool.submit(total_in, method, local).result() == sum(range(4000))
    assert stored.proxy.count == 0


def test_a_refused_connection_is_found_out_at_once(remote: RemoteDataset) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    started = time.monotonic()
    for version in (None, "0" * 64):
        with pytest.raises(errors.OfflineError):
            dataset("test/data", version, root=remote.address, **remote.seaweed.options(url))
    assert time.monotonic() - started < 3
