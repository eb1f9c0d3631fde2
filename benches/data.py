"""The records that are read: real random bytes in `.npy` files, made once and reused."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]
    Rows: TypeAlias = NDArray[np.int64]

STAMP_BYTES = 8
_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class Case:
    """Records of one size in one file, read in random batches of one size.

    The first eight bytes of a record are its position, so that whoever delivers
    a batch can be checked against the file.
    """

    name: str
    record_bytes: int
    records: int
    batch_size: int
    folder: Path = field(repr=False)
    seed: int = 7

    @property
    def stem(self) -> str:
        """What every file that holds these records is called, less its suffix."""
        return f"{self.record_bytes}B-{self.records}"

    @property
    def path(self) -> Path:
        """The `.npy` file of shape `(records, record_bytes)`, dtype uint8."""
        return self.folder / f"{self.stem}.npy"

    @property
    def batch_bytes(self) -> int:
        """Payload of one batch."""
        return self.record_bytes * self.batch_size

    @cached_property
    def batches(self) -> list[Rows]:
        """The index list everyone reads: one seeded permutation, cut into batches."""
        order = np.random.default_rng(self.seed).permutation(self.records).astype(np.int64)
        whole = self.records // self.batch_size * self.batch_size
        return list(order[:whole].reshape(-1, self.batch_size))

    def scaled(self, scale: float) -> Case:
        """The same case with `scale` times the records, at least four batches of them."""
        records = max(round(self.records * scale), 4 * self.batch_size)
        return replace(self, records=records)

    def at_least(self, size_bytes: int) -> Case:
        """The same case with as many records as fill `size_bytes`."""
        return replace(self, records=max(self.records, -(-size_bytes // self.record_bytes)))

    def memmap(self) -> Bytes:
        """A private map of the file: reads are shared, and libraries may see it as writable."""
        mapped: Bytes = np.load(self.path, mmap_mode="c")
        return mapped

    def make(self) -> None:
        """Write the file unless it is there already."""
        if self.path.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        shape = (self.records, self.record_bytes)
        mapped = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
        self._fill(mapped)
        mapped.flush()
        del mapped
        partial.rename(self.path)

    def _fill(self, records: Bytes) -> None:
        raw = np.random.SFC64(self.record_bytes)
        step = max(1, _CHUNK_BYTES // self.record_bytes)
        for start in range(0, self.records, step):
            rows = records[start : start + step]
            words = raw.random_raw(-(-rows.size // 8))
            rows[:] = words.view(np.uint8)[: rows.size].reshape(rows.shape)
            stamps = np.arange(start, start + len(rows), dtype=np.uint64)
            rows[:, :STAMP_BYTES] = stamps.view(np.uint8).reshape(-1, STAMP_BYTES)

    def check(self, batch: NDArray[Any]) -> None:
        """Raise unless `batch` is one full batch of true records, byte for byte."""
        rows = np.asarray(batch).reshape(len(batch), -1)
        if rows.dtype != np.uint8 or rows.shape != (self.batch_size, self.record_bytes):
            want = (self.batch_size, self.record_bytes)
            message = f"delivered {rows.dtype}{rows.shape}, not uint8{want}"
            raise AssertionError(message)
        stamps = np.ascontiguousarray(rows[:, :STAMP_BYTES]).view(np.uint64).reshape(-1)
        if not np.array_equal(rows, self.memmap()[stamps]):
            message = "delivered bytes that are not in the file"
            raise AssertionError(message)


@dataclass(frozen=True)
class ResidentCase(Case):
    """Records that live in memory, in one array instead of a file."""

    @cached_property
    def _records(self) -> Bytes:
        records = np.empty((self.records, self.record_bytes), np.uint8)
        self._fill(records)
        return records

    def memmap(self) -> Bytes:
        """The array itself."""
        return self._records

    def make(self) -> None:
        """Fill the array, unless that is done."""
        self.memmap()


def cases(folder: Path, scale: float = 1.0) -> list[Case]:
    """The three record sizes of the suite, in batches of 256."""
    sizes = (("128 B", 128, 2_000_000), ("3 KiB", 3072, 200_000), ("28 KiB", 28672, 40_000))
    return [Case(name, size, count, 256, folder).scaled(scale) for name, size, count in sizes]


def files_under(path: Path) -> list[Path]:
    """The file at `path`, or all files below it."""
    if path.is_dir():
        return [Path(top) / name for top, _, names in os.walk(path) for name in names]
    return [path]
