"""The base class of sources, and the conversion of indices, beyond the source contract."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive.errors import InvalidTypeError, OutOfRangeError, UnknownFieldError
from relive.model import Batch, Field, Source
from relive.model.source import Indices, as_indices, check_out, pick_fields, positions, resolve


class Counted(Source):
    """Rows of zeros that count how often they are read."""

    def __init__(self, length: int, fields: Mapping[str, Field]) -> None:
        self._length = length
        self._fields = fields
        self.gathers: list[int] = []

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._fields

    def __len__(self) -> int:
        return self._length

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        rows = as_indices(indices, len(self))
        self.gathers.append(rows.size)
        return {
            name: np.zeros(rows.shape + field.shape, dtype=field.array_dtype)
            for name, field in pick_fields(self.fields, fields).items()
        }


def test_source_needs_fields_length_and_gather() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Source()  # type: ignore[abstract]


def test_getitems_is_one_gather() -> None:
    source = Counted(100, {"a": Field("f4")})
    assert len(source.__getitems__(list(range(50)))) == 50
    assert source.gathers == [50]


@pytest.mark.parametrize(
    ("field", "chunk"),
    [(Field("u1"), 1024), (Field("u1", (1 << 12,)), 256), (Field("u1", (1 << 22,)), 1),
     (Field("str"), 64), (Field("u1", (0,)), 1024)],
)  # fmt: skip
def test_iteration_reads_chunks_of_bounded_size(field: Field, chunk: int) -> None:
    source = Counted(2 * chunk + 1, {"a": field})
    assert sum(1 for _ in source) == 2 * chunk + 1
    assert source.gathers == [chunk, chunk, 1]


def test_object_fields_round_trip() -> None:
    assert Counted(3, {"a": Field("json")})[0] == {"a": 0}


def test_default_native_table_is_none() -> None:
    source = Counted(3, {})
    assert source.native_table() is None
    assert source[1:].native_table() is None


def test_repr() -> None:
    assert repr(Counted(3, {})) == "Counted(3 rows)"
    some = {"a": Field("f4", (3,)), "b": Field("str"), "c": Field("i8", ragged=True)}
    assert repr(Counted(3, some)) == "Counted(3 rows: a float32 (3,), b str, c int64 ragged)"
    assert repr(Counted(3, some)[:2]) == (
        "Subset(2 rows: a float32 (3,), b str, c int64 ragged, of Counted)"
    )
    many = {f"f{k}": Field("f4") for k in range(30)}
    assert repr(Counted(3, many)).endswith("f4 float32, 25 more)")
    assert "\n" not in repr(Counted(3, {"a\nb": Field("f4")}))


def test_pick_fields() -> None:
    fields = {"a": Field("f4"), "b": Field("i8")}
    assert pick_fields(fields, None) == fields
    assert pick_fields(fields, None) is not fields
    assert list(pick_fields(fields, ("b", "a"))) == ["b", "a"]
    assert list(pick_fields(fields, ["b", "b"])) == ["b"]
    with pytest.raises(UnknownFieldError, match="the fields are none"):
        pick_fields({}, ["a"])
    wrong: list[Any] = ["a", b"a", 3, [["a"]]]
    for asked in wrong:
        with pytest.raises(InvalidTypeError):
            pick_fields(fields, asked)


def test_check_out_returns_the_arrays() -> None:
    fields = {"a": Field("f4", (2,)), "s": Field("str")}
    assert check_out(None, fields, (3,)) == {}
    out = {"a": np.zeros((3, 2), dtype="f4"), "s": np.empty(3, dtype=object)}
    given = check_out(out, fields, (3,))
    assert given == out
    assert given is not out


def test_contiguous_int64_is_not_copied() -> None:
    array = np.array([[3, 1], [0, 2]])
    assert as_indices(array, 4) is array
    assert as_indices(array, 4, check=False) is array


def test_result_is_contiguous_int64() -> None:
    for given in (np.arange(10)[::2], np.asfortranarray(np.ones((2, 3), dtype=int)), [1, 2], 3, []):
        array = as_indices(given, 10)
        assert array.dtype == np.int64
        assert array.flags.c_contiguous
        assert array.shape == np.shape(given)


def test_range_check_can_be_disabled() -> None:
    assert as_indices([-1, 99], 10, check=False).tolist() == [-1, 99]
    # This index does not fit in 64 bits, so a later check could not find it.
    with pytest.raises(OutOfRangeError):
        as_indices(np.array([2**63], dtype=np.uint64), 10, check=False)


@pytest.mark.parametrize(
    ("numbers", "bad"),
    [
        (range(10**30), 5),
        (range(3, 10**12, 10**6), 1000003),
        (range(4, -(10**12), -3), -2),
        (range(-1, 3), -1),
        (range(5, 6), 5),
    ],
)
def test_large_ranges_are_checked_without_iteration(numbers: range, bad: int) -> None:
    with pytest.raises(OutOfRangeError, match=f"index {bad} is out of range for 5 rows"):
        as_indices(numbers, 5)


def test_empty_ranges_may_end_anywhere() -> None:
    assert as_indices(range(10**30, 0), 5).shape == (0,)
    assert resolve(range(10**30, 0), 5) == range(0)
    with pytest.raises(OutOfRangeError):
        resolve(range(10**30), 5)


def test_slices_and_ranges_stay_ranges() -> None:
    assert resolve(slice(None, None, -2), 10**15) == range(10**15 - 1, -1, -2)
    assert resolve(range(3, 10**15, 7), 10**15) == range(3, 10**15, 7)
    assert resolve(..., 10**15) == range(10**15)


def test_resolved_arrays_are_private_and_read_only() -> None:
    given = np.array([1, -1])
    rows = resolve(given, 4)
    assert isinstance(rows, np.ndarray)
    assert rows.tolist() == [1, 3]
    assert not rows.flags.writeable
    assert not np.shares_memory(rows, given)


def test_error_names_the_index_as_passed() -> None:
    with pytest.raises(OutOfRangeError, match="index -6 is out of range for 5 rows"):
        resolve([-1, -6], 5)


def test_step_may_exceed_the_length() -> None:
    assert positions(slice(3, None, 2**70), 9) == range(3, 4)
    assert positions(slice(9, None, 2**70), 9) == range(0)
    assert positions(range(3, 2**62, 2**62), 9) == range(3, 4)


def test_position_of_another_type_has_a_hint() -> None:
    with pytest.raises(InvalidTypeError) as caught:
        positions(1.5, 9)
    assert caught.value.hint == "use an integer, a slice, or a list or array of integers"
