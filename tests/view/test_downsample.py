"""Downsampled curves keep every visible extreme."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from relive.view.downsample import (
    COLUMNS,
    Curve,
    Downsampler,
    as_steps,
    break_curve,
    isolated_points,
)

NOTHING = np.empty(0)


def thinned(across: Any, heights: Any, parts: int = 1, breaks: Any = NOTHING) -> Curve:
    reduced = Downsampler(1)
    for part in np.array_split(np.arange(len(across)), parts):
        if len(part):
            reduced.add(across[part], heights[part][:, None].copy())
    return reduced.curves([""], breaks)[0]


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_every_column_keeps_first_minimum_maximum_and_last(seed: int, parts: int) -> None:
    random = np.random.default_rng(seed)
    across = np.sort(random.random(6000))
    heights = random.normal(size=6000)
    curve = thinned(across, heights, parts)
    columns = (across * COLUMNS).astype(int)
    used = np.unique(columns)
    assert len(curve.y) == 4 * len(used)
    for four, column in zip(curve.y.reshape(-1, 4), used, strict=True):
        inside = heights[columns == column]
        assert four.tolist() == [inside[0], inside.min(), inside.max(), inside[-1]]
    assert bool((np.diff(curve.x) >= 0).all())


def test_spike_in_a_million_points_is_kept() -> None:
    heights = np.zeros(1_000_000)
    heights[654_321] = 9
    curve = thinned(np.arange(1_000_000) / 1_000_000, heights, 7)
    assert curve.y.max() == 9
    assert curve.x[curve.y.argmax()] * 1_000_000 // 1000 == 654


def test_non_finite_values_are_left_out_and_counted() -> None:
    heights = np.zeros(10_000)
    heights[5000:6000] = np.nan
    heights[0] = -np.inf
    reduced = Downsampler(1)
    reduced.add(np.arange(10_000) / 10_000, heights[:, None].copy())
    assert reduced.nonfinite == 1001
    curve = reduced.curves([""], NOTHING)[0]
    assert np.isfinite(curve.y).all()
    assert not ((curve.x > 0.502) & (curve.x < 0.598)).any()


def test_break_is_between_columns() -> None:
    across = np.r_[np.arange(5000), np.arange(7000, 10_000)] / 10_000
    curve = thinned(across, np.ones(8000), breaks=np.array([0.4999]))
    assert np.isnan(curve.y).sum() == 1
    index = int(np.flatnonzero(np.isnan(curve.y))[0])
    assert index % 4 == 0
    assert curve.x[index - 1] < 0.501
    assert curve.x[index + 1] > 0.699


def test_steps_hold_until_the_next_and_stop_at_a_break() -> None:
    across, heights = break_curve(np.array([0.0, 0.1, 0.6]), np.array([1.0, 2, 3]), np.array([0.1]))
    curve = as_steps(Curve("", across, heights), 1.0)
    assert curve.x.tolist() == [0, 0.1, 0.1, 0.1, 0.1, 0.6, 0.6, 1]
    assert curve.y[[0, 1, 2, 3]].tolist() == [1, 1, 2, 2]
    assert np.isnan(curve.y[[4, 5]]).all()
    assert curve.y[[6, 7]].tolist() == [3, 3]
    assert as_steps(Curve("", NOTHING, NOTHING), 1.0).x.size == 0


def test_point_without_neighbours_is_isolated() -> None:
    heights = np.array([1, np.nan, 2, 3, np.nan, 4])
    found = isolated_points(Curve("", np.arange(6.0), heights))
    assert found.tolist() == [True, False, False, False, False, True]
