"""Transforms and resampling policies compared with eager operations on `(value, time)` lists."""

import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relive.episodes import transforms as tf
from relive.errors import NoValueError
from relive.model.clock import INT64_MAX, INT64_MIN
from relive.model.episode import Episode, EpisodeView
from relive.model.resample import nearest, slerp
from relive.model.signal import ArraySignal, Signal

Records = list[tuple[Any, int]]
Pair = tuple[Signal[Any], Records]

NEAR = st.integers(-60, 60)
TIMES = st.one_of(NEAR, st.integers(INT64_MIN, INT64_MAX), st.sampled_from([INT64_MIN, INT64_MAX]))
TYPES = ["int64", "float32", "uint8", "bool", "text"]


@st.composite
def signals(
    draw: st.DrawFn,
    *,
    types: list[str] = TYPES,
    times: st.SearchStrategy[int] = TIMES,
    shape: tuple[int, ...] | None = None,
    min_size: int = 0,
    views: bool = True,
) -> Pair:
    """Draw a signal in memory, or a view of one, and its records."""
    kind = draw(st.sampled_from(types))
    stamps = sorted(draw(st.sets(times, min_size=min_size, max_size=9)))
    if kind == "text":
        texts = draw(st.lists(st.text(max_size=3), min_size=len(stamps), max_size=len(stamps)))
        values = np.array([*texts, ""], dtype=object)[:-1]
    else:
        if shape is None:
            shape = draw(st.sampled_from([(), (3,), (2, 2)]))
        seed = draw(st.integers(0, 99))
        numbers = np.random.default_rng(seed).integers(0, 200, (len(stamps), *shape))
        values = (numbers > 99 if kind == "bool" else numbers).astype(kind)
    signal: Signal[Any] = ArraySignal(values, stamps, name="s")
    records = list(zip(list(values), stamps, strict=True))
    view = draw(st.sampled_from(["whole", "part", "positions"] if views else ["whole"]))
    if view == "part":
        start, step = draw(st.integers(0, len(stamps))), draw(st.integers(1, 3))
        signal, records = signal[start::step], records[start::step]
    elif view == "positions" and records:
        positions = draw(st.lists(st.integers(0, len(records) - 1), max_size=5))
        signal, records = signal[positions], [records[position] for position in positions]
    return signal, records


def holding(records: Records, time: int) -> tuple[Any, int] | None:
    """Return the last record at or before a time."""
    found = [(ts, position) for position, (_, ts) in enumerate(records) if ts <= time]
    return records[max(found)[1]] if found else None


def same(one: Any, other: Any) -> bool:
    if isinstance(other, str):
        return type(one) is str and one == other
    first, second = np.asarray(one), np.asarray(other)
    return (
        first.dtype == second.dtype and first.shape == second.shape and bool((one == other).all())
    )


def assert_records(signal: Signal[Any], records: Records) -> None:
    found = list(signal)
    assert [ts for _, ts in found] == [ts for _, ts in records]
    assert all(type(ts) is int for _, ts in found)
    for (value, _), (expected, _) in zip(found, records, strict=True):
        assert same(value, expected), (value, expected)


