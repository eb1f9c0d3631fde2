"""Tests that every kind of signal must pass."""

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.model import Source, Subset
from relive.model.signal import Signal
from tests.contracts.signal_contract import (
    ATTRS,
    CLOCK,
    NAME,
    SIGNALS,
    Kind,
    Naive,
    assert_record,
    assert_signal,
    sensor,
    stacked,
)

STAMPS = (10, 20, 25, 40, 1000)


@pytest.fixture(params=SIGNALS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return SIGNALS[request.param]


def test_types_and_properties(kind: Kind) -> None:
    signal = kind.make(STAMPS)
    assert isinstance(signal, Signal)
    assert isinstance(signal, Sequence)
    assert isinstance(signal, Source)
    assert (signal.name, signal.kind, signal.dtype, signal.shape) == (NAME, *kind[2:])
    assert signal.clocks == (CLOCK,)
    assert (signal.start_ts, signal.last_ts) == (10, 1000)
    assert list(signal.fields) == ["value", "ts_ns"]
    text = repr(signal)
    assert "\n" not in text
    assert "5 records" in text
    assert repr(NAME) in text
    assert text in repr(signal.time)
    assert_signal(signal, Naive.of(STAMPS), kind.value)


def test_views_keep_attributes(kind: Kind) -> None:
    signal = kind.make(STAMPS)
    if signal.attrs:  # files of other programs have no attributes
        assert signal.attrs == ATTRS
    for view in (signal[1:], signal[[0]], signal.time[20:], signal.time[[30]], signal.on(CLOCK)):
        assert view.attrs == signal.attrs
        assert (view.name, view.kind, view.dtype, view.shape) == (NAME, *kind[2:])
    with pytest.raises(TypeError):
        signal.attrs["more"] = 1  # type: ignore[index]


def test_records_are_value_and_timestamp_pairs(kind: Kind) -> None:
    signal, model = kind.make(STAMPS), Naive.of(STAMPS)
    for row, record in enumerate(model.records):
        for key in (row, row - len(model), np.int64(row), np.uint8(row), np.array(row)):
            assert_record(signal[key], record, kind.value)
    for found, record in zip(signal, model.records, strict=True):
        assert_record(found, record, kind.value)
    for found, record in zip(reversed(signal), model.records[::-1], strict=True):
        assert_record(found, record, kind.value)
    for found, record in zip(signal.time[:30], model.records, strict=False):
        assert_record(found, record, kind.value)


def test_time_returns_the_last_record_at_or_before(kind: Kind) -> None:
    signal, model = kind.make(STAMPS), Naive.of(STAMPS)
    for time in (10, 11, 24, 25, np.int32(39), np.array(40), 10**30):
        assert_record(signal.time[time], model.at(int(time)), kind.value)


@pytest.mark.parametrize("time", [9, -(10**30), np.int64(0)])
def test_time_before_the_first_record_raises(kind: Kind, time: Any) -> None:
    signal = kind.make(STAMPS)
    keys = [time, [40, time], np.array([time, 40]), slice(time, 50, 10)]
    if abs(int(time)) > 2**63:
        keys[2:3] = []
    for key in keys:
        with pytest.raises(KeyError, match=rf"signal 'arm/state' .* {time}: .* first .* 10$"):
            signal.time[key]
    with pytest.raises(errors.NoValueError, match=r"first record is at 25"):
        signal.time[25:].time[24]


def test_signal_without_records(kind: Kind) -> None:
    signal = kind.make(())
    assert len(signal) == 0
    assert list(signal) == list(reversed(signal)) == []
    assert signal.timestamps.tolist() == []
    # Without records, the length of a list and the second clock of a camera are unknown.
    assert len(signal.values()) == 0
    assert [signal.clock(name).tolist() for name in signal.clocks] in ([[]], [])
    for empty in (signal[:], signal[[]], signal.time[:], signal.time[3:9], signal.time[5::2]):
        assert len(empty) == 0
        assert list(empty) == []
    assert len(signal.time[[]]) == len(signal.time[()]) == len(signal.time[1:1:1]) == 0
    for text in ("start_ts", "last_ts"):
        with pytest.raises(ValueError, match=r"'arm/state' has no records"):
            getattr(signal, text)
    for key in (5, [5], [-(2**70)]):
        with pytest.raises(KeyError, match=r"'arm/state' has no value .* no records"):
            signal.time[key]
    with pytest.raises(IndexError):
        signal[0]
    with pytest.raises(ValueError, match="positive"):
        signal.time[1:5:0]


def test_signal_with_one_record(kind: Kind) -> None:
    signal, model = kind.make((7,)), Naive.of((7,))
    assert_signal(signal, model, kind.value)
    assert_signal(signal.time[7:8], model, kind.value)
    assert_signal(signal.time[[7, 9, 7]], model.sample([7, 9, 7]), kind.value)
    assert_signal(signal.time[7::1], model, kind.value)
    assert_record(signal[-1], model.records[0], kind.value)


@pytest.mark.parametrize("key", [5, -6, 2**70, -(2**70), np.uint64(2**63), [5], [0, -6], [2**70]])
def test_positions_out_of_range_raise_index_error(kind: Kind, key: Any) -> None:
    with pytest.raises(errors.OutOfRangeError):
        kind.make(STAMPS)[key]


MASKS = [
    True,
    np.True_,
    np.array(True),  # noqa: FBT003 - a mask
    [True, False, True, False, True],
    (True, 2),
    np.ones(5, dtype=bool),
    np.zeros(0, dtype=bool),
]


@pytest.mark.parametrize("key", MASKS, ids=repr)
def test_boolean_masks_raise_type_and_index_error(kind: Kind, key: Any) -> None:
    signal = kind.make(STAMPS)
    for brackets in (signal, signal.time, signal[1:], signal.time[20:].time):
        with pytest.raises(errors.MaskError) as caught:
            brackets[key]
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize(
    "key",
    [1.0, np.float64(2), [1.0], np.array([1.5]), np.array([]), "1", ["1"], None, {1: 2}, [None],
     [[1], [2, 3]], slice(0.0, None), slice(None, "b"), slice(0, 5, 1.0), np.datetime64(1, "ns")],
    ids=repr,
)  # fmt: skip
def test_non_integer_keys_raise_type_error(kind: Kind, key: Any) -> None:
    signal = kind.make(STAMPS)
    for brackets in (signal, signal.time):
        with pytest.raises(errors.InvalidTypeError):
            brackets[key]


@pytest.mark.parametrize("step", [0, -1, np.int64(-5)])
def test_steps_must_be_positive(kind: Kind, step: Any) -> None:
    signal = kind.make(STAMPS)
    for brackets in (signal, signal.time):
        with pytest.raises(errors.InvalidError, match="positive"):
            brackets[10:20:step]
    with pytest.raises(errors.InvalidError, match="start"):
        signal.time[:20:5]


def test_times_beyond_64_bits_raise_value_error(kind: Kind) -> None:
    signal = kind.make(STAMPS)
    for key in ([20, 2**63], slice(20, 2**64, 2**63), slice(2**63, 2**64, 1)):
        with pytest.raises(errors.InvalidError, match="fit in 64 bits"):
            signal.time[key]
    with pytest.raises(errors.InvalidError, match="but at most"):
        signal.time[20 : 2**62 : 1]


def test_keys_with_several_axes_raise(kind: Kind) -> None:
    signal = kind.make(STAMPS)
    with pytest.raises(ValueError, match="one dimension"):
        signal[np.array([[0, 1]])]
    with pytest.raises(TypeError, match="times must be a list of integers, got ndarray"):
        signal.time[np.array([[10, 20]])]


def test_views_do_not_follow_changes_of_the_source(kind: Kind) -> None:
    signal, model = kind.make(STAMPS), Naive.of(STAMPS)
    rows, times = np.array([3, 1]), np.array([40, 21])
    by_row, by_time = signal[rows], signal.time[times]
    rows[:] = times[:] = 0
    assert_signal(by_row, model.pick([3, 1]), kind.value)
    assert_signal(by_time, model.sample([40, 21]), kind.value)


def test_values_are_read_only(kind: Kind) -> None:
    signal = kind.make(STAMPS)
    for view in (signal, signal[1:], signal[[0, 2]], signal.time[[30, 30]]):
        for array in (view.values(), view.timestamps, view.clock(CLOCK)):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = array[1]
        if kind.shape:
            for value, _ in (view[0], next(iter(view)), next(reversed(view)), view.time[10**9]):
                with pytest.raises(ValueError, match="read-only"):
                    value[...] = 0


def test_membership_compares_whole_values(kind: Kind) -> None:
    signal = kind.make(STAMPS)
    first, third = kind.value(0), kind.value(2)
    assert (third, 25) in signal
    assert (third, 26) not in signal
    assert (first, 25) not in signal
    assert (third, True) not in signal
    others: list[Any] = [third, (third, 25, 0), (third, 25.0), ("no", 25), (None, 25), (), None]
    assert not [other for other in others if other in signal]
    assert signal.index((third, 25)) == 2
    assert signal.index((third, 25), -3) == 2
    repeated = signal.time[[30, 10, 30]]
    assert repeated.count((third, 30)) == 2
    assert repeated.index((third, 30), 1) == 2
    assert repeated.count((third, 25)) == 0
    for arguments in (((third, 25), 3), ((third, 25), 0, 2), ((first, 25),), ("nothing",)):
        with pytest.raises(ValueError, match="the record is not in"):
            signal.index(*arguments)


def test_second_clock(kind: Kind) -> None:
    signal, model = kind.make(STAMPS), Naive.of(STAMPS)
    turned = signal.on(CLOCK)
    assert_signal(turned, model.on_clock(), kind.value)
    assert_record(turned.time[95], model.on_clock().at(95), kind.value)
    assert_signal(turned.time[85:95], model.on_clock().window(85, 95), kind.value)
    assert signal.clock(CLOCK).tolist() == sensor(5).tolist()
    for wrong in (signal.clock, signal.on, signal[2:].clock, signal[2:].on):
        with pytest.raises(errors.UnknownNameError, match=r"no clock 'other'.*'sensor'"):
            wrong("other")


def test_gather_reads_directly_into_out(kind: Kind) -> None:
    signal = kind.make(STAMPS)
    wanted = stacked(kind.value, [4, 0, 4, 1]).reshape((2, 2, *kind.shape))
    for view, rows in ((signal, [[4, 0], [4, 1]]), (signal[[1, 4, 0]], [[1, 2], [1, 0]])):
        batch = view.gather(rows)
        np.testing.assert_array_equal(batch["value"], wanted, strict=True)
        assert np.asarray(batch["ts_ns"]).tolist() == [[1000, 10], [1000, 20]]
        assert np.asarray(batch["value"]).flags.writeable
        out = {"value": np.empty_like(wanted), "ts_ns": np.zeros((2, 2), np.int64)}
        batch = view.gather(rows, out=out)
        assert batch["value"] is out["value"]
        np.testing.assert_array_equal(out["value"], wanted, strict=True)
        assert out["ts_ns"].tolist() == [[1000, 10], [1000, 20]]
    assert list(signal.gather([1], ["ts_ns"])) == ["ts_ns"]
    assert [row["ts_ns"] for row in signal.__getitems__([3, 3])] == [40, 40]


def test_split_works_as_for_any_source(kind: Kind) -> None:
    signal = kind.make(STAMPS)
    train, test = signal.split((0.8, 0.2))
    assert isinstance(train, Subset)
    times = [int(row["ts_ns"]) for part in (train, test) for row in part]
    assert sorted(times) == list(STAMPS)


def test_copies_and_pickles_are_equal(kind: Kind) -> None:
    signal, model = kind.make(STAMPS), Naive.of(STAMPS)
    signal.values()
    window = signal.time[20:500]
    for again, expected in (
        (pickle.loads(pickle.dumps(signal)), model),  # noqa: S301 - our own data
        (pickle.loads(pickle.dumps(window)), model.window(20, 500)),  # noqa: S301 - our own data
        (copy.copy(signal), model),
        (copy.deepcopy(window), model.window(20, 500)),
    ):
        assert_signal(again, expected, kind.value)
        assert again.attrs == signal.attrs
        assert again.name == NAME
