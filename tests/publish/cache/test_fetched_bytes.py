"""How many bytes the ranks of one job fetch of a table together: the bodies of all responses."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive.publish.read.dataset import dataset
from tests.publish.cache.remote_dataset import RemoteDataset
from tests.publish.read.sample_tables import publish, random_rows
from tests.store.cache.blob_fixtures import Sampler

pytestmark = pytest.mark.needs("obstore", "seaweedfs")

RANKS = 8
FILES, GROUPS = 4, 64
PAYLOAD = 8192
GROUP_ROWS = 80
"""Row groups of 640 KiB: 40 MB in all. Those that relive writes are larger, 4 MiB."""


def rows_of(count: int) -> pa.Table:
    """Return rows of about 8 KiB that cannot be compressed, as small images are."""
    random = np.random.default_rng(0)
    payload = pa.array([random.bytes(PAYLOAD) for _ in range(count)])
    return pa.table({"id": np.arange(count), "label": random.integers(0, 10, count), "x": payload})


def in_all(pool: ProcessPoolExecutor, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return `work(rank, *arguments)` of each rank, all at the same time in processes of theirs."""
    return pool.submit(forked, work, arguments).result(timeout=120)


def forked(work: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """Do that in a process that has loaded everything but obstore."""
    assert "obstore" not in sys.modules
    with multiprocessing.get_context("fork").Pool(RANKS, maxtasksperchild=1) as pool:
        return pool.starmap(work, [(rank, *arguments) for rank in range(RANKS)], chunksize=1)


def read_share(rank: int, address: str, options: dict[str, Any]) -> list[int]:
    """Return the numbers of the rows of a rank, all of whose columns are read."""
    table = dataset("test/data", mode="remote", root=address, **options).table()
    stream = table.batches(50, shard=(rank, RANKS), shuffle=True, seed=3)
    return [row for each in stream for row in each.column("id").to_pylist()]


def warm(_: int, address: str, options: dict[str, Any], directory: Path, limit: int) -> bool:
    """Fill a cache with the dataset; return whether it is complete."""
    os.environ["RELIVE_CACHE_DIR"] = f"{directory}"
    os.environ["RELIVE_CACHE_LIMIT"] = f"{limit}"
    os.environ["RELIVE_CACHE_FREE"] = "0"
    return dataset("test/data", root=address, **options).warm().is_complete


def publish_groups(remote: RemoteDataset, *, equal: bool) -> tuple[int, int]:
    """Publish 64 row groups in four files; return the number of rows and of bytes.

    Unless they are `equal`, the last row group of each file is shorter, so that no two partitions
    meet at the border of two row groups.
    """
    rows = GROUPS * GROUP_ROWS - (0 if equal else 30 * FILES)
    table, size = rows_of(rows), rows // FILES
    paths = [remote.folder / f"{number}.parquet" for number in range(FILES)]
    for number, path in enumerate(paths):
        part = table.slice(number * size, size)
        pq.write_table(part, path, row_group_size=GROUP_ROWS, compression="none")
    assert sum(pq.read_metadata(path).num_row_groups for path in paths) == GROUPS
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELIVE_CACHE_LIMIT", "0")
        publish(remote.address, {"main": paths}, **remote.seaweed.options())
    return rows, sum(path.stat().st_size for path in paths)


def last(path: str) -> str:
    """Return the last part of the path of a request."""
    return path.partition("?")[0].rpartition("/")[2]


@pytest.mark.parametrize("equal", [False, True])
def test_eight_ranks_fetch_little_more_than_the_table(
    remote: RemoteDataset,
    spawned_pool: ProcessPoolExecutor,
    record_property: Callable[[str, object], None],
    *,
    equal: bool,
) -> None:
    rows, nbytes = publish_groups(remote, equal=equal)
    remote.proxy.clear()
    found = in_all(spawned_pool, read_share, remote.address, remote.options)
    assert sorted(chain(*found)) == [*range(rows)]
    times = remote.received("") / nbytes
    record_property("figure", f"eight ranks fetch {times:.3f} x a table of {nbytes >> 20} MiB")
    # A row group at the border of two partitions is read by both; leaves are read as a whole.
    assert times <= 1.25


def test_eight_processes_share_the_work(
    remote: RemoteDataset,
    spawned_pool: ProcessPoolExecutor,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    rows = random_rows(24_000)
    remote.publish(rows, 3)
    nbytes = remote.open(mode="remote").info["bytes"]
    # Bounds of text and bytes make footers large: the pointer cannot have all of them.
    (entry,) = remote.open(mode="remote").version.manifest.tables.values()
    assert sum(shard.footer.nbytes for shard in entry.shards) > nbytes / 256
    remote.proxy.clear()
    found = in_all(
        spawned_pool, warm, remote.address, remote.options, tmp_path / "relive-cache", 1 << 30
    )
    times = remote.received("") / nbytes
    record_property("figure", f"eight processes warm {times:.3f} x a table of {nbytes >> 20} MiB")
    assert found == [True] * RANKS
    assert times <= 1.05
    blobs = {shard.blob.digest for shard in entry.shards}
    asked = [(name, each.range) for each in remote.proxy.log if (name := last(each.path)) in blobs]
    assert len(asked) == len(set(asked))  # footers too
    local = remote.open(mode="local").table()
    assert local.arrow().equals(rows)
    batches = [*local.batches(500, shuffle=True, columns=["id"])]
    assert sorted(row for each in batches for row in each["id"].to_pylist()) == [*range(24_000)]
    assert remote.proxy.count == 0
    # With half of the room they still stop, and never need more of it.
    directory, limit = tmp_path / "small", nbytes // 2
    with Sampler(directory) as sampler:
        found = in_all(spawned_pool, warm, remote.address, remote.options, directory, limit)
    assert found == [False] * RANKS
    assert 0.7 * limit < sampler.most <= limit


def test_half_of_a_table_in_the_cache_is_used_by_the_second_epoch(
    remote: RemoteDataset,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    rows, nbytes = publish_groups(remote, equal=False)
    limit = nbytes // 2
    monkeypatch.setenv("RELIVE_CACHE_LIMIT", str(limit))
    ds = remote.open()
    stream = ds.table().batches(50, shuffle=True, seed=3)
    times = []
    with Sampler(remote.cache_directory) as sampler:
        for epoch in range(3):
            remote.proxy.clear()
            stream.set_epoch(epoch)
            found = [row for each in stream for row in each.column("id").to_pylist()]
            assert sorted(found) == [*range(rows)]
            times.append(remote.received("") / nbytes)
            remote.flush(ds)
    record_property("figure", f"with half of a table cached, epochs fetch {times} x its bytes")
    assert times[0] > 1
    assert max(times[1:]) <= 0.7
    assert 0.7 * limit < sampler.most <= limit
