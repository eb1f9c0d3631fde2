"""relive: `relive.episodes`, at its defaults but for the profile of its cameras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.episodes.robot import CAMERAS, JOINTS, STATE
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

PROFILES = ("record", "compact", "fast", "lossless")
SMALL_ROWS = 10


class ReliveEpisode(EpisodePeer):
    """One of its profiles; without one, what does not depend on any."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive", "av", "pyarrow")

    def __init__(self, profile: str | None = None) -> None:
        self._profile = profile or PROFILES[0]
        self.name = f"relive {profile}" if profile else "relive"

    def recorder(self, root: Path) -> Recorder:
        """`LocalDatasetWriter(root, video=profile).new_episode()`."""
        return _Recorder(root, self._profile)

    def camera(self, root: Path, camera: int) -> Camera:
        """`LocalDataset(root)[0][name]`."""
        return _Camera(_dataset(root)[0][CAMERAS[camera]])

    def vector_writer(self, path: Path) -> VectorWriter:
        """`SimpleSignalWriter(path)`."""
        return _VectorWriter(path)

    def vectors(self, path: Path) -> Any:
        """`SimpleSignal(path)`."""
        return module("relive.episodes").SimpleSignal(path)

    def time_arrays(self, times: NDArray[np.int64]) -> Any:
        """The array itself."""
        return times

    def open_episode(self, root: Path) -> Any:
        """`LocalDataset(root)[0]`, and length, start and end of every signal."""
        episode = _dataset(root)[0]
        return {
            name: (len(signal), signal.start_ts, signal.last_ts)
            for name, signal in episode.signals.items()
        }

    def write_many(self, root: Path, episodes: int) -> None:
        """Episodes of one signal and one static."""
        rows = np.zeros((SMALL_ROWS, JOINTS), np.float32)
        with module("relive.episodes").LocalDatasetWriter(root) as writer:
            for number in range(episodes):
                with writer.new_episode() as episode:
                    episode.set_static("task", f"task {number}")
                    for place, row in enumerate(rows):
                        episode.append(STATE, row, place)

    def open_many(self, root: Path) -> int:
        """`len(LocalDataset(root))`."""
        return len(_dataset(root))

    def sizes(self, root: Path) -> dict[str, int]:
        """A signal's Parquet file, or its film and its index."""
        return by_name(root, lambda path: signal_of(path, (STATE, *CAMERAS)))


class ReliveThroughEpisode(ReliveEpisode):
    """The same, appended to by name through the writer of an episode."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "relive, by name"

    def vector_writer(self, path: Path) -> VectorWriter:
        """`LocalDatasetWriter(path).new_episode()`."""
        return _NamedWriter(path)


class _Recorder(Recorder):
    def __init__(self, root: Path, profile: str) -> None:
        self._writer = module("relive.episodes").LocalDatasetWriter(root, video=profile)
        self._episode = self._writer.new_episode()
        self._append = self._episode.append

    def state(self, ts_ns: int, row: NDArray[np.float32]) -> None:
        self._append(STATE, row, ts_ns)

    def frame(self, camera: int, ts_ns: int, picture: Picture) -> None:
        self._append(CAMERAS[camera], picture, ts_ns)

    def close(self) -> None:
        self._episode.__exit__(None, None, None)
        self._writer.__exit__(None, None, None)


class _VectorWriter(VectorWriter):
    def __init__(self, path: Path) -> None:
        self._writer = module("relive.episodes").SimpleSignalWriter(path)
        self.append = self._writer.append

    def close(self) -> None:
        self._writer.__exit__(None, None, None)


class _NamedWriter(VectorWriter):
    def __init__(self, path: Path) -> None:
        self._writer = module("relive.episodes").LocalDatasetWriter(path)
        self._episode = self._writer.new_episode()
        append = self._episode.append
        self.append = lambda row, ts_ns: append(STATE, row, ts_ns)

    def close(self) -> None:
        self._episode.__exit__(None, None, None)
        self._writer.__exit__(None, None, None)


class _Camera(Camera):
    def __init__(self, signal: Any) -> None:
        self._signal = signal

    def frame(self, row: int) -> Any:
        return self._signal[row][0]

    def batches(self) -> Ways:
        return {"gather": self._gather}

    def windows(self) -> Ways:
        return {"slice": lambda rows: self._signal[rows[0] : rows[-1] + 1].values()}

    def scan(self, count: int) -> Iterator[Any]:
        whole = self._signal if count == len(self._signal) else self._signal[:count]
        return (value for value, _ in whole)

    def _gather(self, rows: Sequence[int]) -> Any:
        return self._signal.gather(rows, fields=["value"])["value"]


def _dataset(root: Path) -> Any:
    return module("relive.episodes").LocalDataset(root)
