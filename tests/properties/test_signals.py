"""Signals of every kind compared with a list of tuples, through any nested selection."""

from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from relive.model.clock import grid, last_positions
from relive.model.signal import Signal
from tests.contracts.signal_contract import (
    CLOCK,
    INT64,
    SIGNALS,
    Naive,
    assert_record,
    assert_signal,
)

# Files are written once for each of these.
STAMPS = [
    (),
    (0,),
    (INT64.min,),
    (INT64.max,),
    (INT64.min, INT64.max),
    (INT64.min, INT64.min + 1, -1, 0, 1, INT64.max - 1, INT64.max),
    (-30, -20, -10, 0, 10, 20, 30),
    (5, 6, 7, 100, 101, 1_700_000_000_000_000_000),
]
STEPS = (1, 2, 7, 10**9, 2**62, 2**63, 2**70)


def times_near(model: Naive) -> st.SearchStrategy[int]:
    """Draw times at, next to and between records, at the limits of 64 bits, and beyond them."""
    known = [0, INT64.min, INT64.max, *model.stamps]
    beside = st.builds(int.__add__, st.sampled_from(known), st.integers(-2, 2))
    return beside | st.integers(-50, 50) | st.sampled_from([-(2**70), 2**70])


def inside(model: Naive) -> st.SearchStrategy[int]:
    """Draw valid times of samples."""
    return times_near(model).map(lambda ts: min(max(ts, INT64.min), INT64.max))


def as_key(draw: Any, numbers: list[int], *, index: bool) -> Any:
    """Return integers in one of the types accepted as keys."""
    forms: list[Callable[[list[int]], Any]] = [list, tuple, lambda items: [*map(np.int64, items)]]
    if numbers or not index:
        forms.append(lambda items: np.array(items, dtype=np.int64))
        forms.append(lambda items: np.array(items, dtype=object))
    if all(0 <= number < 2**63 for number in numbers):
        forms.append(lambda items: np.array(items, dtype=np.uint64))
    return draw(st.sampled_from(forms))(numbers)


