"""The one rule for times."""

from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.model.clock import INT64_MAX, INT64_MIN, as_time, as_times, grid
from relive.model.source import positions


@pytest.mark.parametrize(
    "value", [5, np.int8(5), np.uint64(5), np.array(5)], ids=lambda value: type(value).__name__
)
def test_time_may_be_any_integer_type(value: Any) -> None:
    assert as_time(value) == 5
    assert type(as_time(value)) is int
    assert as_time(2**100) == 2**100


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([], []),
        ((), []),
        (range(0), []),
        (range(5, 0, -2), [5, 3, 1]),
        (range(INT64_MIN, INT64_MAX, 2**63), [INT64_MIN, 0]),
        (range(INT64_MAX, INT64_MAX + 5, 9), [INT64_MAX]),
        (range(0, 2**63, 2**62), [0, 2**62]),
        ([3, 1, 3], [3, 1, 3]),
        ([np.int64(3), 1], [3, 1]),
        ([INT64_MIN, INT64_MAX], [INT64_MIN, INT64_MAX]),
        ([np.uint64(2**63 - 1), -1], [INT64_MAX, -1]),
        (np.array([3, 1], dtype=np.uint8), [3, 1]),
        (np.array([3, 1], dtype=">i8"), [3, 1]),
        (np.array([3, 2**63 - 1], dtype=np.uint64), [3, INT64_MAX]),
        (np.array([3, 1], dtype=object), [3, 1]),
        (np.array([], dtype=np.int64), []),
        (np.arange(6)[::-2], [5, 3, 1]),
    ],
    ids=repr,
)
def test_times_are_integers_in_the_order_given(values: Any, wanted: list[int]) -> None:
    times = as_times(values)
    assert times.dtype == np.int64
    assert times.flags.c_contiguous
    assert times.tolist() == wanted


@pytest.mark.parametrize(
    "values",
    [[2**63], [-(2**63) - 1], [2**63, -1], np.array([2**63], dtype=np.uint64), [2**70, 0],
     range(2**62, 2**70, 2**60), range(0, -(2**80), -1), range(0, 2**64, 2**62)],
    ids=repr,
)  # fmt: skip
def test_times_beyond_64_bits_are_named(values: Any) -> None:
    with pytest.raises(errors.InvalidError, match=r"the time -?\d+ does not fit in 64 bits"):
        as_times(values)


def test_time_before_64_bits_may_have_its_own_error() -> None:
    with pytest.raises(KeyError, match=str(-(2**70))):
        as_times([5, -(2**70)], KeyError)
    with pytest.raises(errors.InvalidError):
        as_times([5, 2**70], KeyError)


@pytest.mark.parametrize(
    "values",
    [[1.0], [1, 2.5], np.array([1.0]), np.array([]), ["1"], [None], "12", 5, None,
     [[1], [2, 3]], [[1, 2]], np.array(["2020"], dtype="M8[ns]"), {1: 2}, [1j]],
    ids=repr,
)  # fmt: skip
def test_times_of_other_types_raise(values: Any) -> None:
    with pytest.raises(errors.InvalidTypeError):
        as_times(values)


@pytest.mark.parametrize("values", [[True], [1, True], (np.True_, 2), np.ones(2, bool)], ids=repr)
def test_boolean_times_raise(values: Any) -> None:
    with pytest.raises(errors.MaskError):
        as_times(values)


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(0, 10, 3), (5, 5, 1), (9, 5, 1), (INT64_MIN, INT64_MAX, 2**62), (INT64_MAX, 2**64, 2**64),
     (INT64_MIN, INT64_MIN + 2, 1), (-7, 8, 2**70), (INT64_MIN, 2**63, 2**64 - 1)],
)  # fmt: skip
def test_grid_is_a_range(start: int, stop: int, step: int) -> None:
    assert grid(start, stop, step).tolist() == list(range(start, stop, step))


def test_grid_has_limits() -> None:
    with pytest.raises(errors.InvalidError, match="fit in 64 bits"):
        grid(0, 2**64, 2**63)
    with pytest.raises(errors.InvalidError, match="fit in 64 bits"):
        grid(-(2**70), 5, 2**70)
    with pytest.raises(errors.InvalidError, match="but at most") as caught:
        grid(0, 2**62, 1)
    assert "nanoseconds" in str(caught.value.hint)


def test_step_may_exceed_the_length() -> None:
    assert positions(slice(3, None, 2**70), 9) == range(3, 4)
    assert positions(slice(9, None, 2**70), 9) == range(0)
    assert positions(range(3, 2**62, 2**62), 9) == range(3, 4)


def test_errors_have_hints() -> None:
    with pytest.raises(errors.InvalidTypeError) as caught:
        positions(1.5, 9)
    assert caught.value.hint == "use an integer, a slice, or a list or array of integers"
    with pytest.raises(errors.InvalidTypeError) as caught:
        as_time(1.5)
    assert caught.value.hint == "round it with int(value)"
