"""Ragged batches: errors, padding and packing, and batches by length."""

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError, UnsupportedError
from relive.model import Ragged, bucket_by_length, length_batches


@pytest.fixture
def ragged() -> Ragged:
    return Ragged.from_list([[1, 2, 3], [], [4, 5]])


@pytest.fixture
def images() -> Ragged:
    return Ragged.from_list([np.ones((2, 3), "u1"), np.full((3, 1), 2, "u1")])


def test_rows_are_slices_of_the_values(ragged: Ragged) -> None:
    assert ragged.values.tolist() == [1, 2, 3, 4, 5]
    assert ragged.offsets.tolist() == [0, 3, 3, 5]
    assert ragged.lengths.tolist() == [3, 0, 2]
    assert len(ragged) == 3
    assert ragged[0].tolist() == [1, 2, 3]
    assert ragged[-1].tolist() == [4, 5]
    assert [row.tolist() for row in ragged] == [[1, 2, 3], [], [4, 5]]
    assert ragged.dtype == np.int64
    assert (ragged.inner, ragged.ndim, ragged.nbytes) == ((), 1, 40)
    ragged[2][:] = 0
    assert ragged.values.tolist() == [1, 2, 3, 0, 0]
    with pytest.raises(OutOfRangeError):
        ragged[3]


def test_selections_are_ragged_again(ragged: Ragged) -> None:
    assert ragged[1:] == Ragged.from_list([[], [4, 5]])
    assert ragged[::-1] == Ragged.from_list([[4, 5], [], [1, 2, 3]])
    assert ragged[[2, 2]] == Ragged.from_list([[4, 5], [4, 5]])
    assert ragged[np.array([True, False, True])] == Ragged.from_list([[1, 2, 3], [4, 5]])
    assert len(ragged[3:]) == 0
    with pytest.raises(OutOfRangeError):
        ragged.take([-1])


def test_several_variable_dimensions(images: Ragged) -> None:
    assert images.shapes is not None
    assert images.shapes.tolist() == [[2, 3], [3, 1]]
    assert images[0].shape == (2, 3)
    assert images.ndim == 2
    assert images[::-1][1].shape == (2, 3)
    assert images[1:][0].tolist() == [[2], [2], [2]]


def test_one_inner_shape_needs_no_shapes() -> None:
    ragged = Ragged.from_list([np.zeros((2, 3)), np.zeros((0, 3)), np.zeros((1, 3))])
    assert ragged.shapes is None
    assert ragged.inner == (3,)
    assert [row.shape for row in ragged] == [(2, 3), (0, 3), (1, 3)]


@pytest.mark.parametrize(
    ("values", "offsets", "shapes", "text"),
    [
        (np.zeros(()), [0], None, "at least one dimension"),
        ([1, 2], [], None, "offsets"),
        ([1, 2], [[0, 2]], None, "`offsets` must have the shape"),
        ([1, 2], [1, 2], None, "from 0 to the number of values, 2, got 1 to 2"),
        ([1, 2], [0, 1], None, "got 0 to 1"),
        ([1, 2], [0, 2, 1, 2], None, "must not decrease, but they do after row 1"),
        ([1, 2], [0.0, 2.0], None, "integers"),
        ([1, 2], [0, 2], [[2.0]], "integers"),
        ([[1], [2]], [0, 2], [[2, 1]], "must have one dimension"),
        ([1, 2], [0, 2], [2], "one shape for each of"),
        ([1, 2], [0, 2], [[1, 2], [0, 0]], "one shape for each of"),
        ([1, 2], [0, 2], np.zeros((1, 0), dtype=int), "one shape for each of"),
        ([1, 2], [0, 2], [[1, 1]], r"row 0 has 2 values, but its shape is \(1, 1\)"),
        ([1, 2], [0, 2], [[-1, -2]], "row 0"),
        ([], [0, 0], [[2**32, 2**32]], "row 0"),
    ],
)
def test_inconsistent_arguments_raise(values: Any, offsets: Any, shapes: Any, text: str) -> None:
    with pytest.raises((InvalidError, InvalidTypeError), match=text):
        Ragged(values, offsets, shapes)


def test_from_list_needs_one_dtype_or_an_explicit_one() -> None:
    with pytest.raises(InvalidError, match="row 0 has the dtype int64, but row 2 has float64"):
        Ragged.from_list([[1], [], [0.5]])
    assert Ragged.from_list([[1], [], [0.5]], dtype="f4").dtype == np.float32
    assert Ragged.from_list([np.zeros(0, "u1"), []]).dtype == np.uint8
    assert Ragged.from_list([]).dtype == np.float64
    assert Ragged.from_list([], dtype="i2").dtype == np.int16
    assert [row.tolist() for row in Ragged.from_list([["a"], ["bcd"]])] == [["a"], ["bcd"]]
    for rows in ([1, 2], [[1], [[2]]]):
        with pytest.raises(InvalidError, match="dimensions"):
            Ragged.from_list(rows)  # type: ignore[arg-type]


