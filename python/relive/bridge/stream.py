"""Batches of rows, one column per field: every reader produces them, every writer takes them."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from relive.model.columns.cast import Column
from relive.model.ragged import Ragged
from relive.model.report import Progress
from relive.model.schema import Field
from relive.store.prefetch import Prefetch

BATCH_BYTES: Final = 16 << 20
"""The size to aim for: enough to keep several threads busy, and memory stays small."""
BATCH_ROWS: Final = 1 << 16
_FIRST_ROWS: Final = 64
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Consecutive rows."""

    rows: int
    columns: dict[str, Column]

    @property
    def nbytes(self) -> int:
        """The approximate size of the values in memory."""
        return sum(map(_column_bytes, self.columns.values()))

    def slice(self, start: int, stop: int) -> "ColumnBatch":
        """Return some of the rows."""
        if (start, stop) == (0, self.rows):
            return self
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return ColumnBatch(stop - start, columns)


class Stream(ABC):
    """Rows that are read in order and in bounded memory."""

    fields: Mapping[str, Field]
    """The fields of every row, by name."""
    total: int | None = None
    """The number of rows, if it is known before they are read."""
    skipped: int = 0
    """How many damaged rows the last call of `batches` left out."""

    @property
    @abstractmethod
    def fingerprint(self) -> Mapping[str, Any]:
        """JSON values that are equal in another process if, and only if, the rows are."""

    @abstractmethod
    def batches(self, start: int = 0) -> Iterator[ColumnBatch]:
        """Yield the rows from `start` on."""


class BatchSize:
    """The number of rows to read at once, adapted to the size of the rows read before."""

    def __init__(self, rows: int | None = None) -> None:
        self._fixed = rows is not None
        self.rows = rows or _FIRST_ROWS

    def adapt(self, batch: ColumnBatch) -> None:
        """Read more rows next time if these were small, fewer if they were large."""
        if not self._fixed and batch.rows:
            fitting = rows_per_batch(batch.nbytes / batch.rows)
            self.rows = min(fitting, self.rows * _GROWTH)


def rows_per_batch(row_bytes: float) -> int:
    """Return how many rows of this size make a batch."""
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1, row_bytes))))


def _column_bytes(column: Column) -> int:
    if isinstance(column, Ragged):
        return column.nbytes
    if isinstance(column, np.ndarray) and not column.dtype.hasobject:
        return int(column.nbytes)
    return sum(map(value_bytes, column))


def value_bytes(value: Any) -> int:
    """Return the approximate size of one value in memory."""
    if isinstance(value, np.ndarray | np.generic | memoryview):
        return value.nbytes
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, Mapping):
        return 16 + sum(len(str(key)) + value_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 16 + sum(map(value_bytes, value))
    return 8


def read_ahead(stream: Stream, progress: Progress | None, start: int = 0) -> Generator[ColumnBatch]:
    """Yield the batches from `start` on while a thread reads the next one.

    `progress` is called when the caller asks for the batch after.
    """
    done = start
    batches = Prefetch(_unchanged, stream.batches(start), name="relive-convert")
    with contextlib.closing(batches):
        for batch in batches:
            yield batch
            done += batch.rows
            if progress is not None:
                progress(done, stream.total)


def _unchanged(batch: ColumnBatch) -> ColumnBatch:
    return batch
