"""Rows taken out of several tables are those of the joined one."""

import random
from itertools import pairwise
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from relive import errors
from relive.publish.read.stream import row_gather
from relive.publish.read.stream.row_gather import RowGather
from tests.publish.read.sample_tables import as_stored, every_type
from tests.publish.write import arrow_tables

seeds = st.integers(0, 1 << 32).map(random.Random)


def cut(table: Any, draw: random.Random) -> list[Any]:
    """Return a table in parts, some of them empty or of several chunks."""
    cuts = sorted(draw.choices(range(table.num_rows + 1), k=draw.randrange(4)))
    edges = [0, *cuts, table.num_rows]
    parts = [table.slice(start, stop - start) for start, stop in pairwise(edges)]
    return [
        pa.concat_tables([part.slice(0, 1), part.slice(1)]) if draw.random() < 0.5 else part
        for part in parts
    ]


@hypothesis.settings(max_examples=150)
@hypothesis.given(arrow_tables.tables(40), seeds)
def test_rows_are_those_of_the_joined_tables(table: Any, draw: random.Random) -> None:
    parts = cut(table, draw)
    rows = [draw.randrange(table.num_rows) for _ in range(60)] if table.num_rows else []
    found = RowGather(parts).take(np.array(rows, np.int64))
    found.validate(full=True)
    listed = table.to_pylist()
    assert found.schema.equals(table.schema, check_metadata=True)
    # As text, so that NaN equals itself and -0.0 is not 0.0.
    assert repr(found.to_pylist()) == repr([listed[row] for row in rows])


def test_batches_do_not_keep_the_tables() -> None:
    table = as_stored(every_type(1000).drop_columns(["n", "d"]))
    before = pa.total_allocated_bytes()
    rows = RowGather([table, table])
    found = rows.take(np.array([0, 1999]))
    assert found.num_rows == 2
    # The core has memory of its own: Arrow has copied nothing.
    assert pa.total_allocated_bytes() - before < 100_000


def test_only_columns_that_the_core_cannot_take_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[list[str]] = []
    original = row_gather._joined

    def noted(tables: Any, names: Any) -> Any:
        joined.append(list(names))
        return original(tables, names)

    monkeypatch.setattr(row_gather, "_joined", noted)
    table = as_stored(every_type(100))
    found = RowGather([table.slice(0, 50), table.slice(50)]).take(np.arange(100))
    # Compared as text: NaN is not equal to itself.
    assert repr(found.to_pylist()) == repr(table.to_pylist())
    assert joined == [["d", "n"]]


def test_rows_out_of_range_are_an_error() -> None:
    rows = RowGather([pa.table({"x": [1, 2]})])
    for number in (2, -3):
        with pytest.raises(IndexError):
            rows.take(np.array([number]))


def test_too_much_text_for_a_batch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_gather, "_MAX_INT32", 1000)
    rows = RowGather([pa.table({"x": ["a" * 400, "b" * 400]})])
    assert rows.take(np.array([0, 1])).num_rows == 2
    with pytest.raises(errors.TooLargeError, match="2 GiB"):
        rows.take(np.array([0, 1, 0]))
    large = RowGather([pa.table({"x": pa.array(["a" * 400], pa.large_string())})])
    assert large.take(np.array([0, 0, 0])).num_rows == 3
