"""The clock of recordings, and the conversion of times."""

import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.episodes import now_ns
from relive.model.clock import INT64_MAX, INT64_MIN, as_time, as_times, grid

STEPPED = """
import time
wall = time.time_ns
from relive.episodes import now_ns
first = now_ns()
assert abs(first - wall()) < 10**9
time.time_ns = lambda: wall() - 3600 * 10**9   # the clock of the machine is set back
second = now_ns()
assert 0 < second - first < 10**9
"""


def test_now_ns_is_an_integer_near_the_wall_clock() -> None:
    assert type(now_ns()) is int
    assert abs(now_ns() - time.time_ns()) < 3600 * 10**9


def test_now_ns_never_decreases_in_any_thread() -> None:
    seen: list[list[int]] = [[] for _ in range(4)]

    def read_clock(into: list[int]) -> None:
        into.extend(now_ns() for _ in range(5000))

    threads = [threading.Thread(target=read_clock, args=(each,)) for each in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stamps in seen:
        assert stamps == sorted(stamps)
    assert max(map(max, seen)) - min(map(min, seen)) < 60 * 10**9


def test_now_ns_ignores_changes_of_the_wall_clock() -> None:
    done = subprocess.run([sys.executable, "-c", STEPPED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_now_ns_advances_like_the_monotonic_clock() -> None:
    before, began = now_ns(), time.monotonic_ns()
    time.sleep(0.02)
    assert now_ns() - before == pytest.approx(time.monotonic_ns() - began, abs=5_000_000)


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


def test_time_of_another_type_has_a_hint() -> None:
    with pytest.raises(errors.InvalidTypeError) as caught:
        as_time(1.5)
    assert caught.value.hint == "round it with int(value)"
