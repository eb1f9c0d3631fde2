"""The runs of the pack bench: made up, but well formed, and their steps as plain tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.data import Case
from benches.pagecache import fill
from benches.peers import module
from benches.peers.payload_relive import open_pack, write_pack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

BATCH_SIZE = 4096
FEWEST, MOST = 1200, 2400
"""Steps of a run; 1800 of them are about 60 KiB."""

_WRITTEN = 1 << 18

ALL_FIELDS = np.dtype(
    [
        ("board", "<u8"),
        ("cells", "u1", (4, 4)),
        ("move", "u1"),
        ("legal", "u1"),
        ("branches", "<f4", (4,)),
        ("next_board", "<u8"),
        ("reward", "<u4"),
        ("last", "?"),
        ("terminal", "?"),
        ("steps_left", "<u4"),
        ("run", "<u4"),
        ("step", "<u4"),
    ]
)
PROJECTION = np.dtype(
    [
        ("board", "<u8"),
        ("move", "u1"),
        ("legal", "u1"),
        ("branches", "<f4", (4,)),
        ("run", "<u4"),
        ("step", "<u2"),
    ]
)
"""The projection that people made of packs by hand: 32 bytes a step."""


@dataclass(frozen=True)
class StepCase(Case):
    """The steps of `runs` runs: in packs, and as rows of `dtype` in a `.npy` file."""

    runs: int = 0
    projected: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """A row of the table: all fields, or those of the projection."""
        return PROJECTION if self.projected else ALL_FIELDS

    @property
    def stem(self) -> str:
        """What every file that holds these runs is called, less its suffix."""
        return f"runs-{self.runs}"

    @property
    def path(self) -> Path:
        """The table of steps."""
        return self.folder / f"{self.stem}.steps{self.dtype.itemsize}.npy"

    @property
    def pack(self) -> Path:
        """The runs in a pack without a table of steps."""
        return self.folder / f"{self.stem}.a2pack"

    @property
    def pack_with_steps(self) -> Path:
        """The runs in a pack with a table of steps."""
        return self.folder / f"{self.stem}.steps.a2pack"

    @cached_property
    def first_steps(self) -> NDArray[np.int64]:
        """The row of each run's first step."""
        counts = _step_counts(self.runs)
        found: NDArray[np.int64] = np.cumsum(counts) - counts
        return found

    def memmap(self) -> NDArray[Any]:
        """The table of steps, mapped."""
        mapped: NDArray[Any] = np.load(self.path, mmap_mode="r")
        return mapped

    def make(self) -> None:
        """Write both packs and the table, unless they are there; all end in the page cache."""
        self.folder.mkdir(parents=True, exist_ok=True)
        make_runs(self.pack, self.runs)
        make_runs(self.pack_with_steps, self.runs, steps=True)
        if not self.path.exists():
            partial = self.path.with_suffix(".partial")
            self._write_table(partial)
            partial.rename(self.path)
        fill([self.pack, self.pack_with_steps, self.path])

    def _write_table(self, path: Path) -> None:
        shape = (self.records,)
        table = np.lib.format.open_memmap(path, mode="w+", dtype=self.dtype, shape=shape)
        boards = np.concatenate([run.boards[:-1] for run in made_runs(self.runs)])
        with open_pack(self.pack) as reader:
            steps = reader.steps()
            assert len(steps) == self.records
            for start in range(0, self.records, _WRITTEN):
                part = table[start : start + _WRITTEN]
                found = steps.gather(np.arange(start, start + len(part)))
                for name in self.dtype.names or ():
                    part[name] = found[name]
        # The table is relive's own decoding of the pack; what was put in is known apart from it.
        assert np.array_equal(table["board"], boards)
        table.flush()

    def check(self, batch: Any) -> None:
        """Raise unless `batch` maps every field to true values."""
        rows = self.first_steps[np.asarray(batch["run"])] + np.asarray(batch["step"])
        if len(rows) != self.batch_size:
            message = f"delivered {len(rows)} steps, not {self.batch_size}"
            raise AssertionError(message)
        wanted = self.memmap()[rows]
        for name in self.dtype.names or ():
            if not np.array_equal(batch[name], wanted[name], equal_nan=name == "branches"):
                message = f"delivered {name!r} that is not in the table"
                raise AssertionError(message)


def step_case(folder: Path, runs: int, *, projected: bool) -> StepCase:
    """The steps of `runs` runs, with all fields or with those of the projection."""
    runs = max(runs, 4 * BATCH_SIZE // FEWEST)
    records = int(_step_counts(runs).sum())
    dtype = PROJECTION if projected else ALL_FIELDS
    name = "steps, the 32-byte projection" if projected else "steps, all fields"
    return StepCase(
        name, dtype.itemsize, records, BATCH_SIZE, folder, runs=runs, projected=projected
    )


def make_runs(path: Path, count: int, *, distinct: int | None = None, steps: bool = False) -> None:
    """Write a pack of `count` runs unless it is there; `distinct` of them, over and over."""
    if path.exists():
        return
    kinds = [run.to_bytes() for run in made_runs(distinct or count)]
    payloads = (kinds[position % len(kinds)] for position in range(count))
    write_pack(payloads, path, kind="v2", steps=steps)


def made_runs(count: int) -> Iterator[Any]:
    """Runs whose boards change by one cell a step, with branch values for legal moves."""
    run_type = module("relive").Run
    generator = np.random.default_rng(count)
    for number, steps in enumerate(_step_counts(count).tolist()):
        cell = generator.integers(0, 16, steps + 1, dtype=np.uint64) * np.uint64(4)
        change = generator.integers(0, 16, steps + 1, dtype=np.uint64) << cell
        branches = generator.random((steps, 4), dtype=np.float32)
        branches[generator.random((steps, 4)) < 0.2] = np.nan
        yield run_type(
            np.bitwise_xor.accumulate(change),
            generator.integers(0, 4, steps, dtype=np.uint8),
            branches,
            start_unix_s=1_700_000_000 + number,
            elapsed_s=steps / 100,
            engine=f"engine {number % 3}",
        )


def _step_counts(runs: int) -> NDArray[np.int64]:
    return np.random.default_rng(runs + 1).integers(FEWEST, MOST + 1, runs)