class Select:
    """Draws a selection, and applies it to a signal and to its model."""

    def __init__(self, draw: Any, signal: Signal[Any], model: Naive) -> None:
        self.draw = draw
        self.signal = signal
        self.model = model

    def by_slice(self) -> tuple[Signal[Any], Naive]:
        bound = st.none() | st.integers(-9, 9) | st.sampled_from([-(2**70), 2**70])
        key = slice(
            self.draw(bound), self.draw(bound), self.draw(st.none() | st.sampled_from(STEPS))
        )
        return self.signal[key], Naive(self.model.records[key])

    def by_rows(self) -> tuple[Signal[Any], Naive]:
        count = len(self.model)
        rows: list[int] = []
        if count:
            rows = self.draw(st.lists(st.integers(-count, count - 1), max_size=9))
        key = as_key(self.draw, rows, index=True)
        return self.signal[key], self.model.pick(rows)

    def by_range(self) -> tuple[Signal[Any], Naive]:
        count = len(self.model)
        key = range(0)
        if count:
            row = st.integers(0, count - 1)
            step = self.draw(st.integers(-3, 3).filter(bool))
            key = range(self.draw(row), self.draw(row), step)
        return self.signal[key], self.model.pick(key)

    def by_window(self) -> tuple[Signal[Any], Naive]:
        bound = st.none() | times_near(self.model)
        start, stop = self.draw(bound), self.draw(bound)
        return self.signal.time[start:stop], self.model.window(start, stop)

    def by_times(self) -> tuple[Signal[Any], Naive]:
        times = self.draw(st.lists(inside(self.model), max_size=9))
        times = [ts for ts in times if any(stamp <= ts for stamp in self.model.stamps)]
        key = as_key(self.draw, times, index=False)
        return self.signal.time[key], self.model.sample(times)

    def by_steps(self) -> tuple[Signal[Any], Naive]:
        start = self.draw(inside(self.model))
        stop = self.draw(st.none() | inside(self.model))
        end = max(self.model.stamps, default=0) + 1 if stop is None else stop
        start = max(start, min(self.model.stamps, default=start))
        # Few enough samples to compare.
        step = max(self.draw(st.sampled_from(STEPS)), (end - start) // 9)
        return self.signal.time[start:stop:step], self.model.steps(start, stop, step)

    def by_clock(self) -> tuple[Signal[Any], Naive]:
        if CLOCK not in self.signal.clocks:  # of an empty video
            return self.signal, self.model
        return self.signal.on(CLOCK), self.model.on_clock()

    def any(self) -> tuple[Signal[Any], Naive]:
        ways = [self.by_slice, self.by_rows, self.by_range, self.by_window, self.by_times,
                self.by_steps, self.by_clock]  # fmt: skip
        chosen: Callable[[], tuple[Signal[Any], Naive]] = self.draw(st.sampled_from(ways))
        return chosen()


@pytest.mark.parametrize("name", SIGNALS)
@hypothesis.settings(max_examples=150)
@hypothesis.given(data=st.data())
def test_nested_selections(name: str, data: st.DataObject) -> None:
    kind = SIGNALS[name]
    stamps = data.draw(st.sampled_from(STAMPS))
    signal, model = kind.make(stamps), Naive.of(stamps)
    for _ in range(data.draw(st.integers(1, 4))):
        signal, model = Select(data.draw, signal, model).any()
    if not stamps:
        assert len(signal) == 0
        return
    assert_signal(signal, model, kind.value)
    time = data.draw(times_near(model))
    try:
        wanted = model.at(time)
    except KeyError:
        with pytest.raises(KeyError):
            signal.time[time]
    else:
        assert_record(signal.time[time], wanted, kind.value)
    if model.records:
        row = data.draw(st.integers(-len(model), len(model) - 1))
        assert_record(signal[row], model.records[row], kind.value)
        found = list(reversed(signal)) if data.draw(st.booleans()) else list(signal)[::-1]
        for record, expected in zip(found, model.records[::-1], strict=True):
            assert_record(record, expected, kind.value)


def outcome(make: Callable[[], Any]) -> Any:
    """Return the kind of error that a selection raises, or None."""
    try:
        make()
    except (KeyError, IndexError, ValueError) as error:
        return next(cls for cls in (KeyError, IndexError, ValueError) if isinstance(error, cls))
    return None


@pytest.mark.parametrize("name", ["array", "simple", "view-range", "video"])
@hypothesis.settings(max_examples=300)
@hypothesis.given(data=st.data())
def test_invalid_selections_raise(name: str, data: st.DataObject) -> None:
    stamps = data.draw(st.sampled_from(STAMPS))
    signal, model = SIGNALS[name].make(stamps), Naive.of(stamps)
    anywhere = times_near(model)
    way = data.draw(st.sampled_from(["times", "steps", "rows"]))
    if way == "times":
        # If several errors apply, any of them may be raised.
        times = data.draw(st.lists(anywhere, min_size=1, max_size=1))
        assert outcome(lambda: signal.time[times]) is outcome(lambda: model.sample(times))
    elif way == "steps":
        start, stop = data.draw(st.none() | anywhere), data.draw(st.none() | anywhere)
        step = data.draw(st.sampled_from([0, -1, 2**61, 2**63, 2**70]))
        few = start is None or stop is None or (stop - start) // max(step, 1) < 9
        hypothesis.assume(few)
        assert outcome(lambda: signal.time[start:stop:step]) is outcome(
            lambda: model.steps(start, stop, step)
        )
    else:
        rows = data.draw(st.lists(st.integers(-9, 9) | st.just(2**70), max_size=3))
        assert outcome(lambda: signal[rows]) is outcome(lambda: model.pick(rows))


@hypothesis.settings(max_examples=300)
@hypothesis.given(data=st.data())
def test_time_lookup_matches_a_search(data: st.DataObject) -> None:
    spread = data.draw(st.sampled_from([1, 50, 10**9, 2**64 - 1]))
    start = data.draw(st.integers(INT64.min, INT64.max - spread + 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    high = start + spread - 1
    even = grid(start, high + 1, spread // data.draw(st.integers(1, 400)) + 1)
    uneven = rng.integers(start, high, data.draw(st.integers(0, 50)), endpoint=True)
    axis = np.sort(np.concatenate([even, uneven]))
    times = np.concatenate([rng.integers(start, high, 300, endpoint=True), axis])
    times = np.append(times, [INT64.min, INT64.max])
    wanted = np.searchsorted(axis, times, side="right") - 1
    assert last_positions(axis, times).tolist() == wanted.tolist()
