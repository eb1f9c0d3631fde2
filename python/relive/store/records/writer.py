"""What a store is seen through: at rest as of some commit, or by the process that writes it."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from relive import _native
from relive._arguments import as_int
from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    ReliveError,
)
from relive.model.schema import Field
from relive.model.source import IndexArray, pick_fields
from relive.store.arrays import thread_count
from relive.store.records.columns import Column, Columns, as_columns, broadcast_column, settled
from relive.store.records.fields import fields_of, kind_of, spec_of
from relive.store.records.timer import FlushTimer, check_seconds
from relive.store.records.values import preparer, refuse_fields

__all__ = ["Described", "Look", "ReadHandle", "ReadOptions", "WriteHandle", "leave"]

_BYTES: Final = np.dtype(np.uint8)
_MOST_RECORDS: Final = 1 << 62
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How stored bytes are read."""

    verify: str = "first"
    io: str = "mmap"
    max_value_bytes: int = 1 << 32


class Described:
    """The fields of a store, and what follows from them."""

    __slots__ = ("columns", "fields", "native", "plain", "seen")

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = fields
        self.columns = {name: column for column, name in enumerate(fields)}
        self.plain = all(field.fixed for field in fields.values())
        """Whether every row has the same number of bytes."""
        self.native = all(
            isinstance(field.dtype, np.dtype) and field.ragged <= 1 for field in fields.values()
        )
        """Whether a loader can read all of it by itself."""
        self.seen = [
            (name, field.dtype, field.shape, bool(field.ragged))
            if isinstance(field.dtype, np.dtype)
            else (name, _BYTES, (), True)
            for name, field in fields.items()
        ]
        """What the core is told about columns that are read."""

    def taken(self) -> list[Any]:
        """Give what the core is told about values that come in."""
        return [
            (
                name,
                kind_of(field),
                field.dtype if isinstance(field.dtype, np.dtype) else None,
                field.shape,
                int(field.ragged),
                preparer(name, field),
            )
            for name, field in self.fields.items()
        ]

    def refuse(self) -> Callable[[Mapping[Any, Any]], object]:
        """Give the function that says which name in a record is of no field."""
        return functools.partial(refuse_fields, self.fields)


class Look:
    """What a store holds at one moment."""

    __slots__ = ("described", "fields", "length", "plain", "snapshot", "table")

    def __init__(self, snapshot: _native.RecordSnapshot, described: Described) -> None:
        self.snapshot = snapshot
        self.described = described
        self.fields = described.fields
        self.plain = described.plain
        self.table = snapshot.table(described.seen)
        self.length = len(snapshot)


class ReadHandle:
    """A store as of some commit. Thread-safe; works in a forked child."""

    def __init__(self, path: str, options: ReadOptions, at: int | None = None) -> None:
        self.path = path
        self.options = options
        with _told_to_create(path):
            native = _native.Records.open(
                path, options.verify, options.io, options.max_value_bytes, at
            )
        self._alone = threading.Lock()
        self._seen: tuple[_native.Records, Look] | None = (native, _fresh(native))

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._seen is None

    def look(self) -> Look:
        """Give what the store holds."""
        seen = self._seen
        if seen is None:
            raise ClosedError(f"`{self.path}` is closed")
        return seen[1]

    def refresh(self) -> bool:
        """Go on to the last commit; whether anything changed."""
        self.look()
        with self._alone:  # or an older look might replace a newer one
            seen = self._seen
            if seen is None or not seen[0].refresh():
                return False
            self._seen = seen[0], _fresh(seen[0])
            return True

    def close(self) -> None:
        """Let go of the files; arrays over them keep what they need."""
        self._seen = None


def _fresh(native: _native.Records) -> Look:
    snapshot = native.snapshot()
    return Look(snapshot, Described(fields_of(snapshot.specs())))


