"""`RecordStore`: records that are appended, changed, deleted and read in any order."""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import as_int, check_choice, worker_count
from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    UnsupportedError,
)
from relive.model.report import Level, Progress, Report
from relive.model.schema import Field
from relive.model.select import Subset
from relive.model.source import Batch, Indices, Key, Row, Source, as_indices, pick_fields, resolve
from relive.store.codec import train_dictionary
from relive.store.lifecycle import End, WriterLifecycle
from relive.store.paths import absolute_path
from relive.store.records.autoflush import AutoFlush, check_seconds
from relive.store.records.columns import (
    Columns,
    as_column,
    as_columns,
    broadcast_column,
    check_length,
    materialize,
)
from relive.store.records.field_view import FieldView
from relive.store.records.fields import FieldTable, check_field, check_name, spec_of
from relive.store.records.snapshot import RecordView, StoreSnapshot
from relive.store.records.validate import validate
from relive.store.records.values import as_record

_DICTIONARY_BYTES: Final = 112_640
_SAMPLES: Final = 2_000
_MAX_CHUNK_RECORDS: Final = 1 << 62
_MAX_VALUE_BYTES: Final = 1 << 32
_WRITERS: Final = 2
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Location:
    """The path of a store and how it is read."""

    path: str
    workers: int
    verify: str = "first"
    io: str = "mmap"

    def open(self, at: int | None = None) -> _native.Records:
        """Open the store as of its last commit, or of the commit `at`."""
        with self._create_hint():
            return _native.Records.open(self.path, self.verify, self.io, _MAX_VALUE_BYTES, at)

    def open_writer(self, workers: int) -> _native.RecordWriter:
        """Open the store for writing."""
        with self._create_hint():
            return _native.RecordWriter.open(
                self.path,
                workers=workers,
                verify=self.verify,
                io=self.io,
                max_value_bytes=_MAX_VALUE_BYTES,
            )

    def exists(self) -> bool:
        """Return whether a store is there."""
        return (Path(self.path) / "meta.json").exists()

    @contextlib.contextmanager
    def _create_hint(self) -> Iterator[None]:
        try:
            yield
        except NotFoundError as error:
            if not self.exists():
                error.hint = "create a store with RecordStore.create(path, fields)"
            raise


