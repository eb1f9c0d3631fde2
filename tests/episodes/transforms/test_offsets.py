"""Values at offsets from each record, by position and by time."""

import pickle
from typing import Any

import numpy as np
import pytest

from relive.episodes import transforms as tf
from relive.errors import InvalidError, InvalidTypeError, NoValueError
from relive.model.resample import nearest
from relive.model.signal import ArraySignal
from tests.episodes.transforms.watched import frames, joints


def numbers(*values: float) -> ArraySignal:
    return ArraySignal(np.array(values), np.arange(len(values)) * 10, name="n")


def test_several_offsets_add_a_first_axis() -> None:
    history = tf.index_offsets(frames(9), [-2, -1, 0])
    assert (history.shape, history.dtype) == ((3, 4, 6, 3), np.dtype(np.uint8))
    assert history[5][0][:, 0, 0, 0].tolist() == [3, 4, 5]
    assert tf.index_offsets(numbers(1, 2, 3), [0, 1]).values().tolist() == [[1, 2], [2, 3], [3, 3]]
    words = tf.index_offsets(ArraySignal(["a", "b"], [1, 2]), [-1, 0])
    assert words.values().tolist() == [["a", "a"], ["a", "b"]]
    assert (words.dtype, words.shape) == ("str", (2,))


def test_single_offset_adds_no_axis() -> None:
    following = tf.index_offsets(joints(), 1)
    assert following[3][0].tolist() == joints()[4][0].tolist()
    assert (following.shape, following.kind) == ((3,), "vector")
    assert tf.index_offsets(frames(3), np.int64(1)).kind == "image"
    later = tf.time_offsets(numbers(1, 2, 3), 10)
    assert later.values().tolist() == [2, 3, 3]


def test_edges_repeat_or_are_dropped() -> None:
    signal = numbers(1, 2, 3, 4)
    assert tf.index_offsets(signal, [-9, 9]).values().tolist() == [[1, 4]] * 4
    assert (
        tf.index_offsets(signal, [1 - (1 << 63), (1 << 63) - 1]).values().tolist() == [[1, 4]] * 4
    )
    dropped = tf.index_offsets(signal, [-1, 0, 1], edges="drop")
    assert dropped.timestamps.tolist() == [10, 20]
    assert dropped.values().tolist() == [[1, 2, 3], [2, 3, 4]]
    assert dropped.time[15][0].tolist() == [1, 2, 3]
    assert len(tf.index_offsets(signal, [-3, 1], edges="drop")) == 0
    assert len(tf.index_offsets(signal, (1 << 63) - 1, edges="drop")) == 0


