"""Rates and gaps of signals."""

import numpy as np
import pytest

from relive.model.clock import INT64_MAX, INT64_MIN
from relive.view.timing import elapsed_ns, measure_timing


def test_regular_signal_has_a_rate_and_no_gaps() -> None:
    found = measure_timing(np.arange(100, dtype=np.int64) * 5_000_000)
    assert found.rate_hz == pytest.approx(200)
    assert (found.median_step_ns, found.longest_step_ns, found.gaps) == (5_000_000, 5_000_000, ())


def test_gap_is_more_than_five_median_steps() -> None:
    steps = np.full(100, 10, dtype=np.int64)
    steps[30] = 50
    steps[60] = 51
    found = measure_timing(np.cumsum(steps))
    assert found.gaps == (59,)
    assert found.longest_step_ns == 51
    assert found.is_gap(51)
    assert not found.is_gap(50)


def test_irregular_signal_has_no_gaps() -> None:
    found = measure_timing(np.cumsum(np.array([1, 1, 1, 300, 7, 2, 900, 1, 40, 5], dtype=np.int64)))
    assert found.gaps == ()
    assert not found.is_gap(10**18)


@pytest.mark.parametrize("stamps", [[], [7]])
def test_median_step_needs_two_records(stamps: list[int]) -> None:
    found = measure_timing(np.array(stamps, dtype=np.int64))
    assert (found.rate_hz, found.median_step_ns, found.longest_step_ns, found.gaps) == (
        None,
        None,
        None,
        (),
    )


def test_times_may_span_all_of_int64() -> None:
    stamps = np.array([INT64_MIN, 0, INT64_MAX], dtype=np.int64)
    assert elapsed_ns(stamps).tolist() == [0, 2**63, 2**64 - 1]
    assert measure_timing(stamps).longest_step_ns == 2**63