class RecordStore(WriterLifecycle, Source):
    """Records of named fields in a directory, written by one process and read by many.

    Made by `RecordStore.create` and `RecordStore.open`. `store[i]` is one record as a dict,
    `store["image"]` one field of all records; otherwise a store is a `Source`. A store opened
    with `mode="r"` shows the last commit when it was opened or `refresh`ed. One that is being
    written shows every change at once.

    What was appended survives the end of the process once `flush()` returned, and a power cut
    once `sync()` returned or the `with` block ended. An exception or Ctrl-C inside the block
    keeps and syncs everything that was appended; only `abort()` drops what was not flushed.
    Thread-safe.

    Example:
        >>> import numpy as np, relive
        >>> fields = {"q": relive.Field("float32", (2,)), "note": relive.Field("str")}
        >>> with relive.RecordStore.create("arm", fields) as store:
        ...     store.append({"q": [0.5, 1.5], "note": "home"})
        ...     store.extend({"q": np.zeros((3, 2), np.float32)})
        0
        range(1, 4)
        >>> store = relive.RecordStore.open("arm")
        >>> len(store), store["note"][0]
        (4, 'home')
        >>> store.gather([0, 3])["q"].tolist()
        [[0.5, 1.5], [0.0, 0.0]]
    """

    # For a record store, to leave is to sync: nothing is unfinished afterwards.
    on_error: ClassVar[End] = "leave"
    on_interrupt: ClassVar[End] = "leave"

    def __init__(
        self,
        native: _native.Records | _native.RecordWriter,
        location: _Location,
        fields: FieldTable | None = None,
        autoflush_s: float | None = None,
    ) -> None:
        if not isinstance(location, _Location):
            raise InvalidTypeError(
                "a RecordStore cannot be created directly",
                hint="use RecordStore.create(path, fields) or RecordStore.open(path)",
            )
        self._location = location
        self._workers = location.workers
        self._snapshot_read: StoreSnapshot | None = None
        self._view: weakref.ref[RecordView] | None = None
        self._autoflush: AutoFlush | None = None
        if isinstance(native, _native.Records):
            self._writer = None
            self._reader: _native.Records | None = native
            self._refreshing = threading.Lock()
            self._snapshot_read = _read_snapshot(native)
            return
        self._writer = native
        self._reader = None
        self._fields = FieldTable.of(native.snapshot()[0].specs()) if fields is None else fields
        native.plan(*self._fields.plan())
        if autoflush_s is not None:
            self._autoflush = AutoFlush(native, autoflush_s)
        super().__init__()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        fields: Mapping[str, Field],
        *,
        chunk_size: int | None = None,
        workers: int | None = None,
        autoflush_s: float | None = None,
    ) -> Self:
        """Create an empty store, open for writing.

        Args:
            path: A directory that does not exist or is empty.
            fields: A `Field` for each name. A "json" field stores JSON: NaN is refused, a tuple
                is read as a list, and None is a missing value, as in every field.
            chunk_size: The most records of one chunk file; by default chunks are limited by
                their bytes.
            workers: The number of threads that compress and write, by default 2, and the most
                that one `gather` uses, by default the number of cores, at most eight.
            autoflush_s: Call `flush()` every so many seconds.
        """
        if not isinstance(fields, Mapping):
            raise InvalidTypeError(f"`fields` must be a dict from names to Fields, got {fields!r}")
        location = _Location(absolute_path(path, "a record store"), worker_count(workers))
        seconds = None if autoflush_s is None else check_seconds(autoflush_s)
        if chunk_size is not None:
            chunk_size = as_int("chunk_size", chunk_size, at_least=1, at_most=_MAX_CHUNK_RECORDS)
        specs = [spec_of(name, field) for name, field in fields.items()]
        try:
            native = _native.RecordWriter.create(
                location.path,
                specs,
                chunk_records=chunk_size,
                chunk_bytes=None,
                workers=_WRITERS if workers is None else location.workers,
                verify=location.verify,
                io=location.io,
                max_value_bytes=_MAX_VALUE_BYTES,
            )
        except AlreadyExistsError as error:
            if location.exists():
                error.hint = 'append to it with RecordStore.open(path, mode="a")'
            raise
        return cls(native, location, FieldTable(dict(fields)), seconds)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: str = "r",
        *,
        verify: str = "first",
        io: str = "mmap",
        workers: int | None = None,
        autoflush_s: float | None = None,
    ) -> Self:
        """Open a store for reading ("r") or writing ("a").

        Args:
            path: The directory of the store.
            mode: "r", or "a", which only one process at a time can use; for others it is a
                `LockedError`.
            verify: When checksums are compared: when a value is "first" read, "always", or
                "never".
            io: "mmap", or "pread" for files that another process may truncate while they are
                read.
            workers: The most threads that one `gather` uses, by default the number of cores, at
                most eight. In mode "a" also the number of threads that compress and write, by
                default 2.
            autoflush_s: In mode "a", call `flush()` every so many seconds.
        """
        check_choice("mode", mode, ("r", "a"))
        if mode == "r" and autoflush_s is not None:
            raise InvalidError('`autoflush_s` requires mode="a"')
        location = _Location(
            absolute_path(path, "a record store"), worker_count(workers), verify, io
        )
        if mode == "r":
            return cls(location.open(), location)
        seconds = None if autoflush_s is None else check_seconds(autoflush_s)
        writers = _WRITERS if workers is None else location.workers
        return cls(location.open_writer(writers), location, autoflush_s=seconds)

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every record, by name."""
        return (self._snapshot().fields if self._writer is None else self._fields).by_name

    @property
    def path(self) -> Path:
        """The directory of the store."""
        return Path(self._location.path)

    @property
    def mode(self) -> str:
        """How it was opened: "r" or "a"."""
        return "r" if self._writer is None else "a"

    @property
    def generation(self) -> int:
        """The number of checkpoints: at `close()`, by `rebalance()`, and when one is due."""
        return self._snapshot().native.generation

    @property
    def utilization(self) -> float:
        """The share of stored values that are in use; `rebalance()` removes the others."""
        return self._snapshot().native.utilization()[0]

    @property
    def utilization_bytes(self) -> float:
        """The share of the bytes of all chunks that are values in use."""
        return self._snapshot().native.utilization()[1]

    def __len__(self) -> int:
        """Return the number of records."""
        return self._snapshot().length if self._writer is None else len(self._writer)

    @overload  # type: ignore[override]  # a name selects a field, which other sources refuse
    def __getitem__(self, key: str) -> FieldView: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, key: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, key: Key) -> Subset: ...

    def __getitem__(self, key: Any) -> FieldView | Row | Subset:
        """Return a record for an integer, a field for its name, and otherwise a `Subset`."""
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
        snapshot = self._snapshot_read or self._snapshot()
        rows = as_indices(indices, snapshot.length, check=False)
        # The most frequent call takes the shortest way: the core checks the rest itself.
        if snapshot.fields.is_fixed and fields is None:
            if out is None:
                return snapshot.table.gather(rows, None, None, self._workers)
            if type(out) is dict and out.keys() <= snapshot.fields.by_name.keys():
                return snapshot.table.gather(rows, None, out, self._workers)
        return snapshot.gather(rows, fields, out, self._workers)

    def snapshot(self) -> Source:
        """Return the records as they are now, whatever changes later."""
        snapshot = self._snapshot()
        view = None if self._view is None else self._view()
        if view is None or view.key != snapshot.key:
            view = RecordView(snapshot, self._workers)
            self._view = weakref.ref(view)  # it keeps files open that rebalance() may remove
        return view

    def native_table(self) -> "_native.Table | None":
        """Return the records as a table of the core if it can gather all fields."""
        snapshot = self._snapshot()
        return snapshot.table if snapshot.fields.is_native else None

    def missing(self, field: str, indices: Indices | None = None) -> npt.NDArray[np.bool_]:
        """Return which of the records at `indices`, by default all, have no value in `field`."""
        return self._snapshot().missing(field, indices)

    def append(self, record: Mapping[str, Any]) -> int:
        """Append a record and return its position; a field that is left out or None is missing."""
        writer = self._writing()
        return writer.append(record if type(record) is dict else as_record(record))

    def extend(self, records: Columns) -> range:
        """Append many records as one operation and return their positions.

        `records` is a dict of columns (arrays, `Ragged`s or lists), a source, which is read
        whole, or a list of records. A field that is left out is missing in all of them.
        """
        writer = self._writing()
        given = materialize(records)

        def work(fields: FieldTable) -> tuple[int, int]:
            count, columns = as_columns(fields.by_name, given)
            return writer.extend(count, columns, fields)

        return range(*self._with_fields(work))

    def __setitem__(self, key: SupportsIndex, record: Mapping[str, Any]) -> None:
        """Replace a record; fields that are left out are missing afterwards."""
        writer = self._writing()
        row = None if isinstance(key, str) else resolve(key, len(self))  # type: ignore[arg-type]
        if not isinstance(row, int):
            name = key if isinstance(key, str) else "field"
            raise InvalidTypeError(
                f"the key of `store[key] = record` must be an integer, got {key!r}",
                hint=f"store[{name!r}][indices] = values changes one field of several records",
            )
        writer.modify(row, record if type(record) is dict else as_record(record), some=False)

    def __delitem__(self, key: Key | SupportsIndex) -> None:
        """Delete the records that `key` selects; see `delete`."""
        if isinstance(key, str):
            raise InvalidTypeError(
                f"the position of a record to delete must be an integer, got {key!r}",
                hint=f"store.drop_field({key!r}) removes a field",
            )
        self.delete(key)

    def delete(self, indices: Key | SupportsIndex) -> list[tuple[int, int]]:
        """Delete records as one operation, from the last to the first, and return the moves.

        The last record of the store moves to the position of each deleted one: `(from, to)`,
        in that order.
        """
        writer = self._writing()
        rows = resolve(indices, len(self))  # type: ignore[arg-type]
        return writer.delete(np.atleast_1d(np.asarray(rows, dtype=np.int64)))

    def flush(self) -> None:
        """Make everything so far survive the end of this process and visible to readers."""
        self._writing().flush()

    def sync(self) -> None:
        """Make everything so far survive a power cut."""
        self._writing().sync()

    def refresh(self) -> bool:
        """Show what was committed since the store was opened; return whether it changed."""
        if self._writer is not None:
            return False
        self._snapshot()
        with self._refreshing:  # so that an older snapshot does not replace a newer one
            if self._reader is None or not self._reader.refresh():
                return False
            self._snapshot_read = _read_snapshot(self._reader)
            return True

    def rebalance(self, recompress: bool = False, progress: Progress | None = None) -> None:  # noqa: FBT001, FBT002
        """Copy the records in order to new files and remove the old ones.

        Reading is then as fast as from a new store. Readers that are open keep what they show.
        With `recompress`, values are compressed again with the newest dictionary.
        """
        self._writing().rebalance(bool(recompress), progress)

    def validate(self, level: Level = "sample", *, progress: Progress | None = None) -> Report:
        """Check the files: "index", a "sample" of records too, or "full", which is every byte.

        See `relive.store.records.validate`.
        """
        if self._writer is not None:
            self.flush()
        return validate(self.path, level, workers=self._workers, progress=progress)

    def train_dictionary(
        self, field: str, size: int = _DICTIONARY_BYTES, samples: int = _SAMPLES
    ) -> None:
        """Train a zstd dictionary from the values of a field, and use it for later values."""
        writer = self._writing()
        picked = pick_fields(self.fields, [field])[field]
        if picked.codec != "zstd":
            raise UnsupportedError(
                f"cannot train a dictionary for field {field!r}: its codec is {picked.codec!r}",
                hint='only fields with codec="zstd" can have a dictionary',
            )
        count = as_int("samples", samples, at_least=1)
        values = self._snapshot().sample_bytes(field, count, self._workers)
        writer.set_dictionary(self._fields.columns[field], train_dictionary(values, size))

    def add_field(self, name: str, field: Field, values: Any = None) -> None:
        """Add a field after the others; `values` are those of the existing records."""
        writer = self._writing()
        with self._mutex:
            if name in self.fields:
                raise InvalidError(f"the store already has a field {name!r}")
            check_field(check_name(name), field)
            column = as_column(name, field, values)
            check_length(name, column, len(self))
            fields = FieldTable({**self.fields, name: field})
            writer.add_field(spec_of(name, field), column, *fields.plan())
            self._fields = fields

    def drop_field(self, name: str) -> None:
        """Remove a field with all of its values."""
        writer = self._writing()
        with self._mutex:
            kept = {key: field for key, field in self.fields.items() if key != name}
            pick_fields(self.fields, [name])
            if not kept:
                raise InvalidError(f"cannot drop field {name!r}: it is the only field of the store")
            fields = FieldTable(kept)
            writer.drop_field(name, *fields.plan())
            self._fields = fields

    def close(self) -> None:
        """Release the files. A store that is written is synced first."""
        if self._writer is not None:
            super().close()
        self._reader = self._snapshot_read = None

    def abort(self) -> None:
        """Drop everything since the last flush; a store that was never flushed is removed."""
        self._check_writable()
        super().abort()

    def leave(self) -> None:
        """Stop writing and keep everything; the same as `close()` for a record store."""
        self._check_writable()
        super().leave()

    def __enter__(self) -> Self:
        return self if self._writer is None else super().__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._writer is None:
            self.close()
        else:
            super().__exit__(kind, error, trace)

    def __repr__(self) -> str:
        """Return the number of records and the fields, on one line."""
        is_open = self._reader is not None if self._writer is None else self._writer.is_open
        return Source.__repr__(self) if is_open else f"RecordStore({self.path}: closed)"

    def __reduce__(self) -> tuple[object, ...]:  # type: ignore[override]  # a reader can be
        """Pickle the path and the commit of a store that is read."""
        if self._writer is not None:
            super().__reduce__()
        return _reopen, (self._location, self._snapshot().native.sequence)

    def _finish(self) -> None:
        self._keep_unfinished()
        if self._autoflush is not None:
            self._autoflush.check()

    def _remove(self) -> None:
        _stop(self._autoflush)
        self._native_writer().abort()

    def _keep_unfinished(self) -> None:
        _stop(self._autoflush)
        self._native_writer().close()

    def _destination(self) -> str:
        return self._location.path

    def _add_note(self, error: BaseException) -> None:
        """Add nothing: everything committed is complete."""

    def _snapshot(self) -> StoreSnapshot:
        if self._writer is not None:
            return StoreSnapshot(*self._writer.snapshot())
        if self._snapshot_read is None:
            raise ClosedError(f"`{self.path}` is closed")
        return self._snapshot_read

    def _check_writable(self) -> None:
        if self._writer is None:
            raise UnsupportedError(
                f"`{self.path}` is open for reading only",
                hint='open it with RecordStore.open(path, mode="a")',
            )

    def _native_writer(self) -> _native.RecordWriter:
        self._check_writable()
        assert self._writer is not None  # noqa: S101 - just checked
        return self._writer

    def _writing(self) -> _native.RecordWriter:
        writer = self._native_writer()
        self._check_open()
        if self._autoflush is not None:
            self._autoflush.check()
        return writer

    def _with_fields(self, work: Callable[[FieldTable], _T]) -> _T:
        """Call `work` with the fields, again if another thread changed them meanwhile."""
        while True:
            fields = self._fields
            try:
                return work(fields)
            except InvalidError:
                with self._mutex:  # a change of the fields may be in progress
                    if fields is self._fields:
                        raise

    def _assign(self, name: str, key: Key, value: Any) -> None:
        """Change one field of the records that `key` selects; for `FieldView`."""
        writer = self._writing()
        rows = resolve(key, len(self))
        if isinstance(rows, int):
            writer.modify(rows, {name: value}, some=True)
            return
        positions = np.asarray(rows, dtype=np.int64)
        given = materialize(value)

        def work(fields: FieldTable) -> None:
            field = pick_fields(fields.by_name, [name])[name]
            values = broadcast_column(name, field, given, len(positions))
            writer.modify_many(fields.columns[name], positions, values, fields)

        self._with_fields(work)


def _read_snapshot(native: _native.Records) -> StoreSnapshot:
    snapshot = native.snapshot()
    return StoreSnapshot(snapshot, FieldTable.of(snapshot.specs()))


def _reopen(location: _Location, at: int) -> RecordStore:
    return RecordStore(location.open(at), location)


def _stop(autoflush: AutoFlush | None) -> None:
    if autoflush is not None:
        autoflush.stop()
