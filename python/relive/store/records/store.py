"""The record store: records that are appended, changed, deleted and read in any order."""

import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError, ReliveError, UnsupportedError
from relive.model.schema import Field
from relive.model.select import Subset
from relive.model.source import Batch, Indices, Key, Row, Source, as_indices, pick_fields, resolve
from relive.store.arrays import thread_count
from relive.store.paths import absolute_path
from relive.store.records.columns import Columns, as_column, check_length
from relive.store.records.field_view import FieldView
from relive.store.records.fields import check_field, check_name
from relive.store.records.reader import gather_missing, gather_rows, trained
from relive.store.records.validate import Progress, Report, validate
from relive.store.records.values import as_record
from relive.store.records.writer import Look, ReadHandle, ReadOptions, WriteHandle, leave

if TYPE_CHECKING:
    from relive._native import Table

__all__ = ["RecordStore"]

_MODES: Final = ("r", "a")
_DICTIONARY_BYTES: Final = 112_640
_SAMPLES: Final = 2_000


class RecordStore(Source):
    """Records of named fields in a directory, written by one process and read by many.

    Made by `RecordStore.create` and `RecordStore.open`. `store[i]` is one record as a dict,
    `store["image"]` one field of all of them, and everything else a source can do it can, too.
    A store opened with `mode="r"` is what was last committed when it was opened or `refresh`ed;
    one that is being written shows every change at once.

    What was appended survives the end of the process once `flush()` returned, and a power cut
    once `sync()` did or the `with` block ended. An exception inside the block keeps every call
    that had returned; only `abort()` drops what was not flushed. Thread-safe.
    """

    _handle: ReadHandle | WriteHandle
    _seen: Look | None
    """What a reader sees until it is refreshed."""
    _threads: int

    def __init__(self) -> None:
        raise InvalidTypeError("a store is made by RecordStore.create or RecordStore.open")

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        fields: Mapping[str, Field],
        *,
        chunk_size: int | None = None,
        writers: int = 2,
        autoflush_s: float | None = None,
        readers: int | None = None,
    ) -> Self:
        """Make an empty store, open for writing.

        Args:
            path: Where to: a directory that is not there yet, or is empty.
            fields: What a record has: a `Field` for each name. In a field of "json" are
                values that JSON can say: NaN is refused, a tuple comes back as a list, and
                None is no value, as in every field.
            chunk_size: The most records of one file; by default files are filled by bytes.
            writers: Threads that compress and write.
            autoflush_s: How often to `flush()` by itself, in seconds.
            readers: The most threads that one `gather` uses.
        """
        if not isinstance(fields, Mapping):
            raise InvalidTypeError(f"fields is a dict of name to Field, not {fields!r}")
        handle = WriteHandle.create(
            absolute_path(path, "a record store"),
            fields,
            ReadOptions(),
            chunk_size=chunk_size,
            writers=writers,
            autoflush_s=autoflush_s,
        )
        return cls._around(handle, readers)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: str = "r",
        *,
        readers: int | None = None,
        verify: str = "first",
        io: str = "mmap",
        writers: int = 2,
        autoflush_s: float | None = None,
    ) -> Self:
        """Open a store to read ("r") or to write ("a").

        Args:
            path: Where it is.
            mode: "r", or "a", which one process at a time can have: else a `LockedError`.
            readers: The most threads that one `gather` uses; by default the cores, at most
                eight.
            verify: When checksums are compared: at the "first" touch, "always", or "never".
            io: "mmap", or "pread" for files that somebody might cut short while they are read.
            writers: Threads that compress and write; for mode "a".
            autoflush_s: How often to `flush()` by itself, in seconds; for mode "a".
        """
        if mode not in _MODES:
            raise InvalidError(f'mode is "r" or "a", not {mode!r}')
        if mode == "r" and autoflush_s is not None:
            raise InvalidError("autoflush_s is for a store that is written", hint='mode="a"')
        where, options = absolute_path(path, "a record store"), ReadOptions(verify, io)
        if mode == "r":
            return cls._around(ReadHandle(where, options), readers)
        handle = WriteHandle.open(where, options, writers=writers, autoflush_s=autoflush_s)
        return cls._around(handle, readers)

    @classmethod
    def _around(cls, handle: ReadHandle | WriteHandle, readers: int | None) -> Self:
        store = cls.__new__(cls)
        store._handle = handle  # noqa: SLF001 - its own constructor
        store._seen = handle.look() if isinstance(handle, ReadHandle) else None  # noqa: SLF001
        if isinstance(handle, WriteHandle):
            # Whoever forgets a store gave no word to drop what it was told.
            weakref.finalize(store, leave, handle.native)
        store._threads = thread_count(readers, "readers")  # noqa: SLF001
        return store

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every record, by name."""
        handle = self._handle
        described = handle.described if isinstance(handle, WriteHandle) else handle.look().described
        return described.fields

    @property
    def path(self) -> str:
        """Where the store is."""
        return self._handle.path

    @property
    def mode(self) -> str:
        """How it was opened: "r" or "a"."""
        return "a" if isinstance(self._handle, WriteHandle) else "r"

    @property
    def generation(self) -> int:
        """How often the store was folded: at `close()`, by `rebalance()`, when it is due."""
        return self._handle.look().snapshot.generation

    @property
    def utilization(self) -> float:
        """The share of stored values that are in use; `rebalance()` leaves out the others."""
        return self._handle.look().snapshot.utilization()[0]

    @property
    def utilization_bytes(self) -> float:
        """The share of the bytes of all chunks that values in use take."""
        return self._handle.look().snapshot.utilization()[1]

    def __len__(self) -> int:
        """Count the records."""
        handle = self._handle
        return len(handle.native) if isinstance(handle, WriteHandle) else handle.look().length

    @overload  # type: ignore[override]  # a name is a field here, and no key elsewhere
    def __getitem__(self, key: str) -> FieldView: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, key: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, key: Key) -> Subset: ...

    def __getitem__(self, key: Any) -> FieldView | Row | Subset:
        """Give a record for an integer, a field for its name, and else a view of records."""
        if isinstance(key, str):
            pick_fields(self.fields, [key])
            return FieldView(self, key)
        found: Row | Subset = super().__getitem__(key)
        return found

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the records at `indices` on native threads; see `Source.gather`."""
        look = self._seen or self._handle.look()
        rows = as_indices(indices, look.length, check=False)
        # The usual call must cost no more than the rows: the core checks the rest itself.
        if look.plain and fields is None:
            if out is None:
                return look.table.gather(rows, None, None, self._threads)
            if type(out) is dict and out.keys() <= look.fields.keys():
                return look.table.gather(rows, None, out, self._threads)
        return gather_rows(look, rows, fields, out, self._threads)

    def native_table(self) -> "Table | None":
        """Give the records as a table of the core, where it can read all fields by itself."""
        look = self._handle.look()
        return look.table if look.described.native else None

    def missing(self, field: str, indices: Indices | None = None) -> npt.NDArray[np.bool_]:
        """Say which of the records at `indices`, by default all, have no value in `field`."""
        return gather_missing(self._handle.look(), field, indices)

    def append(self, record: Mapping[str, Any]) -> int:
        """Append a record and give its position; a field that is left out, or None, is missing."""
        handle = self._writing()
        return handle.native.append(record if type(record) is dict else as_record(record))

    def extend(self, records: Columns) -> range:
        """Append many records as one operation, and give their positions.

        `records` is a dict of columns (arrays, `Ragged`s, lists), a source, which is read as a
        whole, or a list of records. A field that is left out is missing in all of them.
        """
        return range(*self._writing().extend(records))

    def __setitem__(self, key: SupportsIndex, record: Mapping[str, Any]) -> None:
        """Replace a record; fields that are left out are missing afterwards."""
        handle = self._writing()
        row = None if isinstance(key, str) else resolve(key, len(self))  # type: ignore[arg-type]
        if not isinstance(row, int):
            hint = f"store[{key!r}][indices] = values" if isinstance(key, str) else None
            raise InvalidTypeError(
                "one record is replaced at a time",
                hint=hint or 'store["field"][indices] = values changes one field of several',
            )
        handle.native.modify(row, record if type(record) is dict else as_record(record), some=False)

    def __delitem__(self, key: Key | SupportsIndex) -> None:
        """Delete what the key selects; see `delete`."""
        if isinstance(key, str):
            raise InvalidTypeError(
                "records are deleted by position", hint=f"store.drop_field({key!r})"
            )
        self.delete(key)

    def delete(self, indices: Key | SupportsIndex) -> list[tuple[int, int]]:
        """Delete records as one operation, the last of them first, and give what moved.

        The last record of the store takes the place of each: `(from, to)`, in that order.
        """
        handle = self._writing()
        rows = resolve(indices, len(self))  # type: ignore[arg-type]
        return handle.native.delete(np.atleast_1d(np.asarray(rows, dtype=np.int64)))

    def flush(self) -> None:
        """Make everything so far survive the end of this process, and visible to readers."""
        self._writing().native.flush()

    def sync(self) -> None:
        """Make everything so far survive a power cut."""
        self._writing().native.sync()

    def refresh(self) -> bool:
        """Show what was committed since; whether there was anything."""
        handle = self._handle
        if not isinstance(handle, ReadHandle) or not handle.refresh():
            return False
        self._seen = handle.look()
        return True

    def rebalance(self, recompress: bool = False, progress: Progress | None = None) -> None:  # noqa: FBT001, FBT002
        """Copy the records in order to fresh files, and remove the old ones.

        Reading is as fast as from a new store then. Readers that have it open keep what they
        see. With `recompress` values are compressed again, with the newest dictionary.
        """
        self._writing().native.rebalance(bool(recompress), progress)

    def validate(self, level: str = "sample", *, progress: Progress | None = None) -> Report:
        """Check the files: their "index", a "sample" of the records, or all of them ("full")."""
        if isinstance(self._handle, WriteHandle):
            self.flush()
        return validate(self.path, level, threads=self._threads, progress=progress)

    def train_dictionary(
        self, field: str, size: int = _DICTIONARY_BYTES, samples: int = _SAMPLES
    ) -> None:
        """Train a zstd dictionary from the values of a field, and use it for those to come."""
        handle = self._writing()
        picked = pick_fields(handle.described.fields, [field])[field]
        if picked.codec != "zstd":
            raise UnsupportedError(
                f"field {field!r} is stored as {picked.codec}", hint="dictionaries are for zstd"
            )
        dictionary = trained(handle.look(), field, size, samples, self._threads)
        handle.native.set_dictionary(handle.described.columns[field], dictionary)

    def add_field(self, name: str, field: Field, values: Any = None) -> None:
        """Add a field behind the others; `values` are those of the records that are there."""
        handle = self._writing()
        if name in handle.described.fields:
            raise InvalidError(f"there is a field {name!r} already")
        check_field(check_name(name), field)
        column = as_column(name, field, values)
        check_length(name, column, len(self))
        handle.add_field(name, field, column)

    def drop_field(self, name: str) -> None:
        """Take a field away, with all of its values."""
        handle = self._writing()
        if len(pick_fields(handle.described.fields, [name])) == len(handle.described.fields):
            raise InvalidError(f"{name!r} is the last field")
        handle.drop_field(name)

    def close(self) -> None:
        """Sync, and let go of the store; a second time does nothing."""
        self._seen = None
        self._handle.close()

    def abort(self) -> None:
        """Drop what was not flushed, and let go of the store; one that never was, is removed.

        After `close()` there is nothing to drop.
        """
        self._writing(closed=True).abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        handle = self._handle
        if handle.closed:  # or aborted, or of another process
            return
        try:
            self.close()
        except ReliveError as trouble:
            if error is None:
                raise
            # What the block raised matters more than what the disk says now.
            error.add_note(f"the store could not be closed: {trouble}")

    def __repr__(self) -> str:
        """Give the number of records and the fields, on one line."""
        return f"RecordStore({self.path}: closed)" if self._handle.closed else super().__repr__()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle where the store is, and at which commit; not while it is written."""
        handle = self._handle
        if isinstance(handle, WriteHandle):
            raise InvalidTypeError(
                "a store that is open for writing belongs to its process",
                hint="open it to read where it is needed: RecordStore.open(path)",
            )
        at = handle.look().snapshot.sequence
        return _restore, (handle.path, handle.options, at, self._threads)

    def _writing(self, *, closed: bool = False) -> WriteHandle:
        handle = self._handle
        if not isinstance(handle, WriteHandle):
            raise UnsupportedError(
                f"`{handle.path}` is open for reading", hint='RecordStore.open(path, mode="a")'
            )
        if not closed:
            handle.check()
        return handle

    def _assign(self, name: str, key: Key, value: Any) -> None:
        handle = self._writing()
        rows = resolve(key, len(self))
        if isinstance(rows, int):
            handle.native.modify(rows, {name: value}, some=True)
            return
        handle.assign(name, np.asarray(rows, dtype=np.int64), value)


def _restore(path: str, options: ReadOptions, at: int, threads: int) -> RecordStore:
    return RecordStore._around(ReadHandle(path, options, at), threads)  # noqa: SLF001
