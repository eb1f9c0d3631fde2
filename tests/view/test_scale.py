"""Ticks and labels of axes."""

import math
import sys

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from relive.view.downsample import Curve
from relive.view.scale import (
    clock_text,
    cut,
    duration_text,
    height_range,
    rate_text,
    share,
    tick_texts,
    ticks,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE, FINITE, st.integers(2, 10))
def test_ticks_are_within_the_range_and_distinct(a: float, b: float, most: int) -> None:
    low, high = sorted((a, b))
    found = ticks(low, high, most)
    assert 1 <= len(found) <= max(most, 3)
    slack = 1e-6 * (high / 2 - low / 2) + 4 * math.ulp(max(abs(low), abs(high)))
    assert all(low - slack <= tick <= high + slack for tick in found)
    assert len(tick_texts(found)) == len(found)


def test_ticks_are_round() -> None:
    assert ticks(0.3, 9.9, 5) == [2, 4, 6, 8]
    assert ticks(0, 10, 11) == list(range(11))
    assert ticks(5, 5, 4) == [5]
    assert tick_texts([1e6 + 0.25, 1e6 + 0.5]) == ["1000000.2", "1000000.5"]
    assert tick_texts([0.0, 4000.0]) == ["0", "4000"]
    assert tick_texts([-1.79769e308, 0.0]) == ["-1.8e+308", "0"]


def test_value_range_has_a_margin_and_stays_finite() -> None:
    def around(*heights: float) -> tuple[float, float]:
        return height_range([Curve("", np.zeros(len(heights)), np.array(heights))])

    assert around(0, 10) == pytest.approx((-0.6, 10.6))
    assert around(4) == (2, 6)
    assert around(0) == (-0.5, 0.5)
    assert around(np.nan) == (0, 1)
    most = sys.float_info.max
    assert around(-most, most) == (-most, most)
    assert share(np.array([-most, 0, most]), -most, most).tolist() == [0, 0.5, 1]


def test_texts_of_durations_times_and_rates() -> None:
    assert duration_text(1_500_000_000) == "1.5 s"
    assert duration_text(900) == "900 ns"
    assert duration_text(3 * 3600 * 10**9) == "3 h"
    assert duration_text(90 * 10**9) == "90 s"
    assert clock_text(1_760_000_000_123_456_789) == "2025-10-09 08:53:20.123 UTC"
    assert clock_text(-5) == "-5 ns"
    assert rate_text(99_999.7) == "100,000"
    assert rate_text(29.97) == "30"
    assert rate_text(0.4444) == "0.444"
    assert cut("a\nb\x1b", 9) == "a·b·"
    assert cut("abcdef", 4) == "abc…"