def test_offsets_in_time() -> None:
    signal = numbers(1, 2, 3, 4)
    assert tf.time_offsets(signal, [-10, 0, 15]).values().tolist() == [
        [1, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [3, 4, 4],
    ]
    dropped = tf.time_offsets(signal, [-10, 0, 15], edges="drop")
    assert dropped.timestamps.tolist() == [10]
    assert dropped.values().tolist() == [[1, 2, 3]]
    ahead = tf.time_offsets(signal, [5, 10], edges="drop")
    assert ahead.timestamps.tolist() == [0, 10, 20]


def test_offsets_in_time_with_a_policy() -> None:
    signal = ArraySignal(np.array([0, 10, 20], dtype=np.int32), [0, 10, 20], name="n")
    lazy = tf.time_offsets(signal, [-5, 4], policy="linear")
    assert lazy.dtype == np.float64
    assert lazy.values().tolist() == [[0, 4], [5, 14], [15, 20]]
    near = tf.time_offsets(signal, [4, 6], policy="nearest")
    assert (near.dtype, near.values().tolist()) == (
        np.dtype(np.int32),
        [[0, 10], [10, 20], [20, 20]],
    )
    strict = tf.time_offsets(signal, 5, policy=nearest(3), edges="drop")
    with pytest.raises(NoValueError, match="'n' has no record within 3 ns"):
        strict.values()
    repeated = tf.time_offsets(signal, [-99, 99], policy=nearest(3))
    # The first or last value repeats at any distance.
    assert repeated.values().tolist() == [[0, 20]] * 3
    with pytest.raises(InvalidError, match="'cubic'"):
        tf.time_offsets(signal, 5, policy="cubic")


def test_window_still_reads_records_outside() -> None:
    cam = frames(30)
    history = tf.index_offsets(cam, [-2, 0])
    window = history.time[500:800]
    assert not cam.batches
    assert window.values()[:, :, 0, 0, 0].tolist() == [[3, 5], [4, 6], [5, 7]]
    assert cam.read == {3, 4, 5, 6, 7}
    assert tf.index_offsets(cam.time[500:800], [-2, 0])[0][0][:, 0, 0, 0].tolist() == [5, 5]
    ahead = tf.time_offsets(cam, [0, 250])
    assert ahead.time[500:600].values()[0, :, 0, 0, 0].tolist() == [5, 7]


def test_values_are_read_directly_into_arrays_of_any_layout() -> None:
    lazy = tf.index_offsets(joints(), [0, 1])
    out = np.empty((2, 2, 3))
    assert lazy.values_at(range(4, 6), out) is out
    assert out.tolist() == lazy[4:6].values().tolist()
    strided = np.empty((2, 2, 6))[..., ::2]
    assert lazy.values_at(range(4, 6), strided) is strided
    assert strided.tolist() == out.tolist()


def test_iteration_reads_few_records_twice() -> None:
    cam = frames(200)
    found = [value[0, 0, 0, 0] for value, _ in tf.index_offsets(cam, [0, -1, -2, -3])]
    assert found == list(range(200))
    assert len(cam.batches) == 1


def test_record_times_of_offsets() -> None:
    signal = numbers(1, 2, 3)
    times = tf.index_offsets(tf.record_times(signal), [-1, 0])
    assert times.values().tolist() == [[0, 0], [0, 10], [10, 20]]
    held = tf.time_offsets(tf.record_times(signal), -5)
    assert held.values().tolist() == [0, 0, 10]


def test_rate_is_change_per_second() -> None:
    seconds = np.arange(50) / 10
    values = np.stack([3 * seconds, -seconds], axis=1).astype(np.float32)
    stamps = (seconds * 1e9).astype(np.int64)
    signal = ArraySignal(values, stamps, name="q", attrs={"unit": "m", "names": ["x", "y"]})
    slope = tf.rate(signal, 300_000_000)
    assert np.allclose(slope.values(), [3, -1], atol=1e-4)
    assert (slope.dtype, slope.shape, len(slope)) == (np.dtype(np.float32), (2,), 46)
    assert slope.attrs == {"unit": "m/s", "names": ["x", "y"]}
    assert tf.rate(numbers(0, 1, 2), 10).values().tolist() == [1e8]
    with pytest.raises(InvalidError, match="`over_ns` must be at least 1"):
        tf.rate(signal, 0)
    with pytest.raises(InvalidTypeError, match="cannot interpolate"):
        tf.rate(ArraySignal(["a"], [1]), 2)


@pytest.mark.parametrize("make", [tf.index_offsets, tf.time_offsets])
def test_arguments_are_checked(make: Any) -> None:
    for wrong in (1.5, [0.5], "1", [True], True, None, [[1]], np.array([[1]])):
        with pytest.raises(InvalidTypeError):
            make(joints(), wrong)
    with pytest.raises(InvalidError, match="must not be empty"):
        make(joints(), [])
    with pytest.raises(InvalidError, match="must be at most"):
        make(joints(), [1 << 63])
    with pytest.raises(InvalidError, match="'keep'"):
        make(joints(), 1, edges="keep")


@pytest.mark.parametrize("edges", ["repeat", "drop"])
@pytest.mark.parametrize("make", [tf.index_offsets, tf.time_offsets])
def test_signal_without_records(make: Any, edges: str) -> None:
    empty = make(joints(0), [-1, 1], edges=edges)
    assert (len(empty), empty.values().shape) == (0, (0, 2, 3))
    assert list(empty.time[:]) == []
    assert len(pickle.loads(pickle.dumps(empty))) == 0  # noqa: S301 - our own data
