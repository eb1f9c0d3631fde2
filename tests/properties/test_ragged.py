"""Ragged batches compared with plain lists of arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from relive.model import Ragged, bucket_by_length, length_batches

Rows = list[npt.NDArray[Any]]


@st.composite
def row_lists(draw: st.DrawFn, *, variable: bool | None = None) -> Rows:
    """Draw arrays of one dtype that differ in their first dimension, or in all of them."""
    dtype = np.dtype(draw(st.sampled_from(["u1", "<i8", "f4"])))
    inner = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    if variable is None:
        variable = draw(st.booleans())
    rows = []
    for _ in range(draw(st.integers(0, 7))):
        if variable:
            inner = draw(st.tuples(*[st.integers(0, 3)] * len(inner)))
        shape = (draw(st.integers(0, 5)), *inner)
        rows.append(draw(hnp.arrays(dtype, shape, elements=st.integers(0, 200))))
    return rows


def assert_same(ragged: Ragged, rows: Rows) -> None:
    assert len(ragged) == len(rows)
    for own, row in zip(ragged, rows, strict=True):
        np.testing.assert_array_equal(own, row, strict=True)


@given(row_lists())
def test_list_round_trip(rows: Rows) -> None:
    ragged = Ragged.from_list(rows)
    assert_same(ragged, rows)
    for own, row in zip(ragged.to_list(), rows, strict=True):
        np.testing.assert_array_equal(own, row, strict=True)
    assert ragged == Ragged(ragged.values, ragged.offsets, ragged.shapes)


@given(st.data())
def test_selection_matches_a_list(data: st.DataObject) -> None:
    rows = data.draw(row_lists())
    ragged = Ragged.from_list(rows)
    key = data.draw(st.slices(len(rows)))
    assert_same(ragged[key], rows[key])
    if rows:
        chosen = data.draw(st.lists(st.integers(0, len(rows) - 1)))
        assert_same(ragged.take(chosen), [rows[k] for k in chosen])


@given(row_lists(variable=False), st.integers(0, 7))
def test_concat_reverses_slicing(rows: Rows, cut: int) -> None:
    ragged = Ragged.from_list(rows)
    assert Ragged.concat([ragged[:cut], ragged[cut:]]) == ragged


@given(st.data())
def test_pad_keeps_every_value_at_its_position(data: st.DataObject) -> None:
    rows = data.draw(row_lists())
    ragged = Ragged.from_list(rows)
    multiple = data.draw(st.none() | st.integers(1, 4))
    array, mask = ragged.pad(multiple_of=multiple, value=7)
    axes = mask.ndim - 1
    for k, row in enumerate(rows):
        corner = tuple(slice(size) for size in row.shape[:axes])
        np.testing.assert_array_equal(array[k][corner], row, strict=True)
        assert mask[k][corner].all()
        assert mask[k].sum() == np.prod(row.shape[:axes], dtype=int)
        assert (array[k][~mask[k]] == 7).all()
    for axis in range(axes):
        longest = max((row.shape[axis] for row in rows), default=0)
        assert 0 <= mask.shape[axis + 1] - longest < (multiple or 1)


@given(row_lists(), st.integers(0, 4))
def test_pad_truncates_on_request(rows: Rows, to: int) -> None:
    ragged = Ragged.from_list(rows)
    array, mask = ragged.pad(to=to, truncate=True)
    axes = mask.ndim - 1
    assert mask.shape[1:] == (to,) * axes
    for k, row in enumerate(rows):
        cut = row[(slice(to),) * axes]
        corner = tuple(slice(size) for size in cut.shape[:axes])
        np.testing.assert_array_equal(array[k][corner], cut, strict=True)
        assert mask[k].sum() == np.prod(cut.shape[:axes], dtype=int)


def first_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    bins: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        for rows in bins:
            if sum(lengths[k] for k in rows) + lengths[row] <= capacity:
                rows.append(row)
                break
        else:
            bins.append([row])
    return bins


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(12, 30))
def test_pack_is_first_fit_decreasing(lengths: list[int], capacity: int) -> None:
    rows = [np.full((length, 2), k + 1) for k, length in enumerate(lengths)]
    ragged = Ragged(np.concatenate([np.empty((0, 2), int), *rows]), np.cumsum([0, *lengths]))
    packed = ragged.pack(capacity)
    assert [own.tolist() for own in packed.rows] == first_fit_decreasing(lengths, capacity)
    for b, own in enumerate(packed.rows):
        for k, row in enumerate(own.tolist()):
            where = packed.segments[b] == k + 1
            np.testing.assert_array_equal(packed.values[b][where], rows[row])
            assert packed.positions[b][where].tolist() == list(range(lengths[row]))
    assert (packed.values[packed.segments == 0] == 0).all()
    assert (packed.segments > 0).sum() == sum(lengths)


@given(st.lists(st.integers(0, 50)), st.sets(st.integers(0, 50), max_size=5))
def test_buckets_contain_each_row_once(lengths: list[int], boundaries: set[int]) -> None:
    bounds = sorted(boundaries)
    buckets = bucket_by_length(lengths, np.array(bounds, dtype=int))
    assert sorted(row for bucket in buckets for row in bucket.tolist()) == [*range(len(lengths))]
    for low, high, bucket in zip([-1, *bounds], [*bounds, 50], buckets, strict=True):
        assert all(low < lengths[row] <= high for row in bucket.tolist())


@given(st.lists(st.integers(0, 50)), st.integers(1, 9), st.integers(0, 2**64))
def test_batches_contain_each_row_once(lengths: list[int], size: int, seed: int) -> None:
    batches = length_batches(lengths, size, seed)
    assert sorted(row for batch in batches for row in batch.tolist()) == [*range(len(lengths))]
    assert all(0 < len(batch) <= size for batch in batches)
    assert len(batches) == -(-len(lengths) // size)
