"""Tests that every source must pass."""

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from relive import RecordStore, errors
from relive.model import Ragged, Subset
from tests.contracts.source_contract import (
    SOURCES,
    Make,
    array,
    assert_rows,
    columns,
    ids,
    tokens,
)


def test_length_and_fields(make: Make) -> None:
    source = make(10)
    assert len(source) == 10
    assert source.fields["id"].dtype == np.int64
    assert source.fields["id"].shape == ()
    assert source.fields["vec"].dtype == np.float32
    assert source.fields["vec"].shape == (3,)
    assert list(source.gather([0])) == list(source.fields)


def test_gather_keeps_order_and_repeats(make: Make) -> None:
    source = make(10)
    assert_rows(source, source.gather([7, 0, 7, 9]), [7, 0, 7, 9])


@pytest.mark.parametrize(
    "indices",
    [
        np.array(3),
        np.array([[1, 2, 1], [0, 9, 0]]),
        np.zeros((2, 0, 3), dtype=np.int64),
        np.arange(24).reshape(2, 3, 4) % 10,
        np.arange(10)[::-2],
        np.arange(20).reshape(4, 5).T % 10,
        np.array([9, 0], dtype=np.uint8),
        np.array([9, 0], dtype=np.int32),
        np.array([9, 0], dtype=np.uint64),
        np.array([9, 0], dtype=">i8"),
        [[1, 2], [3, 4]],
        (5, 6),
        range(8, 1, -3),
        range(0),
        [],
        [[], []],
    ],
    ids=repr,
)
def test_result_has_the_shape_of_the_indices(make: Make, indices: Any) -> None:
    source = make(10)
    batch = source.gather(indices)
    plain = np.array(indices, dtype=np.int64)
    assert array(batch, "id").shape == plain.shape
    assert array(batch, "vec").shape == (*plain.shape, 3)
    assert_rows(source, batch, plain)


def test_selected_fields_keep_the_requested_order(make: Make) -> None:
    source = make(5)
    batch = source.gather([4, 1], fields=["vec", "id"])
    assert list(batch) == ["vec", "id"]
    np.testing.assert_array_equal(array(batch, "vec"), array(columns([4, 1]), "vec"))
    assert source.gather([1], fields=[]) == {}


def test_unknown_field_error_lists_the_fields(make: Make) -> None:
    source = make(5)
    with pytest.raises(
        errors.UnknownFieldError, match=r"unknown field 'vecs'.*'id', 'vec'"
    ) as caught:
        source.gather([0], fields=["id", "vecs"])
    assert caught.value.hint == "did you mean 'vec'?"
    with pytest.raises(KeyError):
        source.gather([], fields=["nothing"])
    with pytest.raises(errors.InvalidTypeError, match="list of names"):
        source.gather([0], fields="id")


@pytest.mark.parametrize(
    ("indices", "bad"),
    [([0, -1], -1), ([10], 10), ([3, 99, -5], 99), (np.array([[0, 1], [2, 10]]), 10),
     ([2**63], 2**63), ([2**70], 2**70), (np.array([2**64 - 1], dtype=np.uint64), 2**64 - 1),
     (range(8, 12), 10), (range(2, -3, -2), -2), (-1, -1)],
)  # fmt: skip
def test_index_out_of_range_is_named(make: Make, indices: Any, bad: int) -> None:
    source = make(10)
    with pytest.raises(errors.OutOfRangeError, match=rf"index {bad} .* 10 rows"):
        source.gather(indices)


@pytest.mark.parametrize(
    "indices",
    [[0.0], 1.5, np.array([1.0]), np.array([], dtype=np.float64), [True, False], np.ones(10, bool),
     [True, 3], True, "3", ["a"], None, [None], slice(0, 3), [[1], [2, 3]], {1}, np.array(["x"])],
    ids=repr,
)  # fmt: skip
def test_non_integer_indices_raise(make: Make, indices: Any) -> None:
    source = make(10)
    with pytest.raises(errors.InvalidTypeError):
        source.gather(indices)


def test_out_receives_the_rows(make: Make) -> None:
    source = make(10)
    shape = (2, 2)
    out = {"id": np.full(shape, -7), "vec": np.full((*shape, 3), np.nan, dtype=np.float32)}
    batch = source.gather([[1, 9], [9, 0]], out=out)
    assert batch["id"] is out["id"]
    assert batch["vec"] is out["vec"]
    assert_rows(source, batch, [[1, 9], [9, 0]])