def assert_signal(signal: Signal[Any], records: Records, data: st.DataObject) -> None:
    """Compare a signal with a list through every access method."""
    assert_records(signal, records)
    length = len(records)
    assert len(signal) == length
    assert signal.timestamps.tolist() == [ts for _, ts in records]
    assert_records(pickle.loads(pickle.dumps(signal)), records)  # noqa: S301 - our own data
    assert list(map(len, (signal[:0], signal.time[5:5], signal.time[[]]))) == [0, 0, 0]
    time = data.draw(TIMES)
    held = holding(records, time)
    if held is None:
        with pytest.raises(KeyError):
            signal.time[time]
    else:
        value, ts = signal.time[time]
        assert same(value, held[0])
        assert ts == held[1]
        assert_records(signal.time[[time, time]], [(held[0], time)] * 2)
        assert_records(signal.resample([time]), [(held[0], time)])
    start, stop = data.draw(st.tuples(TIMES, TIMES))
    inside = [(value, ts) for value, ts in records if start <= ts < stop]
    window = signal.time[start:stop]
    assert_records(window, inside)
    assert_records(window[1:], inside[1:])
    if length:
        row = data.draw(st.integers(-length, length - 1))
        value, ts = signal[row]
        assert same(value, records[row][0])
        assert ts == records[row][1]
        rows = data.draw(st.lists(st.integers(-length, length - 1), max_size=4))
        assert_records(signal[rows], [records[row] for row in rows])
        key = data.draw(st.slices(length).filter(lambda key: (key.step or 1) > 0))
        assert_records(signal[key], records[key])
        positions = np.array([[row % length, 0]])
        batch = signal.gather(positions)
        assert np.asarray(batch["ts_ns"]).tolist() == [[records[row][1], records[0][1]]]
        values = batch["value"]
        assert isinstance(values, np.ndarray)
        assert values.shape == (1, 2, *signal.shape)
        assert same(values[0, 0], records[row][0])
        values[...] = values[0, 0]  # a copy, so it may be changed
        assert same(signal[row][0], records[row][0])
        again = signal.gather(positions, ["value"], out={"value": values})["value"]
        assert again is values
        assert same(values[0, 1], records[0][0])
        assert [ts for _, ts in reversed(signal)] == [ts for _, ts in records[::-1]]
        assert len(signal.values()) == length
        assert not signal.values().flags.writeable


NUMBERS = ["int64", "float32", "uint8"]
MAPS: dict[str, Callable[[Any], Any]] = {
    "double": lambda values: values * 2,
    "far": lambda values: values > 99,
    "flat": lambda values: values.reshape(len(values), -1).sum(axis=1),
}


@given(signals(types=NUMBERS), st.sampled_from(sorted(MAPS)), st.data())
def test_map_of_batches(pair: Pair, name: str, data: st.DataObject) -> None:
    signal, records = pair
    expected = [(MAPS[name](np.asarray(value)[None])[0], ts) for value, ts in records]
    lazy = tf.map_values(signal, GLOBAL[name])
    assert_signal(lazy, expected, data)
    start, stop = data.draw(st.tuples(NEAR, NEAR))
    before = tf.map_values(signal.time[start:stop], GLOBAL[name])
    assert_records(before, list(lazy.time[start:stop]))


def double(values: Any) -> Any:
    return MAPS["double"](values)


def far(values: Any) -> Any:
    return MAPS["far"](values)


def flat(values: Any) -> Any:
    return MAPS["flat"](values)


GLOBAL = {"double": double, "far": far, "flat": flat}


def shout(text: str) -> str:
    return text.upper() + "!"


@given(signals(types=["text"], min_size=1, views=False), st.data())
def test_map_of_single_texts(pair: Pair, data: st.DataObject) -> None:
    signal, records = pair
    expected = [(shout(value), ts) for value, ts in records]
    assert_signal(tf.map_values(signal, shout, batched=False), expected, data)


@given(signals(), st.integers(-99, 99), st.data())
def test_shift_and_record_times(pair: Pair, offset: int, data: st.DataObject) -> None:
    signal, records = pair
    assert_signal(tf.record_times(signal), [(np.int64(ts), ts) for _, ts in records], data)
    moved = [(value, ts + offset) for value, ts in records]
    lazy = tf.shift(signal, offset)
    if any(not INT64_MIN <= ts <= INT64_MAX for _, ts in moved):
        with pytest.raises(ValueError, match="64 bits"):
            _ = lazy.timestamps
        return
    assert_signal(lazy, moved, data)
    start, stop = data.draw(st.tuples(NEAR, NEAR))
    before = tf.shift(signal.time[start:stop], offset)
    assert_records(before, list(lazy.time[start + offset : stop + offset]))


OFFSETS = st.lists(st.one_of(st.integers(-3, 3), TIMES), min_size=1, max_size=3)


def stacked(values: list[Any]) -> Any:
    if isinstance(values[0], str):
        return np.array(values, dtype=object)
    return np.stack(values)


