"""Loaders over published tables: row groups are the blocks."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive import DataLoader, Sampler
from relive.load import Concat
from relive.publish.read.dataset import dataset
from relive.publish.read.table import Table
from relive.publish.write.builder import DatasetBuilder

ROWS, GROUP = 1000, 40


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Publish two shards of row groups of forty rows; the last group of each is short."""
    paths = []
    for number, (start, stop) in enumerate([(0, 610), (610, ROWS)]):
        paths.append(tmp_path / f"{number}.parquet")
        part = pa.table({"id": np.arange(start, stop)})
        pq.write_table(part, paths[-1], row_group_size=GROUP)
    builder = DatasetBuilder("test/rows", root=tmp_path / "root")
    builder.add_table("main", paths)
    builder.publish()
    return dataset("test/rows", root=tmp_path / "root").table("main")


def test_row_groups_are_the_blocks(table: Table) -> None:
    bounds = table.block_bounds()
    assert bounds is not None
    assert bounds.tolist() == [*range(0, 610, GROUP), *range(610, ROWS, GROUP), ROWS]
    seen: list[int] = []
    for rank in range(4):
        with DataLoader(
            table, batch_size=10, mode="block", rank=rank, world_size=4, tail="keep", epochs=1
        ) as loader:
            own = np.concatenate([batch["id"] for batch in loader])
        groups = np.unique(np.searchsorted(bounds, own, side="right"))
        assert len(groups) <= len(bounds) // 4 + 2
        seen += own.tolist()
    assert sorted(seen) == list(range(ROWS))


def test_loader_has_the_order_of_the_sampler(table: Table) -> None:
    expected = Sampler(ROWS, 30, "block", blocks=table.block_bounds(), window=100, seed=4).peek(50)
    with DataLoader(table, batch_size=30, mode="block", window=100, seed=4) as loader:
        for rows in expected:
            assert next(loader)["id"].tolist() == rows.tolist()


def test_resume_with_other_ranks(table: Table) -> None:
    options: dict[str, Any] = {"mode": "block", "window": 120, "tail": "keep", "workers": 1}
    found: list[int] = []
    state = None
    for batch, world, steps in [(5, 4, 20), (20, 1, 7), (4, 3, 9), (9, 2, 30)]:
        loaders = [
            DataLoader(table, batch_size=batch, rank=rank, world_size=world, **options)
            for rank in range(world)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(state))
        found += [
            int(row) for _ in range(steps) for loader in loaders for row in next(loader)["id"]
        ]
        (state,) = {json.dumps(loader.state_dict()) for loader in loaders}
        for loader in loaders:
            loader.close()
    whole = Sampler(ROWS, 20, "block", blocks=table.block_bounds(), partitions=4, window=120,
                    tail="keep")  # fmt: skip
    rows = [int(row) for step in itertools.islice(whole, 100) for row in step]
    assert found == rows[: len(found)]
    assert len(found) > 1000  # into the second epoch


def test_joined_tables_have_the_row_groups_of_both(table: Table) -> None:
    bounds, both = table.block_bounds(), Concat(table, table).block_bounds()
    assert bounds is not None
    assert both is not None
    assert both.tolist() == [*bounds[:-1], *(bounds + ROWS)]