class WriteHandle:
    """A store that this process writes. Thread-safe; a forked child gets `ClosedError`."""

    def __init__(
        self,
        path: str,
        native: _native.RecordWriter,
        described: Described,
        autoflush_s: float | None,
    ) -> None:
        self.path = path
        self.native = native
        self.described = described
        self._alone = threading.RLock()
        self._aborted = False
        self._kept = False
        self._trouble: ReliveError | None = None
        native.plan(described.taken(), described.refuse(), described)
        self._timer = None if autoflush_s is None else FlushTimer(self, autoflush_s)

    @classmethod
    def create(
        cls,
        path: str,
        fields: Mapping[str, Field],
        options: ReadOptions,
        *,
        chunk_size: int | None,
        writers: int,
        autoflush_s: float | None,
    ) -> "WriteHandle":
        """Make an empty store."""
        seconds = None if autoflush_s is None else check_seconds(autoflush_s)
        specs = [spec_of(name, field) for name, field in fields.items()]
        described = Described(dict(fields))
        try:
            native = _native.RecordWriter.create(
                path,
                specs,
                chunk_records=None if chunk_size is None else _chunk_records(chunk_size),
                chunk_bytes=None,
                writers=thread_count(writers, "writers"),
                verify=options.verify,
                io=options.io,
                max_value_bytes=options.max_value_bytes,
            )
        except AlreadyExistsError as error:
            if _is_store(path):
                error.hint = 'RecordStore.open(path, mode="a") appends to it'
            raise
        return cls(path, native, described, seconds)

    @classmethod
    def open(
        cls, path: str, options: ReadOptions, *, writers: int, autoflush_s: float | None
    ) -> "WriteHandle":
        """Go on writing a store."""
        seconds = None if autoflush_s is None else check_seconds(autoflush_s)
        with _told_to_create(path):
            native = _native.RecordWriter.open(
                path,
                writers=thread_count(writers, "writers"),
                verify=options.verify,
                io=options.io,
                max_value_bytes=options.max_value_bytes,
            )
        snapshot, _ = native.snapshot()
        return cls(path, native, Described(fields_of(snapshot.specs())), seconds)

    @property
    def closed(self) -> bool:
        """Whether it was closed or aborted, or belongs to another process."""
        return not self.native.is_open

    def look(self) -> Look:
        """Give what the store holds now, with everything that was not flushed yet."""
        return Look(*self.native.snapshot())

    def note(self, trouble: ReliveError) -> None:
        """Keep what went wrong while nobody asked for the next call."""
        self._trouble = trouble

    def check(self) -> None:
        """Raise what went wrong while nobody asked."""
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble

    def add_field(self, name: str, field: Field, values: Column) -> None:
        """Add a field behind the others."""
        with self._alone:
            later = Described({**self.described.fields, name: field})
            spec = spec_of(name, field)
            self.native.add_field(spec, values, later.taken(), later.refuse(), later)
            self.described = later

    def drop_field(self, name: str) -> None:
        """Take a field away."""
        with self._alone:
            fields = self.described.fields
            later = Described({key: fields[key] for key in fields if key != name})
            self.native.drop_field(name, later.taken(), later.refuse(), later)
            self.described = later

    def extend(self, records: Columns) -> tuple[int, int]:
        """Append many records, and give the first of their positions and the one behind them."""
        given = settled(records)

        def work(described: Described) -> tuple[int, int]:
            rows, columns = as_columns(described.fields, given)
            return self.native.extend(rows, columns, described)

        return self._with_fields(work)

    def assign(self, name: str, rows: IndexArray, value: Any) -> None:
        """Change one field of several records; one value for all of them is repeated."""
        given = settled(value)

        def work(described: Described) -> None:
            field = pick_fields(described.fields, [name])[name]
            values = broadcast_column(name, field, given, len(rows))
            self.native.modify_many(described.columns[name], rows, values, described)

        self._with_fields(work)

    def _with_fields(self, work: Callable[[Described], _T]) -> _T:
        """Do what depends on the fields; again when another thread changed them in between."""
        while True:
            described = self.described
            try:
                return work(described)
            except InvalidError:
                with self._alone:  # or the change is half done
                    if described is self.described:
                        raise

    def close(self) -> None:
        """Sync, and let go of the store; a second time does nothing."""
        if self._aborted:
            raise ClosedError(f"`{self.path}` was aborted")
        self._stop()
        self.native.close()
        self._kept = True
        self.check()

    def abort(self) -> None:
        """Go back to the last flush, and let go of the store; nothing after `close`."""
        if self._kept:
            return
        self._stop()
        self._trouble = None
        self.native.abort()
        self._aborted = True

    def _stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()


def _chunk_records(number: int) -> int:
    if isinstance(number, bool):
        raise InvalidTypeError(f"`chunk_size` must be an integer, not {number!r}")
    if as_int("chunk_size", number, at_least=1) > _MOST_RECORDS:
        raise InvalidError(f"`chunk_size` must be at most {_MOST_RECORDS}, not {number}")
    return int(number)


def leave(native: _native.RecordWriter) -> None:
    """Close a store that nobody holds any more; what was asked of it is kept."""
    with contextlib.suppress(ReliveError):
        if native.is_open:
            native.close()


@contextlib.contextmanager
def _told_to_create(path: str) -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        if not _is_store(path):
            error.hint = "RecordStore.create(path, fields) makes a store"
        raise


def _is_store(path: str) -> bool:
    return (Path(path) / "meta.json").exists()