@given(signals(), OFFSETS, st.sampled_from(["repeat", "drop"]), st.data())
def test_index_offsets(pair: Pair, offsets: list[int], edges: Any, data: st.DataObject) -> None:
    signal, records = pair
    length = len(records)
    expected, ahead = [], []
    for row, (_, ts) in enumerate(records):
        rows = [row + offset for offset in offsets]
        if edges == "drop" and any(not 0 <= each < length for each in rows):
            continue
        values = [records[max(0, min(length - 1, each))][0] for each in rows]
        expected.append((stacked(values), ts))
    assert_signal(tf.index_offsets(signal, offsets, edges=edges), expected, data)
    for row, (_, ts) in enumerate(records[:-1]):
        ahead.append((records[row + 1][0], ts))
    assert_signal(tf.index_offsets(signal, 1, edges="drop"), ahead, data)


@given(signals(), OFFSETS, st.sampled_from(["repeat", "drop"]), st.data())
def test_time_offsets(pair: Pair, offsets: list[int], edges: Any, data: st.DataObject) -> None:
    signal, records = pair
    expected = []
    stamps = [ts for _, ts in records]
    for _, ts in records:
        times = [ts + offset for offset in offsets]
        first, last = min(stamps), max(stamps)
        if edges == "drop" and any(not first <= time <= last for time in times):
            continue
        held = [holding(records, max(first, time)) for time in times]
        expected.append((stacked([found[0] for found in held if found]), ts))
    assert_signal(tf.time_offsets(signal, offsets, edges=edges), expected, data)


@given(
    signals(types=NUMBERS, times=NEAR),
    signals(types=NUMBERS, times=NEAR),
    st.booleans(),
    st.data(),
)
def test_join(one: Pair, other: Pair, at_one: bool, data: st.DataObject) -> None:  # noqa: FBT001
    parts = (one, other)
    times: list[int] = []
    start = 0
    if all(records for _, records in parts):
        start = max(min(ts for _, ts in records) for _, records in parts)
        every = sorted({ts for _, records in parts for _, ts in records})
        times = [ts for ts in ([t for _, t in one[1]] if at_one else every) if ts >= start]
    kind = np.result_type(*(signal.dtype for signal, _ in parts))
    expected = []
    for time in times:
        held = [holding(records, time) for _, records in parts]
        flat = [np.ravel(found[0]) for found in held if found]
        expected.append((np.concatenate(flat).astype(kind), time))
    lazy = tf.join(one[0], other[0], at=one[0] if at_one else None)
    assert_signal(lazy, expected, data)
    if times and not at_one:
        time = data.draw(st.integers(start, 70))
        parts_now = [np.ravel(signal.time[time][0]) for signal, _ in parts]
        assert same(lazy.time[time][0], np.concatenate(parts_now).astype(kind))


@given(signals(types=["uint8"], times=NEAR, shape=(4, 5, 3)), st.data())
def test_crop_and_stack(pair: Pair, data: st.DataObject) -> None:
    signal, records = pair
    expected = [(value[1:3, 2:], ts) for value, ts in records]
    assert_signal(tf.crop(signal, top=1, left=2, height=2), expected, data)
    pairs = [(np.stack([value, value]), ts) for value, ts in records]
    if len({ts for _, ts in records}) == len(records):
        assert_signal(tf.stack(signal, signal, at=signal), pairs, data)


@given(signals(types=["float32"], shape=(3,)), st.data())
def test_components(pair: Pair, data: st.DataObject) -> None:
    signal, records = pair
    key = data.draw(st.integers(-3, 2) | st.lists(st.integers(-3, 2)) | st.slices(3))
    assert_signal(tf.pick(signal, key), [(value[key], ts) for value, ts in records], data)
    as_ints = [(value.astype(np.int16), ts) for value, ts in records]
    assert_signal(tf.astype(signal, "int16"), as_ints, data)


@given(signals(), st.lists(TIMES, max_size=4), st.none() | st.integers(0, 99))
def test_nearest(pair: Pair, times: list[int], tolerance: int | None) -> None:
    signal, records = pair
    expected = []
    for time in times:
        positions = range(len(records))
        near = sorted(positions, key=lambda p: (abs(records[p][1] - time), records[p][1], -p))
        if not near or (tolerance is not None and abs(records[near[0]][1] - time) > tolerance):
            with pytest.raises(NoValueError, match=str(time)):
                signal.resample(times, nearest(tolerance))
            return
        expected.append((records[near[0]][0], time))
    assert_records(signal.resample(times, nearest(tolerance)), expected)


