"""Signatures of what the compiled core has for record stores; part of `_native.pyi`."""

from collections.abc import Callable
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from relive._native import Table

_Spec: TypeAlias = tuple[str, str, tuple[int, ...], str, int, str, int | None, int]
_Taken: TypeAlias = tuple[
    str, str, np.dtype[Any] | None, tuple[int, ...], int, Callable[[Any], object]
]
_Column: TypeAlias = (
    npt.NDArray[Any]
    | tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64] | None]
    | list[Any]
    | None
)

@final
class Mapped:
    """Memory of a store. Arrays over it keep it."""

@final
class Records:
    """A record store, open for reading. Thread-safe."""

    @staticmethod
    def open(
        path: str, verify: str, io: str, max_value_bytes: int, at: int | None = None
    ) -> Records:
        """Opens the store at `path`; as it was after the call `at`, while that state is there."""
    def snapshot(self) -> RecordSnapshot:
        """What the store holds, as of the last look."""
    def refresh(self) -> bool:
        """Looks for what was committed since; whether there was anything."""

@final
class RecordSnapshot:
    """What a record store holds at one moment. Never changes; thread-safe."""

    def __len__(self) -> int: ...
    @property
    def generation(self) -> int:
        """Counts checkpoints."""
    @property
    def sequence(self) -> int:
        """The number of the last call that is in it."""
    def specs(self) -> list[_Spec]:
        """The fields, in order: name, dtype as JSON, shape, kind, varying dimensions, codec,
        level, bytes of an item.
        """
    def utilization(self) -> tuple[float, float]:
        """The share of stored values that are in use, and that of bytes."""
    def table(self, columns: list[tuple[str, np.dtype[Any], tuple[int, ...], bool]]) -> Table:
        """The records as rows, `columns` being name, dtype, shape and raggedness of every field."""
    def missing(self, column: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether a field has no value, for each of the rows."""
    def dims(self, column: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The dimensions that vary, of each of the rows, in a field where several do."""
    def view(
        self, column: int, row: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | None:
        """A value in the memory of the store itself, not writable; none where it is not there as
        it is. `shape` is that of an item.
        """
    def span(
        self, column: int, start: int, stop: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | None:
        """The rows from `start` to `stop` of a field in the memory of the store itself, not
        writable; none where they do not lie there one behind the other.
        """

@final
class RecordWriter:
    """A record store being written; see `relive.RecordStore`, which wraps it. Thread-safe."""

    @staticmethod
    def create(
        path: str,
        fields: list[_Spec],
        *,
        chunk_records: int | None,
        chunk_bytes: int | None,
        writers: int,
        verify: str,
        io: str,
        max_value_bytes: int,
    ) -> RecordWriter:
        """Makes a store."""
    @staticmethod
    def open(
        path: str, *, writers: int, verify: str, io: str, max_value_bytes: int
    ) -> RecordWriter:
        """Goes on writing a store."""
    def plan(
        self, fields: list[_Taken], refuse: Callable[[dict[str, Any]], object], described: object
    ) -> None:
        """Says how values come in: for every field its name, kind, dtype, shape, how many
        dimensions vary, and a function that makes values fit; one that is given a record with
        a name of no field; and what `snapshot` gives back for these fields.
        """
    def __len__(self) -> int: ...
    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
    def snapshot(self) -> tuple[RecordSnapshot, Any]:
        """What the store holds now, with everything that was not flushed yet; and what `plan`
        was told of its fields.
        """
    def append(self, record: dict[str, Any]) -> int:
        """Appends a record and gives its row."""
    def extend(self, rows: int, columns: list[_Column], described: object) -> tuple[int, int]:
        """Appends `rows` records as one call, a column for each field: none, an array of all
        values, `(values, offsets, dims or None)` of a ragged one, or a list of values. The
        fields must still be those that `plan` was told of.
        """
    def modify(self, row: int, record: dict[str, Any], *, some: bool) -> None:
        """Replaces a record; fields that are left out have no value then, or with `some` keep
        the one they have.
        """
    def modify_many(
        self, column: int, rows: npt.NDArray[np.int64], values: _Column, described: object
    ) -> None:
        """Gives one field of several records other values, as one call. The fields must still be
        those that `plan` was told of.
        """
    def delete(self, rows: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """Deletes records, as one call, and gives the moves: from and to."""
    def flush(self) -> None:
        """Makes everything so far survive the end of this process."""
    def sync(self) -> None:
        """Makes everything so far survive a power cut."""
    def checkpoint(self) -> None:
        """Begins a new generation."""
    def close(self) -> None:
        """Syncs, folds the journal and lets go of the store."""
    def abort(self) -> None:
        """Goes back to the last flush, and lets go of the store."""
    def rebalance(
        self, recompress: bool, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Copies the records in order to fresh chunks; with `recompress`, values are encoded
        again. `progress(done, total)` is told how many records are done.
        """
    def add_field(
        self,
        spec: _Spec,
        given: _Column,
        fields: list[_Taken],
        refuse: Callable[[dict[str, Any]], object],
        described: object,
    ) -> None:
        """Adds a field behind the others; `given` is a column of the values that records get, or
        none. The rest is as for `plan`, with that field.
        """
    def drop_field(
        self,
        name: str,
        fields: list[_Taken],
        refuse: Callable[[dict[str, Any]], object],
        described: object,
    ) -> None:
        """Takes a field away. The rest is as for `plan`, without that field."""
    def set_dictionary(self, column: int, dictionary: bytes) -> None:
        """Gives a field a zstd dictionary, for values from now on."""

def validate_records(
    path: str, level: str, threads: int, progress: Callable[[int, int], object] | None
) -> tuple[int, list[tuple[str | None, int | None, str, str]]]:
    """Looks at the store at `path`: how many records were read, and what is wrong."""
