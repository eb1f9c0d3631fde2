"""The index rule at its edges; `tests/contracts` has what every source makes of it."""

import numpy as np
import pytest

from relive.errors import OutOfRangeError
from relive.model.source import as_indices, resolve


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
    with pytest.raises(OutOfRangeError):  # no 64-bit integer could say so later
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