@given(signals(types=NUMBERS), st.lists(TIMES, max_size=4))
@example((ArraySignal([0, 1], [INT64_MIN, INT64_MAX]), [(0, INT64_MIN), (1, INT64_MAX)]), [0, -1])
def test_linear(pair: Pair, times: list[int]) -> None:
    signal, records = pair
    if any(holding(records, time) is None for time in times):
        with pytest.raises(NoValueError):
            signal.resample(times, "linear")
        return
    lazy = signal.resample(times, "linear")
    assert lazy.dtype == (np.float32 if signal.dtype == np.float32 else np.float64)
    assert lazy.timestamps.tolist() == times
    for (value, ts), time in zip(lazy, times, strict=True):
        left, before = holding(records, time) or (0, 0)
        later = [ts for _, ts in records if ts > time]
        right, after = (holding(records, min(later)) or (0, 0)) if later else (left, before + 1)
        weight = float(Fraction(time - before, after - before)) if later else 0.0
        line = np.asarray(left, dtype=float) * (1 - weight) + np.asarray(right, float) * weight
        np.testing.assert_allclose(value, line, rtol=1e-6, atol=1e-4)
        assert ts == time
    assert_records(pickle.loads(pickle.dumps(lazy)), list(lazy))  # noqa: S301 - our own data


ANGLES = st.floats(-3, 3)


@given(ANGLES, ANGLES, st.integers(0, 1000), st.sampled_from([1, -1]), st.sampled_from([1, 1e-3]))
def test_slerp_rotates_evenly(start: float, turn: float, time: int, sign: int, size: float) -> None:
    # A rotation about one axis by less than half a turn: the angle changes evenly.
    def rotation(angle: float) -> Any:
        return np.array([0, np.sin(angle / 2), 0, np.cos(angle / 2)])

    ends = [rotation(start), sign * size * rotation(start + turn)]
    found = ArraySignal(ends, [0, 1000]).resample([time], slerp())[0][0]
    expected = rotation(start + turn * time / 1000)
    assert abs(abs(found @ expected) - 1) < 1e-9
    assert abs(np.linalg.norm(found) - 1) < 1e-12


@given(
    st.dictionaries(st.sampled_from("abcd"), signals(times=NEAR), max_size=4),
    st.dictionaries(st.sampled_from("efg"), st.integers(), max_size=3),
    st.data(),
)
def test_rename_drop_and_select(
    pairs: dict[str, Pair], statics: dict[str, int], data: st.DataObject
) -> None:
    found = {name: pairs[name][0] for name in sorted(pairs)}
    episode: Episode = EpisodeView(found, statics, {"uid": "u"})
    model: dict[str, Any] = {name: records for name, (_, records) in pairs.items()} | statics
    for _ in range(data.draw(st.integers(0, 4))):
        step = data.draw(st.sampled_from(["rename", "drop", "select"]))
        if step == "rename":
            old = data.draw(st.lists(st.sampled_from([*model, "z"]), unique=True, max_size=3))
            names = {name: data.draw(st.sampled_from("abcdefghij")) for name in old}
            after = [names.get(name, name) for name in model]
            if "z" in names or len(set(after)) < len(after):
                with pytest.raises((KeyError, ValueError)):
                    tf.rename(names)(episode)
                continue
            episode = tf.rename(names)(episode)
            model = dict(zip(after, model.values(), strict=True))
        elif model:
            chosen = data.draw(st.lists(st.sampled_from(list(model)), unique=True))
            episode = (tf.drop if step == "drop" else tf.select)(*chosen)(episode)
            model = {n: v for n, v in model.items() if (n in chosen) == (step == "select")}
    dynamic = sorted(name for name, value in model.items() if isinstance(value, list))
    assert list(episode.signals) == dynamic
    assert dict(episode.statics) == {n: v for n, v in model.items() if not isinstance(v, list)}
    for name in dynamic:
        assert_records(episode[name], model[name])
        assert episode[name].name in (name, "s")
    assert episode.uid == "u"
