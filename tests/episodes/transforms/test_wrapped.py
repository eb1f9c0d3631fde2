"""Signals shifted in time, and record times as values."""

import pickle

import numpy as np
import pytest

from relive.episodes import transforms as tf
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import INT64_MAX
from relive.model.signal import ArraySignal
from tests.episodes.transforms.watched import frames, joints


def test_shift_moves_records() -> None:
    late = tf.shift(joints(), 5)
    assert late.start_ts == 5
    assert late.last_ts == 195
    assert late.time[14][0].tolist() == joints().time[9][0].tolist()
    assert late.time[5:25].timestamps.tolist() == [5, 15]
    assert (late.name, late.kind, late.attrs) == ("arm.q", "vector", joints().attrs)
    assert tf.shift(frames(3), -35)[1][1] == 65
    assert pickle.loads(pickle.dumps(late))[2][1] == 25  # noqa: S301 - our own data


def test_shift_reads_nothing_by_itself() -> None:
    q = joints()
    late = tf.shift(q, 5)
    assert not q.times_read
    assert late.time[25:45].values().shape == (2, 3)
    assert q.read == {2, 3}
    assert not late.timestamps.flags.writeable


def test_shift_of_records_in_any_order() -> None:
    mixed = tf.shift(joints()[[3, 1, 2]], 1)
    assert mixed.timestamps.tolist() == [31, 11, 21]
    assert mixed.time[25][0].tolist() == joints()[2][0].tolist()


def test_other_clocks_stay() -> None:
    signal = ArraySignal([1], [10], clocks={"sensor": np.array([3])})
    assert tf.shift(signal, 1).clock("sensor").tolist() == [3]


def test_shift_must_stay_within_64_bits() -> None:
    signal = ArraySignal([1, 2], [0, INT64_MAX], name="n")
    with pytest.raises(InvalidError, match="signal 'n' shifted by 1 ns do not fit in 64 bits"):
        tf.shift(signal, 1).time[5]
    assert tf.shift(signal, -1).timestamps.tolist() == [-1, INT64_MAX - 1]
    assert len(tf.shift(joints(0), 1 << 80).timestamps) == 0
    with pytest.raises(InvalidTypeError):
        tf.shift(signal, 0.5)  # type: ignore[arg-type]


def test_iteration_is_delegated_to_the_source() -> None:
    cam = frames(5)
    assert [value[0, 0, 0] for value, _ in tf.shift(cam, 1)] == list(range(5))
    assert cam.passes == 1


def test_record_times_as_values() -> None:
    q = joints()
    times = tf.record_times(q)
    assert times.time[33] == (30, 30)
    assert (times.dtype, times.shape, times.kind) == (np.dtype(np.int64), (), "scalar")
    assert times.attrs == {"unit": "ns"}
    assert tf.record_times(q.time[[33]])[0][0] == 33  # the samples are its records
    assert times.time[[33]][0][0] == 30
    assert not q.batches
    with pytest.raises(InvalidTypeError, match="expected a signal"):
        tf.record_times(5)  # type: ignore[arg-type]
