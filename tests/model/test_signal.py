"""Custom signals, and signals over arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive import errors
from relive._arguments import type_name
from relive.model.clock import Times
from relive.model.schema import DType
from relive.model.signal import ArraySignal, Signal, SignalView, ordered, taken_into
from relive.model.source import Rows


class Squares(Signal[int]):
    """A signal with only the required methods."""

    reads = 0

    @property
    def name(self) -> str:
        return "squares"

    @property
    def kind(self) -> str:
        return "scalar"

    @property
    def dtype(self) -> DType:
        return np.dtype(np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def timestamps(self) -> Times:
        return np.arange(5000, dtype=np.int64) * 10

    def __len__(self) -> int:
        return 5000

    def value_at(self, row: int) -> int:
        return row * row

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        self.reads += 1
        return np.multiply(rows, rows, out=out)


def test_subclass_needs_only_a_few_methods() -> None:
    signal = Squares()
    assert signal[3] == (9, 30)
    assert signal.time[39] == (9, 30)
    assert signal.time[20:40].values().tolist() == [4, 9]
    assert signal.time[20:40:15].timestamps.tolist() == [20, 35]
    assert signal.time[[0, 49_995]].values().tolist() == [0, 4999**2]
    assert (signal.start_ts, signal.last_ts) == (0, 49_990)
    assert np.asarray(signal.gather([[2, 1]])["value"]).tolist() == [[4, 1]]
    assert (signal.attrs, signal.clocks) == ({}, ())
    assert repr(signal) == "Squares('squares', 5000 records of int64)"
    with pytest.raises(errors.UnknownNameError, match=r"no clock 'x'.*none"):
        signal.clock("x")


def test_iteration_reads_each_value_once_and_in_chunks() -> None:
    signal = Squares()
    assert [value for value, _ in signal] == [row * row for row in range(5000)]
    assert signal.reads == 5
    assert [ts for _, ts in reversed(signal)] == list(range(49_990, -1, -10))
    assert signal.reads == 10
    first = next(iter(signal[100:]))
    assert first == (10_000, 1000)
    assert signal.reads == 11


def array_signal(count: int = 10, **more: Any) -> ArraySignal:
    values = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    return ArraySignal(values, np.arange(count) * 10, **more)


def test_windows_are_views_of_the_same_memory() -> None:
    signal = array_signal()
    whole = signal.values()
    for view in (signal[2:5], signal.time[20:50], signal[1:][1:4], signal[::2], signal[9:0:1]):
        assert np.shares_memory(view.values(), whole) or not len(view)
    assert np.shares_memory(signal[3][0], whole)
    assert not np.shares_memory(signal[[2, 3]].values(), whole)
    assert not np.shares_memory(signal.time[[25, 35]].values(), whole)


def test_view_of_a_view_refers_to_the_signal() -> None:
    signal = array_signal()
    view = signal[1:].time[20:][::2].time[[95, 45]][[1, 0]]
    assert isinstance(view, SignalView)
    assert view._base is signal
    assert isinstance(signal[1:][::2][1:3]._rows, range)  # type: ignore[attr-defined]
    assert view.timestamps.tolist() == [45, 95]
    assert view.values()[:, 0].tolist() == [8, 16]


def test_samples_can_be_sampled_again() -> None:
    signal = array_signal()
    samples = signal.time[[50, 10, 50, 31]]
    assert samples.timestamps.tolist() == [50, 10, 50, 31]
    assert (samples.start_ts, samples.last_ts) == (10, 50)
    value, ts = samples.time[40]
    assert (value.tolist(), ts) == ([6, 7], 31)
    assert samples.time[:].timestamps.tolist() == [50, 10, 50, 31]
    assert samples.time[31:].timestamps.tolist() == [50, 50, 31]
    assert samples.time[10::20].timestamps.tolist() == [10, 30, 50]
    assert samples.time[10::20].values()[:, 0].tolist() == [2, 2, 10]
    with pytest.raises(errors.NoValueError, match="first record is at 10"):
        samples.time[9]


def test_decreasing_ranges() -> None:
    signal = array_signal()
    view = signal[range(9, -1, -3)]
    assert view.timestamps.tolist() == [90, 60, 30, 0]
    assert view[range(3, -1, -1)].timestamps.tolist() == [0, 30, 60, 90]
    assert view[1:3].values()[:, 0].tolist() == [12, 6]
    assert view.time[65][1] == 60


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [
        ([1, 2], "scalar", np.dtype(np.int64)),
        ([True, False], "scalar", np.dtype(np.bool_)),
        ([[1.5], [2.5]], "vector", np.dtype(np.float64)),
        (["a", "b\0"], "text", "str"),
        (np.array(["a", "bc"]), "text", "str"),
        (np.array(["a", "bc"], dtype=object), "text", "str"),
        (np.array(["a", "bc"], dtype=np.dtypes.StringDType()), "text", "str"),
    ],
)
def test_arrays_of_many_kinds(values: Any, kind: str, dtype: Any) -> None:
    signal = ArraySignal(values, [1, 2])
    assert (signal.kind, signal.dtype) == (kind, dtype)
    assert signal.values().tolist() == list(np.asarray(values, dtype=object).tolist())
    if kind == "text":
        assert [type(value) for value, _ in signal] == [str, str]


@pytest.mark.parametrize(
    ("values", "times", "error"),
    [
        ([1, 2], [1], ValueError),
        (3, [1], ValueError),
        ([1j], [1], TypeError),
        ([b"x"], [1], TypeError),
        ([None], [1], TypeError),
        ([["a"]], [1], TypeError),
        ([1], [1.0], TypeError),
        ([1], [True], TypeError),
        ([1], [2**63], ValueError),
        ([1], [-(2**63) - 1], ValueError),
    ],
    ids=repr,
)
def test_invalid_arrays_raise(values: Any, times: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ArraySignal(values, times)


def test_clocks_must_have_the_length_of_the_signal() -> None:
    with pytest.raises(errors.InvalidError, match="clock 'sensor' has length 1, expected 2"):
        ArraySignal([1, 2], [1, 2], clocks={"sensor": np.array([1])})
    signal = array_signal(3, clocks={"sensor": [7, 5, 6]})
    assert signal[1:].on("sensor").time[6][0].tolist() == [4, 5]


def test_time_axis_is_sorted_and_contiguous() -> None:
    times, low, high, order = ordered(np.arange(20)[::2])
    assert times.flags.c_contiguous
    assert (low, high, order) == (0, 10, None)
    times, _, _, order = ordered(np.array([5, 1, 5, 0]))
    assert times.tolist() == [0, 1, 5, 5]
    assert order is not None
    assert order.tolist() == [3, 1, 0, 2]
    assert array_signal()[::3].time_axis()[0].flags.c_contiguous


def test_taken_into_selects_elements() -> None:
    values = np.arange(5)
    values.flags.writeable = False
    assert taken_into(values, range(4, -1, -2)).tolist() == [4, 2, 0]
    assert taken_into(values, range(0)).tolist() == []
    assert taken_into(values, range(7, 7)).tolist() == []
    assert taken_into(values, np.array([3, 3])).tolist() == [3, 3]
    out = np.zeros(2, dtype=np.int64)
    assert taken_into(values, range(1, 5, 2), out) is out
    assert out.tolist() == [1, 3]
    assert taken_into(values, np.array([4, 0]), out) is out
    assert out.tolist() == [4, 0]
    assert not taken_into(values, range(2)).flags.writeable


def test_numpy_asarray_returns_the_values() -> None:
    signal = ArraySignal([[1.0, 2.0], [3.0, 4.0]], [10, 20])
    assert np.asarray(signal).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert np.shares_memory(np.asarray(signal), signal.values())
    assert np.asarray(signal[1:]).tolist() == [[3.0, 4.0]]
    assert np.asarray(signal, dtype=np.float32).dtype == np.float32
    copy = np.array(signal)
    copy[0] = 9
    assert signal[0][0].tolist() == [1.0, 2.0]
    assert np.mean(signal, axis=0).tolist() == [2.0, 3.0]
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        assert np.asarray(signal, copy=False) is not None
        with pytest.raises(ValueError, match="copy"):
            np.asarray(signal, dtype=np.float32, copy=False)
    assert np.asarray(ArraySignal(["a", "b"], [1, 2])).tolist() == ["a", "b"]


def test_ellipsis_selects_everything() -> None:
    signal = ArraySignal([1.0, 2.0], [10, 20])
    assert list(signal.time[...]) == list(signal[...]) == list(signal)


@pytest.mark.parametrize(
    ("key", "kind"), [(object(), "an object"), (np.zeros(()), "an ndarray"), (1.5, "a float")]
)
def test_messages_have_the_right_articles(key: Any, kind: str) -> None:
    with pytest.raises(errors.InvalidTypeError, match=f"got {kind}"):
        ArraySignal([1.0], [10]).time[key]
    assert type_name(np.uint8) == "a uint8"