def test_out_without_a_field_allocates_it(make: Make) -> None:
    source = make(10)
    out = {"id": np.zeros(2, dtype=np.int64)}
    batch = source.gather([1, 2], out=out)
    assert batch["id"] is out["id"]
    assert_rows(source, batch, [1, 2])


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("id", np.zeros(2, dtype=np.int32)),
        ("id", np.zeros(3, dtype=np.int64)),
        ("id", np.zeros((2, 1), dtype=np.int64)),
        ("id", np.zeros(4, dtype=np.int64)[::2]),
        ("id", np.broadcast_to(np.int64(0), 2)),
        ("id", np.frombuffer(bytes(16), dtype=np.int64)),
        ("id", [0, 0]),
        ("vec", np.zeros((2, 3))),
        ("vec", np.zeros(2, dtype=np.float32)),
        ("vec", np.zeros((3, 2), dtype=np.float32).T),
        ("tokens", np.zeros(2, dtype=np.int32)),
    ],
)
def test_out_that_does_not_fit_raises(make: Make, name: str, given: Any) -> None:
    source = make(10)
    if name in source.fields:
        with pytest.raises(errors.InvalidError, match=rf"out\['{name}'\]"):
            source.gather([1, 2], out={name: given})


def test_out_with_an_unknown_field_raises(make: Make) -> None:
    source = make(10)
    with pytest.raises(errors.UnknownFieldError):
        source.gather([1], fields=["vec"], out={"id": np.zeros(1, dtype=np.int64)})
    with pytest.raises(errors.InvalidTypeError):
        source.gather([1], out=[np.zeros(1)])  # type: ignore[arg-type]


def test_failed_gather_writes_nothing(make: Make) -> None:
    source = make(10)
    out = {"id": np.full(2, -7)}
    with pytest.raises(errors.OutOfRangeError):
        source.gather([1, 10], out=out)
    assert out["id"].tolist() == [-7, -7]


def test_batches_belong_to_the_caller(make: Make) -> None:
    source = make(10)
    rows = np.array([3, 3, 4])
    first = source.gather(rows)
    kept = source.gather(rows)
    for values in first.values():
        memory = values.values if isinstance(values, Ragged) else values
        assert memory.flags.writeable
        memory[:] = 99
    assert_rows(source, kept, rows)
    assert_rows(source, source.gather(rows), rows)
    assert rows.tolist() == [3, 3, 4]


def test_gather_of_the_whole_source_is_a_copy(make: Make) -> None:
    source = make(6)
    for batch in (source.gather(range(6)), source[:].gather(np.arange(6))):
        array(batch, "vec")[:] = 99
    assert_rows(source, source.gather(range(6)), range(6))


def test_row_is_a_dict_of_scalars_and_arrays(make: Make) -> None:
    source = make(10)
    row = source[7]
    assert list(row) == list(source.fields)
    assert row["id"] == 7
    assert isinstance(row["id"], np.int64)
    np.testing.assert_array_equal(row["vec"], np.array([7, 7.25, 7.5], "f4"), strict=True)
    if "tokens" in row:
        np.testing.assert_array_equal(row["tokens"], tokens(7), strict=True)
    row["vec"][:] = 0
    assert source[7]["vec"].tolist() == [7, 7.25, 7.5]
    assert source[-1]["id"] == 9
    assert source[np.int16(-10)]["id"] == 0
    assert source[np.array(4)]["id"] == 4


@pytest.mark.parametrize("key", [10, -11, np.int64(10), 2**70, [10], [0, -11], [2**70], range(11),
                                 np.ones(9, dtype=bool), [True] * 11])  # fmt: skip
def test_keys_out_of_range_raise_index_error(make: Make, key: Any) -> None:
    source = make(10)
    with pytest.raises(errors.OutOfRangeError):
        source[key]


@pytest.mark.parametrize("key", [1.0, b"id", None, True, np.True_, np.ones((), bool), (1, 2), [0.5],
                                 {1: 2}, [[1], [2, 3]], slice("a", None)])  # fmt: skip
def test_keys_of_other_types_raise_type_error(make: Make, key: Any) -> None:
    source = make(10)
    with pytest.raises(errors.InvalidTypeError):
        source[key]


def test_field_name_is_a_key_only_for_record_stores(make: Make) -> None:
    source = make(10)
    if isinstance(source, RecordStore):
        assert np.asarray(source["id"]).tolist() == list(range(10))
        return
    with pytest.raises(errors.InvalidTypeError):
        source["id"]


