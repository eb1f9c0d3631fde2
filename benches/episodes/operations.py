"""What is timed, one operation a function: it does a round's worth, and says how much that was.

Each prepares what does not belong to it, then takes the time of the rest alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from benches.episodes.questions import TIME_WINDOW_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benches.episodes.questions import Questions
    from benches.peers.episode_peer import Camera, EpisodePeer

    Turn: TypeAlias = "Callable[[int], tuple[int, float]]"

LEAST_DB = 18.0
"""A picture that differs more than that from the one that was recorded is another picture."""


def psnr(found: Any, recorded: Any) -> float:
    """Decibels between two pictures; infinite where they are the same."""
    difference = np.subtract(found, recorded, dtype=np.float32).ravel()
    error = float(np.dot(difference, difference)) / difference.size
    return float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))


@dataclass(frozen=True)
class Places:
    """Where one library keeps what it wrote."""

    folder: Path

    @property
    def episode(self) -> Path:
        """The folder of the robot's episode."""
        return self.folder / "episode"

    @property
    def vectors(self) -> Path:
        """The long signal of vectors."""
        return self.folder / "vectors.parquet"

    @property
    def many(self) -> Path:
        """The folder of many short episodes."""
        return self.folder / "many"


class Reading:
    """The operations on one library's files: an open camera each, an open signal of vectors."""

    def __init__(self, peer: EpisodePeer, asked: Questions, places: Places) -> None:
        self._peer, self._asked, self._places = peer, asked, places
        self._cameras: dict[int, Camera] = {}
        self._signal: Any = None

    def ways(self, operation: str) -> dict[str, Turn]:
        """All ways to do an operation; the fastest is timed."""
        if operation in ("random batch of 64 frames", "window of 16 frames"):
            batch = operation.startswith("random")
            names = list(self._camera(0).batches() if batch else self._camera(0).windows())
            turn = self._batch if batch else self._windows
            return {name: _with(turn, name) for name in names}
        return {"": getattr(self, f"_{OPERATIONS[operation]}")}

    def check(self, operation: str) -> None:
        """Raise unless the library answers a question of `operation` as it should."""
        if operation in FRAME_OPERATIONS:
            self._check_frames()
        elif operation in VECTOR_OPERATIONS:
            self._check_vectors()

    def close(self) -> None:
        """Let go of everything that is open."""
        self._cameras.clear()
        self._signal = None

    def _check_frames(self) -> None:
        camera = self._camera(0)
        recorded = self._asked.robot.frames(0)
        rows = self._asked.batch(-1)[:8]
        near = range(rows[0] % 8, rows[0] % 8 + 8)
        answers: list[tuple[str, Sequence[int], Any]]
        answers = [(f"batch {name}", rows, way(rows)) for name, way in camera.batches().items()]
        answers += [(f"window {name}", near, way(near)) for name, way in camera.windows().items()]
        answers.append(("single", rows, [camera.frame(row) for row in rows]))
        answers.append(("scan", range(20), list(camera.scan(20))))
        for what, asked, found in answers:
            for row, given in zip(asked, found, strict=True):
                close = psnr(camera.picture(given), recorded[row])
                if close < LEAST_DB:
                    message = f"{what}: not the picture of row {row}: {close:.1f} dB"
                    raise ValueError(message)

    def _check_vectors(self) -> None:
        asked, signal = self._asked, self._opened()
        times = asked.samples(-1)
        expected = asked.values[np.searchsorted(asked.times, times, side="right") - 1]
        for queries in (self._peer.times(times.tolist()), self._peer.time_arrays(times)):
            np.testing.assert_array_equal(signal.time[queries].values(), expected)
        one = signal.time[self._peer.times([int(times[5])])[0]]
        np.testing.assert_array_equal(one[0], expected[5])
        row, first, end = asked.time_windows(-1)[0]
        begin, stop = self._peer.times([first, end])
        found = signal.time[begin:stop].values()
        np.testing.assert_array_equal(found, asked.values[row : row + TIME_WINDOW_ROWS])

    def _camera(self, camera: int) -> Camera:
        if camera not in self._cameras:
            self._cameras[camera] = self._peer.camera(self._places.episode, camera)
        return self._cameras[camera]

    def _opened(self) -> Any:
        if self._signal is None:
            self._signal = self._peer.vectors(self._places.vectors)
        return self._signal

    def _frames(self, number: int) -> tuple[int, float]:
        rows = self._asked.frames(number)
        frame = self._camera(self._asked.camera(number)).frame
        begin = perf_counter()
        for row in rows:
            frame(row)
        return len(rows), perf_counter() - begin

    def _batch(self, number: int, way: str) -> tuple[int, float]:
        rows = self._asked.batch(number)
        read = self._camera(self._asked.camera(number)).batches()[way]
        begin = perf_counter()
        read(rows)
        return len(rows), perf_counter() - begin

    def _windows(self, number: int, way: str) -> tuple[int, float]:
        windows = self._asked.windows(number)
        read = self._camera(self._asked.camera(number)).windows()[way]
        begin = perf_counter()
        for rows in windows:
            read(rows)
        return sum(map(len, windows)), perf_counter() - begin

    def _scan(self, number: int) -> tuple[int, float]:
        count = self._asked.scanned
        camera = self._camera(self._asked.camera(number))
        begin = perf_counter()
        for _ in camera.scan(count):
            pass
        return count, perf_counter() - begin

    def _lookups(self, number: int) -> tuple[int, float]:
        queries = self._peer.times(self._asked.lookups(number))
        signal = self._opened()
        begin = perf_counter()
        for query in queries:
            signal.time[query]
        return len(queries), perf_counter() - begin

    def _samples(self, number: int) -> tuple[int, float]:
        return self._sampled(self._peer.times(self._asked.samples(number).tolist()))

    def _sample_array(self, number: int) -> tuple[int, float]:
        return self._sampled(self._peer.time_arrays(self._asked.samples(number)))

    def _sampled(self, queries: Sequence[Any]) -> tuple[int, float]:
        signal = self._opened()
        begin = perf_counter()
        signal.time[queries].values()
        return len(queries), perf_counter() - begin

    def _time_windows(self, number: int) -> tuple[int, float]:
        asked = self._asked.time_windows(number)
        starts = self._peer.times([first for _, first, _ in asked])
        ends = self._peer.times([end for _, _, end in asked])
        signal = self._opened()
        begin = perf_counter()
        for start, end in zip(starts, ends, strict=True):
            signal.time[start:end].values()
        return len(asked), perf_counter() - begin

    def _first_value(self, number: int) -> tuple[int, float]:
        del number
        begin = perf_counter()
        self._peer.first_value(self._places.vectors)
        return 1, perf_counter() - begin

    def _first_lookup(self, number: int) -> tuple[int, float]:
        [query] = self._peer.times(self._asked.lookups(number)[:1])
        begin = perf_counter()
        self._peer.vectors(self._places.vectors).time[query]
        return 1, perf_counter() - begin

    def _open_episode(self, number: int) -> tuple[int, float]:
        del number
        begin = perf_counter()
        self._peer.open_episode(self._places.episode)
        return 1, perf_counter() - begin

    def _open_many(self, number: int) -> tuple[int, float]:
        del number
        begin = perf_counter()
        self._peer.open_many(self._places.many)
        return 1, perf_counter() - begin


def _with(turn: Callable[[int, str], tuple[int, float]], way: str) -> Turn:
    return lambda number: turn(number, way)


FRAME_OPERATIONS = {
    "random frame": "frames",
    "random batch of 64 frames": "batch",
    "window of 16 frames": "windows",
    "frames in order": "scan",
}
VECTOR_OPERATIONS = {
    "time[t]": "lookups",
    "time[[20,000 times]], a list": "samples",
    "time[[20,000 times]], an array": "sample_array",
    "windows of 100 rows": "time_windows",
    "open and first value": "first_value",
    "open and first lookup": "first_lookup",
}
OPERATIONS = {
    **FRAME_OPERATIONS,
    **VECTOR_OPERATIONS,
    "open an episode": "open_episode",
    "open 1,000 episodes": "open_many",
}
"""Every operation, and what does it."""
