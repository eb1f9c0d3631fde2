"""What every reader of a foreign format gives: chunks of rows, one column per field."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.model.ragged import Ragged
from relive.model.schema import Field

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "Chunk",
    "Column",
    "Pace",
    "Stream",
    "column_bytes",
    "cut",
]

Column: TypeAlias = npt.NDArray[Any] | Ragged | list[Any]
"""The values of one field: an array, a `Ragged`, or a list with None where there is no value."""

BATCH_BYTES: Final = 16 << 20
"""What a chunk should hold: enough to keep several threads busy, little enough to forget."""
BATCH_ROWS: Final = 1 << 16
_FIRST_ROWS: Final = 64
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows, one behind the other."""

    rows: int
    columns: dict[str, Column]

    @property
    def nbytes(self) -> int:
        """About how many bytes the values have."""
        return sum(column_bytes(column) for column in self.columns.values())


class Stream(ABC):
    """Rows of a foreign format, read from the first to the last in bounded memory."""

    @property
    @abstractmethod
    def fields(self) -> Mapping[str, Field]:
        """The fields of every row, by name."""

    @property
    @abstractmethod
    def total(self) -> int | None:
        """The number of rows, where that is known before they are read."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """What tells these rows from others, as JSON: equal for equal rows in another process."""

    @abstractmethod
    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Give the rows from `start` on."""


class Pace:
    """How many rows to take at once, learned from the bytes that the last ones had."""

    def __init__(self, rows: int | None = None) -> None:
        self.fixed = rows
        self.rows = rows or _FIRST_ROWS

    def learn(self, chunk: Chunk) -> None:
        """Take more rows next time where these were small, fewer where they were large."""
        if self.fixed or not chunk.rows:
            return
        fitting = max(1, BATCH_BYTES * chunk.rows // max(1, chunk.nbytes))
        self.rows = min(fitting, self.rows * _GROWTH, BATCH_ROWS)


def column_bytes(column: Column) -> int:
    """Give about how many bytes a column has in memory."""
    if isinstance(column, Ragged):
        return column.nbytes
    if isinstance(column, np.ndarray) and not column.dtype.hasobject:
        return int(column.nbytes)
    return sum(map(value_bytes, column))


def value_bytes(value: Any) -> int:
    """Give about how many bytes one value has."""
    if isinstance(value, np.ndarray | np.generic | memoryview):
        return value.nbytes
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, Mapping):
        return 16 + sum(len(str(key)) + value_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 16 + sum(map(value_bytes, value))
    return 8


def cut(column: Column, rows: slice) -> Column:
    """Give consecutive rows of a column."""
    return column[rows]
