"""Shuffled streams of two ranks out of a disturbed object store: the rows of a directory, in order.

The ranks are processes. They read themselves or in workers of torch, without a cache or with one
that they share.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from relive.publish.read.dataset import dataset
from relive.publish.read.table import Table
from tests.publish.read.sample_tables import in_files, publish
from tests.servers import Proxy, SeaweedFS, seed_with_every_fault

pytestmark = pytest.mark.needs("obstore", "seaweedfs")

ROWS, FILES, BATCH, WINDOW, RANKS, WORKERS = 1440, 24, 30, 200, 2, 2
REQUESTS = 40  # there are more
# A share of 1 % for each kind of fault, or what a longer campaign asks for.
SHARE = float(os.environ.get("RELIVE_FAULT_SHARE", "0.01"))
EPOCHS = int(os.environ.get("RELIVE_STREAM_EPOCHS", "2"))
SILENT_S, PATIENCE = 1.5, "700ms"

Rows = list[tuple[int, bytes]]
"""The number of each row of a batch, and its payload."""


class Rank:
    """One rank: a process that has opened the dataset."""

    table: Table

    def __init__(self, number: int, pool: ProcessPoolExecutor) -> None:
        self._number, self._pool = number, pool

    def open(self, root: str, mode: str, options: dict[str, Any], cache: Path) -> Future[None]:
        """Open the dataset."""
        return self._pool.submit(_open, root, mode, options, cache)

    def read(self, epochs: int, workers: int) -> Future[list[list[Rows]]]:
        """Read epochs."""
        return self._pool.submit(_read, self._number, epochs, workers)


def _open(root: str, mode: str, options: dict[str, Any], cache: Path) -> None:
    os.environ["RELIVE_CACHE_DIR"] = f"{cache}"
    os.environ["RELIVE_CACHE_LIMIT"] = "100MB"
    os.environ["RELIVE_CACHE_FREE"] = "0"
    Rank.table = dataset("test/data", mode=mode, root=root, **options).table()


def _read(rank: int, epochs: int, workers: int) -> list[list[Rows]]:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "window": WINDOW, "shard": (rank, RANKS)}
    if not workers:
        with Rank.table.batches(BATCH, **options) as stream:
            return [_rows(stream, epoch) for epoch in range(epochs)]
    import torch

    data = Rank.table.to_torch(BATCH, **options)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=workers, multiprocessing_context="fork"
    )
    found = []
    for epoch in range(epochs):
        data.set_epoch(epoch)
        found.append([list(zip(b["id"].tolist(), b["x"], strict=True)) for b in loader])
    return found


def _rows(stream: Any, epoch: int) -> list[Rows]:
    stream.set_epoch(epoch)
    return [
        list(zip(batch["id"].to_pylist(), batch["x"].to_pylist(), strict=True)) for batch in stream
    ]


@pytest.fixture(scope="module")
def ranks() -> Iterator[list[Rank]]:
    """Start the ranks: in this process, other tests have used many libraries."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, mp_context=context)) for _ in range(RANKS)
        ]
        yield [Rank(number, pool) for number, pool in enumerate(pools)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write 24 files of two row groups, 120 KB each."""
    random = np.random.default_rng(0)
    payload = pa.array([random.bytes(2000) for _ in range(ROWS)])
    rows = pa.table({"id": np.arange(ROWS), "x": payload})
    size = ROWS // FILES
    cuts = range(size, ROWS, size)
    return in_files(rows, tmp_path_factory.mktemp("rows"), cuts, size // 2)


@pytest.fixture(scope="module")
def expected(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[list[list[Rows]]]:
    """Return what each rank reads in each epoch of a directory root."""
    root = tmp_path_factory.mktemp("expected") / "root"
    publish(root, {"main": files})
    table = dataset("test/data", root=root).table()
    found = []
    for rank in range(RANKS):
        stream = table.batches(BATCH, shuffle=True, seed=5, window=WINDOW, shard=(rank, RANKS))
        found.append([_rows(stream, epoch) for epoch in range(EPOCHS)])
    for epoch in range(EPOCHS):
        numbers = [row for rank in found for batch in rank[epoch] for row, _ in batch]
        assert sorted(numbers) == [*range(ROWS)]
    return found


@pytest.mark.parametrize("mode", ["remote", "auto"])
@pytest.mark.parametrize(
    "workers", [0, pytest.param(WORKERS, marks=pytest.mark.needs("torch"))], ids=["ranks", "torch"]
)
def test_faults_change_neither_order_nor_rows(
    *,
    mode: str,
    workers: int,
    files: list[Path],
    ranks: list[Rank],
    expected: list[list[list[Rows]]],
    seaweed: SeaweedFS,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setenv("RELIVE_CACHE_LIMIT", "0")
    publish(bucket, {"main": files}, **seaweed.options())
    epochs = EPOCHS if mode == "auto" else -(-EPOCHS // 2)  # without a cache they take longer
    with Proxy(seaweed.url, seed=seed_with_every_fault(SHARE, 2 * RANKS, REQUESTS)) as proxy:
        options = {**seaweed.options(proxy.url), "client_options": {"timeout": PATIENCE}}
        for rank in ranks:
            rank.open(bucket, mode, options, tmp_path / "cache").result(60)
        # Whether an object store can be reached is found out by one short attempt.
        assert proxy.count <= 2 * RANKS
        proxy.troubles.busy = proxy.troubles.reset = proxy.troubles.silent = SHARE
        proxy.troubles.silent_s = SILENT_S
        found = [
            each.result(120 + 60 * EPOCHS)
            for each in [rank.read(epochs, workers) for rank in ranks]
        ]
        proxy.wait()
        statuses = [each.status for each in proxy.log]
    assert found == [rank[:epochs] for rank in expected]
    assert any((tmp_path / "cache").rglob("*.*")) == (mode == "auto")
    assert len(statuses) >= REQUESTS
    busy, lost = statuses.count(503), statuses.count(0)
    assert busy >= 1
    assert lost >= 1  # not answered, or reset before an answer
    batches = sum(len(epoch) for rank in found for epoch in rank)
    record_property(
        "figure",
        f"streams: mode={mode}, {workers} workers a rank: {batches} batches as of a directory, "
        f"after {len(statuses)} requests, {busy} of them busy and {lost} lost",
    )