def test_from_list_copies() -> None:
    row = np.array([1, 2])
    Ragged.from_list([row]).values[:] = 0
    assert row.tolist() == [1, 2]


def test_to_list_copies(ragged: Ragged) -> None:
    ragged.to_list()[0][:] = 0
    assert ragged[0].tolist() == [1, 2, 3]


def test_equality(ragged: Ragged, images: Ragged) -> None:
    assert ragged == Ragged.from_list([[1, 2, 3], [], [4, 5]])
    assert ragged != Ragged.from_list([[1, 2], [3], [4, 5]])
    assert ragged != Ragged.from_list([[1, 2, 3], [], [4, 6]])
    assert images != Ragged(images.values, images.offsets)
    assert images != Ragged(images.values, images.offsets, [[3, 2], [1, 3]])
    assert images == Ragged(images.values, images.offsets, images.shapes)
    assert ragged != [[1, 2, 3], [], [4, 5]]
    with pytest.raises(TypeError):
        hash(ragged)


def test_repr(ragged: Ragged, images: Ragged) -> None:
    assert repr(ragged) == "Ragged(3 rows, 5 values, int64)"
    assert repr(images) == "Ragged(2 rows, 9 values, uint8, 2 dimensions)"
    assert repr(Ragged(np.zeros((2, 3)), [0, 2])) == "Ragged(1 rows, 2 values, float64 (3,))"


def test_pickle(ragged: Ragged, images: Ragged) -> None:
    for each in (ragged, images):
        assert pickle.loads(pickle.dumps(each)) == each  # noqa: S301 - our own data


def test_concat(ragged: Ragged, images: Ragged) -> None:
    assert Ragged.concat([ragged[:1], ragged[1:]]) == ragged
    assert Ragged.concat([images, images[:1]]) == images[[0, 1, 0]]
    with pytest.raises(InvalidError, match="cannot concatenate"):
        Ragged.concat([ragged, images])
    with pytest.raises(InvalidError, match="must not be empty"):
        Ragged.concat([])


def test_pad_to_the_longest(ragged: Ragged) -> None:
    array, mask = ragged.pad()
    assert array.tolist() == [[1, 2, 3], [0, 0, 0], [4, 5, 0]]
    assert mask.tolist() == [[True] * 3, [False] * 3, [True, True, False]]
    assert array.dtype == np.int64
    assert mask.dtype == np.bool_


def test_pad_to_a_length(ragged: Ragged) -> None:
    assert ragged.pad(to=4, value=-1)[0].tolist() == [[1, 2, 3, -1], [-1] * 4, [4, 5, -1, -1]]
    assert ragged.pad(multiple_of=4)[0].shape == (3, 4)
    assert ragged.pad(multiple_of=3)[0].shape == (3, 3)
    with pytest.raises(InvalidError, match="row 0 has the length 3, but `to` is 2") as caught:
        ragged.pad(to=2)
    assert caught.value.hint == "pass truncate=True to shorten longer rows"
    array, mask = ragged.pad(to=2, truncate=True)
    assert array.tolist() == [[1, 2], [0, 0], [4, 5]]
    assert mask.tolist() == [[True, True], [False, False], [True, True]]
    assert ragged.pad(to=0, truncate=True)[0].shape == (3, 0)


def test_pad_several_dimensions(images: Ragged) -> None:
    array, mask = images.pad()
    assert array.tolist() == [
        [[1, 1, 1], [1, 1, 1], [0, 0, 0]],
        [[2, 0, 0], [2, 0, 0], [2, 0, 0]],
    ]
    assert mask.tolist() == (array > 0).tolist()
    assert images.pad(to=(4, 5))[0].shape == (2, 4, 5)
    assert images.pad(multiple_of=2)[0].shape == (2, 4, 4)
    assert images.pad(multiple_of=(2, 3))[0].shape == (2, 4, 3)
    with pytest.raises(InvalidError, match=r"row 1 has the length \(3, 1\)"):
        images.pad(to=(2, 3))
    array, mask = images.pad(to=(2, 2), truncate=True)
    assert array.tolist() == [[[1, 1], [1, 1]], [[2, 0], [2, 0]]]
    assert mask.tolist() == (array > 0).tolist()
    with pytest.raises(InvalidError, match="one number for each of 2 dimensions"):
        images.pad(to=(1, 2, 3))


