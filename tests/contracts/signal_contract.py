"""The signals that must fulfil the `Signal` contract, and a simple model of them.

A factory takes times and returns a signal in which record i has the value `value(i)`. To test
another kind of signal, add one line to `SIGNALS`.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet as pq

from relive.episodes.read.simple_signal import SimpleSignal
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.write.video_writer import VideoSignalWriter
from relive.model.clock import Times
from relive.model.signal import ArraySignal, Signal
from relive.replay import ReplayConfig, ReplayRecorder, ReplaySignal
from relive.replay.episodes import WALL
from relive.replay.source import DatabaseSource
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter
from tests.contracts.source_contract import folder

Stamps: TypeAlias = tuple[int, ...]

NAME = "arm/state"
CLOCK = "sensor"
ATTRS = {"unit": "rad", "axes": ["a", "b"]}
INT64 = np.iinfo(np.int64)


class Kind(NamedTuple):
    """A kind of signal with its expected properties."""

    make: Callable[[Stamps], Signal[Any]]
    value: Callable[[int], Any]
    kind: str
    dtype: Any
    shape: tuple[int, ...]


def vector(i: int) -> npt.NDArray[np.float32]:
    return (np.array([0.0, 0.25, 0.5]) + i).astype(np.float32)


def scalar(i: int) -> np.int64:
    return np.int64(INT64.max - 3 * i)


def text(i: int) -> str:
    return ("", "grasp", "naïve ☃", "a\0b")[i % 4] + "!" * (i // 4)


def depth(i: int) -> npt.NDArray[np.uint16]:
    """Return an image that fills a row group."""
    return (np.arange(480 * 640, dtype=np.uint16) * 7 + i).reshape(480, 640)


def frame(i: int) -> npt.NDArray[np.uint8]:
    return ((np.arange(16 * 18 * 3) * 5 + 31 * i) % 256).astype(np.uint8).reshape(16, 18, 3)


def sensor(count: int) -> npt.NDArray[np.int64]:
    """Return the times of a second clock, which decreases and repeats."""
    return np.array([100 - 10 * (i // 2) for i in range(count)], dtype=np.int64)


def stacked(value: Callable[[int], Any], rows: Iterable[int]) -> npt.NDArray[Any]:
    """Return the values of rows as one array."""
    values = [value(row) for row in rows]
    if isinstance(value(0), str):
        return np.array([*values, None], dtype=object)[:-1]
    example = np.asarray(value(0))
    return np.array(values, dtype=example.dtype).reshape((len(values), *example.shape))


def folder_for(stamps: Stamps, what: str) -> Path:
    """Return the path of a file for the given times."""
    digest = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
    path = folder() / f"{what}-{digest}"
    path.mkdir(exist_ok=True)
    return path


def array_of(value: Callable[[int], Any], stamps: Stamps) -> ArraySignal:
    return ArraySignal(
        stacked(value, range(len(stamps))),
        np.array(stamps, dtype=np.int64),
        name=NAME,
        attrs=ATTRS,
        clocks={CLOCK: sensor(len(stamps))},
    )


def simple_of(value: Callable[[int], Any], stamps: Stamps) -> SimpleSignal:
    """Write the file of a signal, once for the same times."""
    path = folder_for(stamps, value.__name__) / "arm%2Fstate.parquet"
    if not path.exists():
        example = value(0)
        kind = "text" if isinstance(example, str) else "vector" if np.ndim(example) else "scalar"
        dtype = "str" if kind == "text" else np.asarray(example).dtype.name
        meta = SignalMeta(NAME, kind, dtype, np.shape(example), ATTRS, (CLOCK,))
        with ColumnsWriter(path, meta) as writer:
            for row, ts in enumerate(stamps):
                values = stacked(value, [row])
                writer.write(np.array([ts]), values, {CLOCK: sensor(row + 1)[row:]})
    return SimpleSignal(path)


def foreign_of(value: Callable[[int], Any], stamps: Stamps) -> SimpleSignal:
    """Write a file as other programs do, with lists of any length in several row groups."""
    path = folder_for(stamps, f"foreign-{value.__name__}") / "arm%2Fstate.parquet"
    if not path.exists():
        item = pa.from_numpy_dtype(np.asarray(value(0)).dtype)
        columns = {
            "extra": pa.array(["x"] * len(stamps), pa.string()),
            "value": pa.array(
                [np.asarray(value(row)).tolist() for row in range(len(stamps))], pa.list_(item)
            ),
            "timestamp": pa.array(stamps, pa.int64()),
            f"clock.{CLOCK}": pa.array(sensor(len(stamps))),
        }
        pq.write_table(pa.table(columns), path, row_group_size=2, write_statistics=False)
    return SimpleSignal(path)


def video_of(stamps: Stamps) -> VideoSignal:
    """Record a lossless video, once for the same times."""
    path = folder_for(stamps, "video") / "arm%2Fstate.mp4"
    index = path.with_name("arm%2Fstate.frames.parquet")
    if not index.exists():
        with VideoSignalWriter(path, index, "lossless", name=NAME, attrs=ATTRS, gop=3) as writer:
            for row, ts in enumerate(stamps):
                writer.append(frame(row), ts, clocks={CLOCK: int(sensor(row + 1)[row])})
    return VideoSignal(path, index)


def among_others(stamps: Stamps) -> tuple[SimpleSignal, list[int]]:
    """Return a signal twice as long, and the positions of the wanted records in it."""
    count = len(stamps)
    values = np.full((2 * count + 3, 3), np.nan, dtype=np.float32)
    times = np.arange(2 * count + 3, dtype=np.int64)
    clocks = np.full(2 * count + 3, -1, dtype=np.int64)
    positions = list(range(1, 2 * count + 1, 2))
    values[positions] = stacked(vector, range(count))
    clocks[positions] = sensor(count)
    path = folder_for(stamps, "among") / "arm%2Fstate.parquet"
    if not path.exists():
        meta = SignalMeta(NAME, "vector", "float32", (3,), ATTRS, (CLOCK,))
        with ColumnsWriter(path, meta) as writer:
            writer.write(times, values, {CLOCK: clocks})
    return SimpleSignal(path), positions


def range_view(stamps: Stamps) -> Signal[Any]:
    longer, _ = among_others(stamps)
    return longer.select(range(1, 2 * len(stamps) + 1, 2), np.array(stamps, dtype=np.int64))


def array_view(stamps: Stamps) -> Signal[Any]:
    longer, positions = among_others(stamps)
    backwards = longer.select(np.array(positions[::-1], dtype=np.int64))
    stamped = backwards.select(range(len(stamps)), np.array(stamps[::-1], dtype=np.int64))
    return stamped[list(range(len(stamps)))[::-1]]


def window_view(stamps: Stamps) -> Signal[Any]:
    """Return a window of a signal that has records before and after the window."""
    before = [INT64.min] if not stamps or stamps[0] > INT64.min else []
    after = [INT64.max] if not stamps or stamps[-1] < INT64.max else []
    times = np.array([*before, *stamps, *after], dtype=np.int64)
    values = np.full((len(times), 3), np.nan, dtype=np.float32)
    clocks = np.full(len(times), -1, dtype=np.int64)
    inside = slice(len(before), len(before) + len(stamps))
    values[inside], clocks[inside] = stacked(vector, range(len(stamps))), sensor(len(stamps))
    longer = ArraySignal(values, times, name=NAME, attrs=ATTRS, clocks={CLOCK: clocks})
    return longer.time[stamps[0] : stamps[-1] + 1] if stamps else longer.time[0:0]


def sampled(stamps: Stamps) -> Signal[Any]:
    return array_of(vector, stamps).time[list(stamps)]


class _SensorSignal(ReplaySignal):
    """A signal of a run that calls the time at which a step was recorded `CLOCK`."""

    @property
    def clocks(self) -> tuple[str, ...]:
        return (CLOCK,)

    def clock(self, name: str) -> Times:
        return super().clock(WALL if name == CLOCK else name)


@functools.cache
def replay_of(value: Callable[[int], Any], stamps: Stamps) -> Signal[Any]:
    """Record a run, once for the same times; its first step belongs to another signal."""
    root = folder_for(stamps, f"replay-{value.__name__}")
    is_native = not stamps or stamps[0] >= 0  # the numbers of steps are not negative
    if not (root / "replay" / "run.h5").exists():
        config = ReplayConfig(chunk_rows=2, sync_episodes=False)
        with ReplayRecorder(root, "run", config=config, live=None) as recorder:
            recorder.step(truncated=True, extras={"x": value(9)})
            for row, ts in enumerate(stamps):
                clock = int(sensor(row + 1)[row])
                number = ts if is_native else row
                recorder.step(extras={"x": value(row)}, step_index=number, ts_ns=clock)
    source = DatabaseSource(root, "run")
    rows = np.arange(1, 1 + len(stamps))
    signal = _SensorSignal(source, source.arrays.columns["extras.x"], NAME, rows)
    return signal if is_native else signal.select(range(len(stamps)), np.array(stamps))


VECTOR = (vector, "vector", np.dtype(np.float32), (3,))

SIGNALS: dict[str, Kind] = {
    "array": Kind(functools.partial(array_of, vector), *VECTOR),
    "array-scalar": Kind(
        functools.partial(array_of, scalar), scalar, "scalar", np.dtype(np.int64), ()
    ),
    "array-text": Kind(functools.partial(array_of, text), text, "text", "str", ()),
    "simple": Kind(functools.partial(simple_of, vector), *VECTOR),
    "simple-scalar": Kind(
        functools.partial(simple_of, scalar), scalar, "scalar", np.dtype(np.int64), ()
    ),
    "simple-text": Kind(functools.partial(simple_of, text), text, "text", "str", ()),
    "simple-depth": Kind(
        functools.partial(simple_of, depth), depth, "vector", np.dtype(np.uint16), (480, 640)
    ),
    "simple-foreign": Kind(functools.partial(foreign_of, vector), *VECTOR),
    "view-range": Kind(range_view, *VECTOR),
    "view-array": Kind(array_view, *VECTOR),
    "view-window": Kind(window_view, *VECTOR),
    "view-sampled": Kind(sampled, *VECTOR),
    "replay": Kind(functools.partial(replay_of, vector), *VECTOR),
    "replay-scalar": Kind(
        functools.partial(replay_of, scalar), scalar, "scalar", np.dtype(np.int64), ()
    ),
    "replay-image": Kind(
        functools.partial(replay_of, frame), frame, "image", np.dtype(np.uint8), (16, 18, 3)
    ),
    "video": Kind(video_of, frame, "image", np.dtype(np.uint8), (16, 18, 3)),
}


class Naive:
    """A signal as a list of `(number of the value, time, time of the second clock)`."""

    def __init__(self, records: Sequence[tuple[int, int, int]]) -> None:
        self.records = list(records)

    @classmethod
    def of(cls, stamps: Stamps) -> "Naive":
        """Return the model of a signal with these times."""
        clocks = sensor(len(stamps)).tolist()
        return cls([(row, ts, clocks[row]) for row, ts in enumerate(stamps)])

    @property
    def stamps(self) -> list[int]:
        return [ts for _, ts, _ in self.records]

    def __len__(self) -> int:
        return len(self.records)

    def pick(self, rows: Iterable[int]) -> "Naive":
        return Naive([self.records[row] for row in rows])

    def on_clock(self) -> "Naive":
        return Naive([(number, clock, clock) for number, _, clock in self.records])

    def at(self, time: int) -> tuple[int, int, int]:
        """Return the last record at or before `time`."""
        earlier = [(ts, row) for row, ts in enumerate(self.stamps) if ts <= time]
        if not earlier:
            raise KeyError(time)
        return self.records[max(earlier)[1]]

    def window(self, start: int | None, stop: int | None) -> "Naive":
        return Naive(
            [
                record
                for record in self.records
                if (start is None or record[1] >= start) and (stop is None or record[1] < stop)
            ]
        )

    def sample(self, times: Iterable[int]) -> "Naive":
        found = []
        for time in times:
            if time > INT64.max:
                raise ValueError(time)
            number, _, clock = self.at(time)
            found.append((number, time, clock))
        return Naive(found)

    def steps(self, start: int | None, stop: int | None, step: int) -> "Naive":
        if step <= 0 or start is None:
            raise ValueError(start, step)
        if not self.records:
            return Naive([])
        return self.sample(range(start, max(self.stamps) + 1 if stop is None else stop, step))


def assert_signal(signal: Signal[Any], model: Naive, value: Callable[[int], Any]) -> None:
    """Compare all properties of a signal with the model."""
    assert len(signal) == len(model)
    assert signal.timestamps.tolist() == model.stamps
    assert signal.timestamps.dtype == np.int64
    assert not signal.timestamps.flags.writeable
    assert signal.clock(CLOCK).tolist() == [clock for _, _, clock in model.records]
    wanted = stacked(value, (number for number, _, _ in model.records))
    values = signal.values()
    assert not values.flags.writeable
    np.testing.assert_array_equal(values, wanted, strict=True)
    if len(model):
        assert (signal.start_ts, signal.last_ts) == (min(model.stamps), max(model.stamps))


def assert_record(
    found: tuple[Any, int], record: tuple[int, int, int], value: Callable[[int], Any]
) -> None:
    """Compare one record with the model: the time is an `int`, and the value does not change."""
    wanted = value(record[0])
    assert type(found) is tuple
    assert type(found[1]) is int
    assert found[1] == record[1]
    assert type(found[0]) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert not found[0].flags.writeable
        np.testing.assert_array_equal(found[0], wanted, strict=True)
    else:
        assert found[0] == wanted
