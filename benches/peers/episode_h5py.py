"""h5py: one file per episode, a dataset for each signal and one for its times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.episodes.robot import CAMERAS, HEIGHT, JOINTS, STATE, WIDTH
from benches.peers import module
from benches.peers.episode_peer import Camera, EpisodePeer, Recorder, VectorWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benches.peers.episode_peer import Picture, Ways

FILE = "episode.h5"
CHUNK_ROWS = 4096
GROWN_ROWS = 1024


class H5pyEpisode(EpisodePeer):
    """A chunk for each picture, as it is or packed by one of HDF5's own filters."""

    family: ClassVar[str] = "h5py"
    packages: ClassVar[tuple[str, ...]] = ("h5py",)
    appends: ClassVar[int | None] = 20_000

    def __init__(self, packing: str | None = None) -> None:
        self._packing = packing
        self.name = f"h5py, {packing or 'raw'}"

    def recorder(self, root: Path) -> Recorder:
        """`h5py.File(…, "w")` with datasets that grow."""
        return _Recorder(root, self._packing)

    def camera(self, root: Path, camera: int) -> Camera:
        """`file[name]`."""
        return _Camera(module("h5py").File(root / FILE, "r")[CAMERAS[camera]])

    def vector_writer(self, path: Path) -> VectorWriter:
        """Two datasets that grow."""
        return _VectorWriter(path)

    def vectors(self, path: Path) -> Any:
        """Times and values, read whole."""
        with module("h5py").File(path, "r") as file:
            return _Signal(file["times"][:], file[STATE][:])

    def first_value(self, path: Path) -> Any:
        """One row of each dataset."""
        with module("h5py").File(path, "r") as file:
            return file[STATE][0], int(file["times"][0])

    def time_arrays(self, times: NDArray[np.int64]) -> Any:
        """The array itself."""
        return times

    def open_episode(self, root: Path) -> Any:
        """The shape of every dataset, and both ends of its times."""
        with module("h5py").File(root / FILE, "r") as file:
            ends = {}
            for name in (STATE, *CAMERAS):
                times = file[f"{name}.times"]
                ends[name] = (len(file[name]), int(times[0]), int(times[-1]))
            return ends

    def sizes(self, root: Path) -> dict[str, int]:
        """What each dataset and its times take."""
        with module("h5py").File(root / FILE, "r") as file:
            found = {
                name: sum(file[each].id.get_storage_size() for each in (name, f"{name}.times"))
                for name in (STATE, *CAMERAS)
            }
        found["rest"] = (root / FILE).stat().st_size - sum(found.values())
        return found


class _Rows:
    """A dataset that rows are appended to, and one for their times."""

    def __init__(
        self, file: Any, name: str, times: str, row: tuple[int, ...], **options: Any
    ) -> None:
        self._values = file.create_dataset(name, (0, *row), maxshape=(None, *row), **options)
        self._times = file.create_dataset(
            times, (0,), np.int64, maxshape=(None,), chunks=(CHUNK_ROWS,)
        )
        self._rows = self._room = 0

    def append(self, row: Any, ts_ns: int) -> None:
        place = self._rows
        if place == self._room:
            self._room += GROWN_ROWS if self._values.ndim == 2 else 1
            self._values.resize(self._room, axis=0)
            self._times.resize(self._room, axis=0)
        self._values[place] = row
        self._times[place] = ts_ns
        self._rows = place + 1

    def close(self) -> None:
        self._values.resize(self._rows, axis=0)
        self._times.resize(self._rows, axis=0)


class _Recorder(Recorder):
    def __init__(self, root: Path, packing: str | None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._file = module("h5py").File(root / FILE, "w")
        self._state = _states(self._file, f"{STATE}.times")
        shape = (HEIGHT, WIDTH, 3)
        self._cameras = [
            _Rows(
                self._file,
                name,
                f"{name}.times",
                shape,
                dtype=np.uint8,
                chunks=(1, *shape),
                compression=packing,
            )
            for name in CAMERAS
        ]

    def state(self, ts_ns: int, row: NDArray[np.float32]) -> None:
        self._state.append(row, ts_ns)

    def frame(self, camera: int, ts_ns: int, picture: Picture) -> None:
        self._cameras[camera].append(picture, ts_ns)

    def close(self) -> None:
        for rows in (self._state, *self._cameras):
            rows.close()
        self._file.close()


class _VectorWriter(VectorWriter):
    def __init__(self, path: Path) -> None:
        self._file = module("h5py").File(path, "w")
        self._rows = _states(self._file, "times")
        self.append = self._rows.append

    def close(self) -> None:
        self._rows.close()
        self._file.close()


def _states(file: Any, times: str) -> _Rows:
    chunks = (CHUNK_ROWS, JOINTS)
    return _Rows(file, STATE, times, (JOINTS,), dtype=np.float32, chunks=chunks)


class _Camera(Camera):
    def __init__(self, data: Any) -> None:
        self._data = data

    def frame(self, row: int) -> Any:
        return self._data[row]

    def batches(self) -> Ways:
        return {"one by one": self._singly}

    def windows(self) -> Ways:
        return {"slice": lambda rows: self._data[rows[0] : rows[-1] + 1]}

    def scan(self, count: int) -> Iterator[Any]:
        return (self._data[row] for row in range(count))

    def _singly(self, rows: Sequence[int]) -> Any:
        found = np.empty((len(rows), HEIGHT, WIDTH, 3), np.uint8)
        for place, row in enumerate(rows):
            self._data.read_direct(found, np.s_[row], np.s_[place])
        return found


class _Signal:
    """What anyone writes around two arrays to look up by time; `time` is itself."""

    def __init__(self, times: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        self._times = times
        self._values = values
        self.time = self

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            first, end = np.searchsorted(self._times, (key.start, key.stop))
            return _Signal(self._times[first:end], self._values[first:end])
        rows = np.searchsorted(self._times, key, side="right") - 1
        if isinstance(key, int):
            return self._values[rows], self._times[rows]
        return _Signal(np.asarray(key), self._values[rows])

    def values(self) -> NDArray[np.float32]:
        return self._values