def test_zero_step_and_nested_lists_raise_value_error(make: Make) -> None:
    source = make(10)
    with pytest.raises(errors.InvalidError):
        source[::0]
    with pytest.raises(errors.InvalidError):
        source[[[1, 2], [3, 4]]]


def keys(length: int) -> st.SearchStrategy[Any]:
    """Draw a key with which NumPy selects rows."""
    bound = st.none() | st.integers(-length - 2, length + 2)
    step = st.none() | st.integers(-3, 3).filter(bool)
    chosen = [
        st.builds(slice, bound, bound, step),
        st.lists(st.booleans(), min_size=length, max_size=length).map(
            lambda mask: np.array(mask, dtype=bool)
        ),
        st.just([]),
        st.just(Ellipsis),
    ]
    if length:
        member = st.integers(-length, length - 1)
        chosen += [st.lists(member), st.lists(member).map(lambda k: np.array(k, dtype=np.int32))]
        chosen += [
            st.builds(range, st.integers(0, length - 1), st.integers(0, length)),
            st.builds(range, st.integers(-length, -1), st.integers(-length, 0)),
        ]
    return st.one_of(chosen)


@pytest.mark.parametrize("name", SOURCES)
@hypothesis.settings(max_examples=60)
@hypothesis.given(data=st.data())
def test_brackets_select_as_numpy_does(name: str, data: st.DataObject) -> None:
    oracle = np.arange(data.draw(st.integers(0, 9)))
    view = SOURCES[name](len(oracle))
    for _ in range(data.draw(st.integers(1, 4))):
        key = data.draw(keys(len(oracle)))
        view, oracle = view[key], oracle[key]
        assert isinstance(view, Subset)
        assert not isinstance(view.source, Subset)
        assert len(view) == len(oracle)
        assert_rows(view, view.gather(np.arange(len(view))), oracle)
    if len(oracle):
        position = data.draw(st.integers(-len(oracle), len(oracle) - 1))
        assert view[position]["id"] == oracle[position]


def test_slices_of_slices_stay_ranges(make: Make) -> None:
    whole = make(100)[:]
    view = whole[10:90][::-3][2:20:2]
    assert ids(view) == list(range(100))[10:90][::-3][2:20:2]
    # A source that is itself a selection by array stays one.
    assert isinstance(view.rows, range) == isinstance(whole.rows, range)


def test_view_does_not_follow_changes_of_the_index_array(make: Make) -> None:
    source = make(10)
    chosen = np.array([1, 2, 3])
    view = source[chosen]
    chosen[:] = 9
    assert ids(view) == [1, 2, 3]


def test_getitems_returns_a_list_of_rows(make: Make) -> None:
    source = make(10)
    rows = source.__getitems__([4, 4, 0])
    assert [row["id"] for row in rows] == [4, 4, 0]
    rows[0]["vec"][:] = 0
    assert rows[1]["vec"].tolist() == [4, 4.25, 4.5]
    if "tokens" in source.fields:
        assert [row["tokens"].tolist() for row in source.__getitems__([6, 4])] == [[6, 7], []]
    assert source.__getitems__([]) == []
    with pytest.raises(errors.OutOfRangeError):
        source.__getitems__([0, -1])
    with pytest.raises(errors.InvalidError):
        source.__getitems__([[0, 1]])


def test_iteration_yields_every_row_once(make: Make) -> None:
    source = make(150)
    for _ in range(2):
        assert [int(row["id"]) for row in source] == list(range(150))


def test_empty_source(make: Make) -> None:
    source = make(0)
    assert len(source) == 0
    assert list(source) == []
    batch = source.gather([])
    assert_rows(source, batch, [])
    assert len(source[:]) == 0
    with pytest.raises(errors.OutOfRangeError, match="0 rows"):
        source.gather([0])
    with pytest.raises(IndexError):
        source[0]
    assert [len(part) for part in source.split((1, 1))] == [0, 0]


def test_repr_is_one_line(make: Make) -> None:
    for source in (make(3), make(3)[1:], make(0)):
        text = repr(source)
        assert "\n" not in text
        assert f"{len(source)} rows" in text


def test_split_returns_each_row_once(make: Make) -> None:
    source = make(10)
    train, test = source.split((0.8, 0.2), seed=3)
    assert (len(train), len(test)) == (8, 2)
    assert sorted(ids(train) + ids(test)) == list(range(10))
    assert ids(train) == ids(source.split((0.8, 0.2), seed=3)[0])