def test_pad_rejects_invalid_arguments(ragged: Ragged) -> None:
    with pytest.raises(InvalidError, match="not both"):
        ragged.pad(to=3, multiple_of=2)
    for arguments in ({"to": -1}, {"multiple_of": 0}, {"value": 0.5}, {"value": "x"}):
        with pytest.raises(InvalidError):
            ragged.pad(**arguments)
    with pytest.raises(InvalidError, match="the fill value -1 cannot be stored as uint8"):
        Ragged.from_list([[1]], dtype="u1").pad(value=-1)
    with pytest.raises(InvalidTypeError):
        ragged.pad(to=2.5)  # type: ignore[arg-type]
    assert np.isnan(Ragged.from_list([[1.0], []]).pad(value=np.nan)[0][1, 0])


def test_pad_of_an_empty_ragged() -> None:
    array, mask = Ragged(np.empty((0, 3)), [0]).pad()
    assert (array.shape, mask.shape) == ((0, 0, 3), (0, 0))


def test_pack_places_rows_end_to_end() -> None:
    packed = Ragged.from_list([[1, 1], [2, 2, 2], [3], [4, 4]]).pack(5)
    assert [rows.tolist() for rows in packed.rows] == [[1, 0], [3, 2]]
    assert packed.values.tolist() == [[2, 2, 2, 1, 1], [4, 4, 3, 0, 0]]
    assert packed.segments.tolist() == [[1, 1, 1, 2, 2], [1, 1, 2, 0, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 0, 0]]


def test_pack_keeps_the_inner_shape_and_fills() -> None:
    packed = Ragged.from_list([np.ones((2, 3))]).pack(4, value=-1)
    assert packed.values.shape == (1, 4, 3)
    assert packed.values[0, 2:].tolist() == [[-1] * 3] * 2


def test_pack_raises_for_a_row_that_does_not_fit(images: Ragged) -> None:
    with pytest.raises(
        InvalidError, match="row 1 has the length 3, which is more than the capacity 2"
    ):
        Ragged.from_list([[1], [2, 2, 2]]).pack(2)
    with pytest.raises(InvalidError, match="capacity"):
        Ragged.from_list([[1]]).pack(0)
    with pytest.raises(UnsupportedError):
        images.pack(10)


def test_pack_of_an_empty_ragged() -> None:
    assert Ragged.from_list([]).pack(4).values.shape == (0, 4)
    assert len(Ragged.from_list([[], []]).pack(4).rows) == 1


def test_bucket_contains_lengths_up_to_its_boundary() -> None:
    buckets = bucket_by_length([4, 1, 9, 8, 5, 0], [4, 8])
    assert [bucket.tolist() for bucket in buckets] == [[0, 1, 5], [3, 4], [2]]
    assert all(bucket.dtype == np.int64 for bucket in buckets)


def test_buckets_at_the_boundaries() -> None:
    assert [bucket.tolist() for bucket in bucket_by_length([], [2])] == [[], []]
    assert [bucket.tolist() for bucket in bucket_by_length([3, 1], [])] == [[0, 1]]


@pytest.mark.parametrize(
    ("lengths", "boundaries"), [([1], [2, 2]), ([1], [3, 2]), ([1], 2), ([-1], [2]), ([[1]], [2])]
)
def test_bucket_rejects_invalid_lengths(lengths: Any, boundaries: Any) -> None:
    with pytest.raises(InvalidError):
        bucket_by_length(lengths, boundaries)


def test_batches_have_similar_lengths() -> None:
    lengths = np.random.default_rng(1).integers(0, 1000, size=103)
    batches = length_batches(lengths, 10, seed=5)
    assert sorted(np.concatenate(batches).tolist()) == list(range(103))
    assert sorted(map(len, batches)) == [3] + [10] * 10
    spans = sorted((lengths[rows].min(), lengths[rows].max()) for rows in batches)
    assert all(low[1] <= high[0] for low, high in pairwise(spans))


def test_batches_depend_only_on_the_seed() -> None:
    def order(seed: int) -> list[list[int]]:
        return [rows.tolist() for rows in length_batches([3, 3, 1, 1, 2, 2, 3, 1], 2, seed)]

    assert order(0) == order(0)
    assert len({str(order(seed)) for seed in range(8)}) > 4
    # Fixed values: the same rows on every machine and with every version.
    assert order(0) == [[6, 0], [3, 2], [5, 1], [7, 4]]


def test_batches_by_length_rejects_invalid_arguments() -> None:
    assert length_batches([], 4) == []
    for arguments in (([1], 0), ([1], 2, -1), ([-1], 2)):
        with pytest.raises(InvalidError):
            length_batches(*arguments)
    with pytest.raises(InvalidTypeError):
        length_batches([1.5], 2)
