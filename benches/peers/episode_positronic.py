"""positronic: the library whose design relive's episodes follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.episodes.robot import CAMERAS, STATE
from benches.peers import module
from benches.peers.episode_peer import (
    Camera,
    EpisodePeer,
    Recorder,
    VectorWriter,
    by_name,
    signal_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benches.peers.episode_peer import Picture, Ways

SMALL_ROWS = 10


class PositronicEpisode(EpisodePeer):
    """Its defaults: H.264 at the default preset, a key frame in every 30."""

    name = "positronic"
    family: ClassVar[str] = "positronic"
    packages: ClassVar[tuple[str, ...]] = ("positronic", "av", "pyarrow")

    def recorder(self, root: Path) -> Recorder:
        """`LocalDatasetWriter(root).new_episode()`."""
        return _Recorder(root)

    def camera(self, root: Path, camera: int) -> Camera:
        """`LocalDataset(root)[0][name]`."""
        return _Camera(_dataset(root)[0][CAMERAS[camera]])

    def vector_writer(self, path: Path) -> VectorWriter:
        """`SimpleSignalWriter(path)`."""
        return _VectorWriter(path)

    def vectors(self, path: Path) -> Any:
        """`SimpleSignal(path)`."""
        return module("positronic.dataset.vector").SimpleSignal(path)

    def times(self, times: Sequence[int]) -> Sequence[Any]:
        """`Time(recorded=…)` of each."""
        make = module("positronic.dataset").Time
        return [make(recorded=time) for time in times]

    def open_episode(self, root: Path) -> Any:
        """`LocalDataset(root)[0]`, and `len` and `bounds` of every signal."""
        episode = _dataset(root)[0]
        return {
            name: (len(signal), signal.bounds("recorded"))
            for name, signal in episode.signals.items()
        }

    def write_many(self, root: Path, episodes: int) -> None:
        """Episodes of one signal and one static."""
        writer = module("positronic.dataset.local_dataset").LocalDatasetWriter(root)
        make = module("positronic.dataset").Time
        rows = np.zeros((SMALL_ROWS, 7), np.float32)
        for number in range(episodes):
            with writer.new_episode() as episode:
                episode.set_static("task", f"task {number}")
                for place, row in enumerate(rows):
                    episode.append(STATE, row, make(recorded=place))

    def open_many(self, root: Path) -> int:
        """`len(LocalDataset(root))`."""
        return len(_dataset(root))

    def sizes(self, root: Path) -> dict[str, int]:
        """A signal's Parquet file, or its film and its index."""
        return by_name(root, lambda path: signal_of(path, (STATE, *CAMERAS)))


class PositronicThroughEpisode(PositronicEpisode):
    """The same, appended to by name through the writer of an episode."""

    name = "positronic, by name"

    def vector_writer(self, path: Path) -> VectorWriter:
        """`LocalDatasetWriter(path).new_episode()`."""
        return _NamedWriter(path)


class _Recorder(Recorder):
    def __init__(self, root: Path) -> None:
        self._time = module("positronic.dataset").Time
        self._writer = module("positronic.dataset.local_dataset").LocalDatasetWriter(root)
        self._episode = self._writer.new_episode()

    def state(self, ts_ns: int, row: NDArray[np.float32]) -> None:
        self._episode.append(STATE, row, self._time(recorded=ts_ns))

    def frame(self, camera: int, ts_ns: int, picture: Picture) -> None:
        self._episode.append(CAMERAS[camera], picture, self._time(recorded=ts_ns))

    def close(self) -> None:
        self._episode.__exit__(None, None, None)


class _VectorWriter(VectorWriter):
    def __init__(self, path: Path) -> None:
        self._time = module("positronic.dataset").Time
        self._writer = module("positronic.dataset.vector").SimpleSignalWriter(path)
        self.append = self._writer.append

    def stamp(self, ts_ns: int) -> Any:
        return self._time(recorded=ts_ns)

    def close(self) -> None:
        self._writer.__exit__(None, None, None)


class _NamedWriter(VectorWriter):
    def __init__(self, path: Path) -> None:
        self._time = module("positronic.dataset").Time
        writer = module("positronic.dataset.local_dataset").LocalDatasetWriter(path)
        self._episode = writer.new_episode()
        append = self._episode.append
        self.append = lambda row, stamp: append(STATE, row, stamp)

    def stamp(self, ts_ns: int) -> Any:
        return self._time(recorded=ts_ns)

    def close(self) -> None:
        self._episode.__exit__(None, None, None)


class _Camera(Camera):
    """Its indices must ascend; the order that was asked for is restored."""

    def __init__(self, signal: Any) -> None:
        self._signal = signal

    def frame(self, row: int) -> Any:
        return self._signal[row][0]

    def batches(self) -> Ways:
        return {"ascending": self._ascending, "one by one": self._singly}

    def windows(self) -> Ways:
        return {"slice": self._slice}

    def scan(self, count: int) -> Iterator[Any]:
        return (self._signal[row][0] for row in range(count))

    def _ascending(self, rows: Sequence[int]) -> Any:
        order = np.argsort(rows)
        values = self._signal[np.asarray(rows)[order]].values()
        first = values[0]
        found = np.empty((len(rows), *first.shape), first.dtype)
        for place, value in zip(order.tolist(), values, strict=True):
            found[place] = value
        return found

    def _singly(self, rows: Sequence[int]) -> Any:
        return np.stack([self._signal[row][0] for row in rows])

    def _slice(self, rows: Sequence[int]) -> Any:
        return np.stack(list(self._signal[rows[0] : rows[-1] + 1].values()))


def _dataset(root: Path) -> Any:
    return module("positronic.dataset.local_dataset").LocalDataset(root)
