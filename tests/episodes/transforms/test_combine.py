"""Combined signals: times, names, and which records are read for a window."""

import pickle
from typing import Any

import numpy as np
import pytest

from relive.episodes import transforms as tf
from relive.errors import InvalidError, InvalidTypeError, UnknownNameError
from relive.model.signal import ArraySignal
from tests.episodes.transforms.watched import WatchedSignal, frames, joints


def gripper() -> WatchedSignal:
    return WatchedSignal(np.arange(4, dtype=np.float32), [15, 70, 71, 400], name="gripper")


def test_result_has_a_record_wherever_an_input_has_one() -> None:
    state = tf.join(joints(8), gripper())
    assert state.timestamps.tolist() == [15, 20, 30, 40, 50, 60, 70, 71, 400]
    assert state[0][0].tolist() == [3, 4, 5, 0]
    assert state.time[399][0].tolist() == [21, 22, 23, 2]
    assert state.dtype == np.float64
    with pytest.raises(KeyError):
        state.time[14]


def test_records_at_the_times_of_one_signal() -> None:
    cam = frames(4)
    state = tf.join(joints(), gripper(), at=cam)
    assert state.timestamps.tolist() == [100, 200, 300]  # the gripper had no value at 0
    assert state[0][0].tolist() == [30, 31, 32, 2]
    backwards = tf.join(joints(), at=cam[[2, 1, 1]])
    assert [ts for _, ts in backwards] == [200, 100, 100]


def test_components_have_names() -> None:
    q, grip = joints(), gripper()
    assert tf.join(q, grip).attrs == {"names": ["arm.q.x", "arm.q.y", "arm.q.z", "gripper"]}
    given = tf.join({"state": ArraySignal([[1, 2]], [1]), "grip": ArraySignal([1], [1])})
    assert given.attrs == {"names": ["state.0", "state.1", "grip"]}
    assert tf.pick(given, "grip")[0][0] == 1
    assert tf.join(q, q).attrs == {}
    assert tf.join(ArraySignal([1], [1])).attrs == {}


def test_values_of_any_rank_are_concatenated() -> None:
    square = ArraySignal(np.arange(4, dtype=np.int8).reshape(1, 2, 2), [1])
    nothing = ArraySignal(np.empty((1, 0), dtype=np.int8), [1])
    flag = ArraySignal([True], [1])
    joined = tf.join(square, nothing, flag)
    assert joined[0][0].tolist() == [0, 1, 2, 3, 1]
    assert (joined.dtype, joined.shape) == (np.dtype(np.int8), (5,))
    assert tf.join(square, dtype="float32").dtype == np.float32


def test_non_numeric_values_are_stacked_instead() -> None:
    text = ArraySignal(["a", "b"], [1, 2])
    for signal in (text, frames(2)):
        with pytest.raises(InvalidTypeError, match="cannot join") as caught:
            tf.join(joints(), signal)
        assert caught.value.hint == "use stack(), which takes values of any kind"
    assert tf.stack(text, text)[1][0].tolist() == ["b", "b"]
    assert tf.stack(text, text).dtype == "str"
    both = tf.stack(frames(3), tf.shift(frames(3), 50))
    assert both.shape == (2, 4, 6, 3)
    assert both.time[150][0][:, 0, 0, 0].tolist() == [1, 1]
    with pytest.raises(InvalidError, match="differ"):
        tf.stack(frames(1), joints())
    with pytest.raises(InvalidError, match="differ"):
        tf.stack(text, ArraySignal([1], [1]))


def test_function_of_several_signals() -> None:
    lag = tf.combine([joints(), gripper()], lambda q, grip: q[:, 0] - grip)
    assert lag.time[70][0] == 20
    one = tf.combine([joints(), gripper()], lambda q, grip: f"{q[0]:g} {grip:g}", batched=False)
    assert one.time[75][0] == "21 2"
    assert one.attrs == {}
    marked = tf.combine([joints()], np.sin, dtype="float32", shape=(3,), attrs={"unit": "1"})
    assert (marked.dtype, marked.attrs) == (np.dtype(np.float32), {"unit": "1"})
    with pytest.raises(InvalidError, match="different values for the same record"):
        tf.combine([joints(), gripper()], lambda q, grip: q / q.max()).values()


def test_record_times_of_the_inputs() -> None:
    q, grip = joints(), gripper()
    times = tf.stack(tf.record_times(q), tf.record_times(grip))
    assert times.time[77][0].tolist() == [70, 71]
    assert times.dtype == np.int64


def test_only_needed_records_are_read() -> None:
    q, cam = joints(100), frames(10)
    both = tf.combine([q, cam], lambda q, frame: q[:, 0] + frame[:, 0, 0, 0])
    assert not q.times_read
    assert not cam.times_read
    assert repr(both) == "CombinedSignal(100 records)"
    assert both.time[350:370].values().tolist() == [105 + 3, 108 + 3]
    assert (q.read, cam.read) == ({35, 36}, {3})


def test_inputs_without_records() -> None:
    empty = tf.join(joints(0), gripper())
    assert len(empty) == len(tf.join(joints(0), at=gripper())) == 0
    assert empty.values().shape == (0, 4)
    assert len(tf.join(joints(), at=gripper()[:0])) == 0
    with pytest.raises(ValueError, match="no records"):
        _ = empty.start_ts


def test_combined_signal_pickles_small() -> None:
    long = ArraySignal(np.zeros(3), np.arange(3))
    state = tf.join(long, long)
    before = len(pickle.dumps(state))
    assert len(state) == 3
    again = pickle.dumps(state)
    assert len(again) == before
    copy: Any = pickle.loads(again)  # noqa: S301 - our own data
    assert list(map(str, copy)) == list(map(str, state))


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidError, match="at least one signal"):
        tf.join()
    with pytest.raises(InvalidError, match="at least one signal"):
        tf.join({})
    with pytest.raises(InvalidError, match="at least one signal"):
        tf.stack()
    with pytest.raises(InvalidError, match="at least one signal"):
        tf.combine([], max)
    with pytest.raises(InvalidTypeError, match="expected a signal"):
        tf.join(joints(), at=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="expected a signal"):
        tf.join(joints(), [1])  # type: ignore[arg-type]
    joined = tf.join(ArraySignal([1], [1], clocks={"s": np.array([1])}))
    assert joined.clocks == ()
    with pytest.raises(UnknownNameError, match="no clock 's'"):
        joined.clock("s")
