"""h5py: frames and observations in chunks of 64 rows, written a chunk at a time; scalars in SQLite.

It has no recovery and no live lane, and a kill loses the block in memory and often the file.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import module
from benches.peers.replay_peer import RUN_ID, Reader, ReplayPeer, Writer
from benches.peers.replay_sqlite import FILE, StepTable, query_rows, row_of
from benches.replay.scenes import FRAME, OBSERVATION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benches.replay.scenes import Step

BLOCK = 64
FILTERS = ("gzip-4", "lzf", "blosc-lz4")
SHAPES = {"frames": FRAME, "observations": OBSERVATION}
ARRAYS = f"{RUN_ID}.h5"


class H5pyRun(ReplayPeer):
    """One of `FILTERS`."""

    family: ClassVar[str] = "h5py"
    packages: ClassVar[tuple[str, ...]] = ("h5py", "hdf5plugin")

    def __init__(self, packing: str) -> None:
        self._packing = packing
        self.name = f"h5py, {packing}"

    def writer(self, root: Path, steps: int) -> Writer:
        """Datasets that grow by a block at a time."""
        del steps
        return _Writer(root, _options(self._packing))

    def reader(self, root: Path) -> Reader:
        """`file[name][first:end]`."""
        return _Reader(root)


class _Writer(Writer):
    def __init__(self, root: Path, options: Mapping[str, Any]) -> None:
        self._file = module("h5py").File(root / ARRAYS, "w")
        self._datasets = {
            name: self._file.create_dataset(
                name, (0, *shape), "u1", chunks=(BLOCK, *shape), maxshape=(None, *shape), **options
            )
            for name, shape in SHAPES.items()
        }
        self._blocks = {name: np.empty((BLOCK, *shape), np.uint8) for name, shape in SHAPES.items()}
        self._table = StepTable(root, ("frame_ref", "obs_ref"), "TEXT")
        self._rows: list[tuple[Any, ...]] = []
        self._written = 0

    def step(self, step: Step) -> None:
        at = len(self._rows)
        self._blocks["frames"][at] = step.frame
        self._blocks["observations"][at] = step.observation
        number = self._written + at
        refs = (f"h5://{RUN_ID}/{name}/{number}" for name in SHAPES)
        self._rows.append(row_of(step, *refs))
        if len(self._rows) == BLOCK:
            self._write()

    def close(self) -> None:
        self._write()
        self._file.close()
        self._table.close()

    def _write(self) -> None:
        first, count = self._written, len(self._rows)
        for name, dataset in self._datasets.items():
            dataset.resize(first + count, axis=0)
            dataset[first:] = self._blocks[name][:count]
        self._table.add(self._rows)
        self._rows = []
        self._written += count


class _Reader(Reader):
    def __init__(self, root: Path) -> None:
        module("hdf5plugin")
        self._file = module("h5py").File(root / ARRAYS, "r")
        self._database = sqlite3.connect(root / FILE)

    def arrays(self, episode: int, first: int, count: int) -> tuple[Any, Any]:
        del episode
        frames, observations = (self._file[name][first : first + count] for name in SHAPES)
        return frames, observations

    def rows(self, episode: int) -> Any:
        return query_rows(self._database, episode)

    def close(self) -> None:
        self._file.close()
        self._database.close()


def _options(packing: str) -> Mapping[str, Any]:
    if packing == "gzip-4":
        return {"compression": "gzip", "compression_opts": 4}
    if packing == "lzf":
        return {"compression": "lzf"}
    found: Mapping[str, Any] = module("hdf5plugin").Blosc(cname="lz4")
    return found
