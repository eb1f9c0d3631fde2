"""Rewrites the files of closed runs without unused bytes, and the database of a root."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import check_choice
from relive._native import RunArraysWriter, StepArrays, crc32c
from relive.errors import (
    CorruptError,
    InvalidError,
    LockedError,
    ReadOnlyError,
    ReliveError,
    UnfinishedError,
    UnknownFieldError,
    UnknownNameError,
)
from relive.model.report import Progress
from relive.replay.arrays import RunArrays
from relive.replay.columns import ColumnSpec
from relive.replay.config import Codec, find_codec, parse_codecs
from relive.replay.manage.runs import list_runs, load_tables, writing
from relive.replay.source import open_arrays, root_of
from relive.replay.storage.connection import Database
from relive.replay.storage.files import (
    current_path,
    finish,
    missing_arrays,
    remove,
    settle,
    sync_names,
)
from relive.replay.storage.layout import arrays_path, database_path, lock_path, replacement_path
from relive.replay.storage.tables import ChunkRow, RunRow, RunTables, TailRow, replace_arrays
from relive.replay.transitions.growing import is_read_in_batches
from relive.replay.writing.writer import episode_datasets, file_attributes, file_description
from relive.store.atomic import storage_error
from relive.store.locks import is_locked

Layout: TypeAlias = Literal["train"]

LAYOUTS: Final = ("train",)
_RAW: Final[Codec] = ("raw", None)
_THREADS: Final = 2
_SUPERBLOCK_BYTES: Final = 48
_ALIGNMENT: Final = 8
"""The metadata of HDF5 begins at a multiple of this."""
_STACK_ROWS: Final = 1024
"""Rows of a chunk of the numbers of planes, as the core stores them."""


@dataclass(frozen=True, slots=True)
class CompactedRun:
    """What `compact` did to a run, or would do.

    Example:
        >>> import tempfile
        >>> from relive import replay
        >>> root = tempfile.mkdtemp()
        >>> with replay.ReplayRecorder(root, "run-1") as recorder:
        ...     _ = recorder.step([0.5], 1, 1.0, terminated=True)
        >>> done = replay.compact(root, "run-1", codec={"observations": "raw"})
        >>> done.is_changed, done.encoded
        (True, ('observations',))
    """

    run_id: str
    path: Path
    """The file of its arrays."""
    has_arrays: bool
    """Whether the run has arrays; without, there is nothing to compact."""
    is_changed: bool
    """Whether the file was rewritten, or would be; one that is compact already stays as it is."""
    bytes_before: int
    bytes_after: int | None
    """The size of the file now; None if it was not rewritten because of `dry_run`."""
    unused_bytes: int
    """Bytes of the file before that no step refers to."""
    encoded: tuple[str, ...]
    """The names of the columns that got another codec."""


@dataclass(frozen=True, slots=True)
class CompactedDatabase:
    """What `vacuum` did to the database of a root, or would do."""

    path: Path
    bytes_before: int
    """The size of the database with its journal."""
    bytes_after: int | None
    """The same now; None if nothing was changed because of `dry_run`."""
    unused_bytes: int
    """Bytes of the database before that had no content."""


def compact(
    root: str | os.PathLike[str],
    run_id: str,
    *,
    codec: str | Mapping[str, str] | None = None,
    layout: Layout | None = None,
    dry_run: bool = False,
    threads: int = _THREADS,
    progress: Progress | None = None,
) -> CompactedRun:
    """Rewrite the file of a closed run: full chunks, column by column, and nothing else.

    Steps, episodes and references stay as they are, and every array has the same bytes. The new
    file is read back and compared before it takes the place of the old one. A call that is
    interrupted, also by a kill or a power cut, leaves the old file or the new one; the rest is
    cleaned up by the next call, the next recorder of the run, or `recover`. Readers that have the
    run open keep the old file until they are refreshed.

    A run that is being recorded is a `LockedError`, one whose recorder was killed an
    `UnfinishedError`, and an archived one a `ReadOnlyError`.

    Args:
        root: The directory of the runs.
        run_id: The id of the run.
        codec: Codecs of columns, as `ReplayConfig` takes them; a column that is not named keeps
            its codec.
        layout: `"train"` stores what `ReplayRun.transitions` reads for each batch without a codec,
            so that it is read from a map of the file: observations, and actions and extras of more
            than 64 bytes. Other columns are as `codec` says.
        dry_run: Change nothing.
        threads: Threads that encode and decode.
        progress: Called with how many chunks are done, and how many there are; each is written
            and then compared.

    Example:
        >>> import tempfile
        >>> from relive import replay
        >>> from relive.replay.manage.compact import compact
        >>> root = tempfile.mkdtemp()
        >>> for _ in range(3):  # each leaves the end of the file of the one before unused
        ...     with replay.ReplayRecorder(root, "run-1") as recorder:
        ...         refs = recorder.step([0.5], 1, 1.0)
        >>> done = compact(root, "run-1")
        >>> done.is_changed, done.bytes_after < done.bytes_before - done.unused_bytes / 2
        (True, True)
        >>> replay.FrameResolver(root + "/replay").resolve(refs.observation)
        array([0.5])
    """
    folder = root_of(root)
    codecs = {} if codec is None else parse_codecs(codec)
    if layout is not None:
        check_choice("layout", layout, LAYOUTS)
    if dry_run:
        tables = load_tables(folder, run_id)
        _check_closed(tables.run)
        if is_locked(lock_path(folder, run_id)):
            raise LockedError(
                f"run {run_id!r} is being recorded, deleted or compacted",
                hint="end that process first",
            )
        return _Plan(folder, tables, codecs, layout).result()
    with writing(folder, run_id) as (database, run):
        _check_closed(run)
        plan = _Plan(folder, RunTables.load(database, run_id), codecs, layout)
        if plan.is_needed:
            _replace(folder, database, plan, threads, progress)
        return plan.result(_file_bytes(plan.path))


def vacuum(root: str | os.PathLike[str], *, dry_run: bool = False) -> CompactedDatabase:
    """Rewrite the database of a root without unused space.

    Recorders would have to wait meanwhile: a run that is being recorded is a `LockedError`.

    Args:
        root: The directory of the runs.
        dry_run: Change nothing.
    """
    folder = root_of(root)
    path = database_path(folder)
    for run in list_runs(folder):
        if run.status == "recording":
            raise LockedError(
                f"run {run.run_id!r} is being recorded, so the database cannot be vacuumed",
                hint="end its recorder first",
            )
    # Only SQLite opens the file of the database; its size is known without opening it.
    with (Database.open if dry_run else Database.create)(path) as database:
        before = _database_bytes(path)
        (pages,), (size,) = (
            database.rows(f"PRAGMA {name}")[0] for name in ("freelist_count", "page_size")
        )
        if not dry_run:
            database.rows("VACUUM")
            database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        after = None if dry_run else _database_bytes(path)
    return CompactedDatabase(path, before, after, pages * size)


def _check_closed(run: RunRow) -> None:
    if run.status == "deleted":
        raise UnknownNameError(f"run {run.run_id!r} was deleted")
    if run.status == "archived":
        raise ReadOnlyError(
            f"run {run.run_id!r} is archived", hint="archived runs are never changed"
        )
    if run.status == "recording":
        raise UnfinishedError(
            f"run {run.run_id!r} was interrupted",
            hint="continue and close it, or run `relive recover`",
        )


@dataclass(slots=True)
class _Dataset:
    """A dataset of the file: all of a column, or the planes or the numbers of its stacks."""

    path: str
    old: ColumnSpec
    """The rows of the dataset as a column of its own, as they are stored now."""
    new: ColumnSpec
    """The same as they will be stored."""
    chunks: Sequence[ChunkRow]
    tails: Sequence[TailRow]
    made: list[ChunkRow] = field(default_factory=list)
    """The chunks in the new file."""
    digests: list[int] = field(default_factory=list)
    """The CRC-32C of the rows of each part, decoded."""
    rest: bytes = b""
    """The rows of a last chunk that is not full."""

    @property
    def rows(self) -> int:
        """How many rows there are, with those that are left out."""
        return max((first + rows for first, rows in self._stored()), default=0)

    def parts(self) -> list[npt.NDArray[np.int64]]:
        """Return the rows of each chunk that exists; those of the last one may be fewer."""
        size, end = self.new.chunk_rows, self.rows
        numbers = {
            number
            for first, rows in self._stored()
            for number in range(first // size, -(-(first + rows) // size))
        }
        return [
            np.arange(number * size, min((number + 1) * size, end)) for number in sorted(numbers)
        ]

    def _stored(self) -> list[tuple[int, int]]:
        """Return the first row and the number of rows of whatever is stored."""
        return [part[:2] for part in self.chunks] + [part[:2] for part in self.tails]


class _Plan:
    """What a run has, and what its new file will be like."""

    def __init__(
        self, root: Path, tables: RunTables, codecs: Mapping[str, Codec], layout: Layout | None
    ) -> None:
        self.tables = tables
        self.run = tables.run
        self.path = arrays_path(root, self.run.run_id)
        _check_names(tables.columns, codecs)
        self.columns = [_encoded(spec, _codec_of(spec, codecs, layout)) for spec in tables.columns]
        self.datasets = list(_datasets(tables, self.columns))
        file = current_path(root, self.run)
        if any(tables.chunks.values()) and not file.exists():
            raise missing_arrays(file, self.run.run_id)
        self._size = _file_bytes(file)

    @property
    def is_needed(self) -> bool:
        """Whether something can be better."""
        if not self.columns:
            return False
        in_order = [
            chunk[2]
            for is_full in (True, False)
            for each in self.datasets
            for chunk in sorted(each.chunks)
            if (chunk[1] == each.new.chunk_rows) is is_full
        ]
        return bool(
            self._unused
            or self._encoded
            or self.run.metadata_bytes is None
            or any(each.tails for each in self.datasets)
            or in_order != sorted(in_order)
        )

    def result(self, bytes_after: int | None = None) -> CompactedRun:
        """Return what was done, or would be."""
        has_arrays = bool(self.columns)
        return CompactedRun(
            self.run.run_id,
            self.path,
            has_arrays,
            self.is_needed,
            self._size,
            bytes_after,
            self._unused if has_arrays else 0,
            self._encoded,
        )

    @property
    def _encoded(self) -> tuple[str, ...]:
        pairs = zip(self.tables.columns, self.columns, strict=True)
        return tuple(new.name for old, new in pairs if old != new)

    @property
    def _unused(self) -> int:
        used = _SUPERBLOCK_BYTES + sum(chunk[3] for each in self.datasets for chunk in each.chunks)
        used += -used % _ALIGNMENT
        return max(0, self._size - used - (self.run.metadata_bytes or 0))


def _check_names(columns: Sequence[ColumnSpec], codecs: Mapping[str, Codec]) -> None:
    known = {spec.name for spec in columns}
    for name in codecs:
        if name != "*" and not any(each == name or each.startswith(f"{name}.") for each in known):
            listed = ", ".join(map(repr, sorted(known))) or "none"
            raise UnknownFieldError(f"unknown field {name!r}; the fields are {listed}")


def _codec_of(spec: ColumnSpec, codecs: Mapping[str, Codec], layout: Layout | None) -> Codec | None:
    """Return the codec that a column gets; None if it keeps its own."""
    found = find_codec(codecs, spec.name)
    if layout is None or not is_read_in_batches(spec):
        return found
    # What is set for all columns is for the others.
    if found not in {None, _RAW, codecs.get("*")}:
        raise InvalidError(
            f"`layout` stores {spec.name!r} without a codec, but `codec` is {found[0]!r} for it",
            hint="leave out one of them",
        )
    return _RAW


def _encoded(spec: ColumnSpec, found: Codec | None) -> ColumnSpec:
    """Return a column with a codec, or as it is."""
    if found is None or found == (spec.codec, spec.level):
        return spec
    codec, level = found
    shuffle = codec != "raw" and np.dtype(spec.dtype).itemsize > 1
    return replace(spec, codec=codec, level=level, shuffle=shuffle)


def _datasets(tables: RunTables, columns: Sequence[ColumnSpec]) -> Iterator[_Dataset]:
    """Iterate over the datasets of all columns, in the order in which the core numbers them."""
    number = 0
    for old, new in zip(tables.columns, columns, strict=True):
        for place, path in enumerate(old.paths):
            is_numbers = old.stack is not None and place == len(old.paths) - 1
            yield _Dataset(
                path,
                _alone(old, number, is_numbers=is_numbers),
                _alone(new, number, is_numbers=is_numbers),
                tables.chunks.get(path, ()),
                tables.tails.get(path, ()),
            )
            number += 1


def _alone(spec: ColumnSpec, number: int, *, is_numbers: bool) -> ColumnSpec:
    """Return a dataset of a column as a column of its own, named by its number."""
    alone = replace(spec, field=str(number), keys=(), stack=None, planes_of=None, rows_of="steps")
    if spec.stack is None:
        return alone
    depth = spec.shape[0 if spec.stack == "first" else -1]
    if is_numbers:
        return replace(alone, dtype="<u8", shape=(depth,), chunk_rows=_STACK_ROWS, shuffle=True)
    return replace(alone, shape=spec.shape[1:] if spec.stack == "first" else spec.shape[:-1])


def _replace(
    root: Path, database: Database, plan: _Plan, threads: int, progress: Progress | None
) -> None:
    """Write the new file of a run, and put it in the place of the old one."""
    run = plan.run
    path = replacement_path(root, run.run_id, run.arrays_version + 1)
    try:
        made = _Copy(root, plan, path, threads, progress).write()
        sync_names(path.parent)
    except BaseException:
        with contextlib.suppress(ReliveError):
            remove(path)  # no transaction refers to it
        raise
    chunks = {each.path: each.made for each in plan.datasets}
    try:
        with database.transaction(sync=True) as connection:
            made = replace_arrays(connection, plan.tables, made, plan.columns, chunks)
    except BaseException:
        # Whether it is committed is uncertain after an error of the disk.
        with contextlib.suppress(ReliveError):
            settle(database, root, run.run_id)
        raise
    finish(database, root, made)


class _Copy:
    """Copies the arrays of a run to a new file, and compares them."""

    def __init__(
        self, root: Path, plan: _Plan, path: Path, threads: int, progress: Progress | None
    ) -> None:
        self._plan = plan
        self._path = path
        self._threads = threads
        self._progress = progress
        self._done = 0
        self._total = 2 * sum(len(each.parts()) for each in plan.datasets)
        tables = plan.tables
        self._arrays = open_arrays(root, tables)
        self._old = _opened(
            current_path(root, plan.run),
            tables,
            [each.old for each in plan.datasets],
            [(each.chunks, each.tails) for each in plan.datasets],
        )

    def write(self) -> RunRow:
        """Write and sync the file; return the row of the run with it, but for the digest."""
        end = self._write_chunks()
        run = replace(
            self._plan.run,
            arrays_version=self._plan.run.arrays_version + 1,
            arrays_pending=0,
            arrays_end=end,
            metadata_offset=None,
            metadata_bytes=None,
            metadata_crc=None,
        )
        writer = self._finish(run, end)
        self._compare()
        run.arrays_pending, run.arrays_end = 1, writer.end
        if writer.metadata is not None:
            run.metadata_offset, run.metadata_bytes, run.metadata_crc = writer.metadata
        return run

    def _write_chunks(self) -> int:
        """Write the full chunks; return where they end."""
        writer = RunArraysWriter(self._path, threads=self._threads)
        for each in self._plan.datasets:
            writer.add_column(each.new.described())
        for number, each in enumerate(self._plan.datasets):
            for rows in each.parts():
                values = self._old.read(str(number), rows)
                each.digests.append(crc32c(values.data))
                if len(rows) < each.new.chunk_rows:
                    each.rest = values.tobytes()
                elif values.size:
                    writer.append_rows(number, int(rows[0]), values)
                else:
                    step = StepArrays(0, [(number, values[0])])
                    writer.append([(row, step) for row in rows.tolist()])
                self._count()
        for chunk in writer.commit()[0]:
            self._plan.datasets[chunk[0]].made.append(chunk[1:])
        return writer.end

    def _finish(self, run: RunRow, end: int) -> RunArraysWriter:
        """Write the chunks that are not full, and the metadata of HDF5."""
        tables = replace(self._plan.tables, run=run, columns=self._plan.columns)
        datasets = self._plan.datasets
        writer = RunArraysWriter(self._path, end=end, threads=self._threads)
        for spec in self._plan.columns:
            writer.add_column(spec.described())
        for number, each in enumerate(datasets):
            writer.restore(number, each.made, each.rows, each.rest)
        chunks, _ = writer.finish(
            run.steps,
            run.ends,
            {**file_attributes(run), **file_description(tables)},
            episode_datasets(self._arrays, self._plan.tables),
        )
        writer.sync()
        for chunk in chunks:
            datasets[chunk[0]].made.append(chunk[1:])
        return writer

    def _compare(self) -> None:
        """Raise an error unless the new file has the same rows."""
        datasets = self._plan.datasets
        new = _opened(
            self._path,
            self._plan.tables,
            [each.new for each in datasets],
            [(each.made, ()) for each in datasets],
        )
        for number, each in enumerate(datasets):
            for rows, digest in zip(each.parts(), each.digests, strict=True):
                if crc32c(new.read(str(number), rows).data) != digest:
                    raise CorruptError(
                        f"`{self._path}`: {each.path} at row {rows[0]} was not written as it was "
                        "read",
                        hint="the run was not changed; check the memory and the disk",
                    )
                self._count()

    def _count(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def _opened(
    path: Path,
    tables: RunTables,
    columns: Sequence[ColumnSpec],
    parts: Sequence[tuple[Sequence[ChunkRow], Sequence[TailRow]]],
) -> RunArrays:
    """Open the datasets of a file as columns of their own."""
    chunks = {spec.path: list(part[0]) for spec, part in zip(columns, parts, strict=True)}
    tails = {spec.path: list(part[1]) for spec, part in zip(columns, parts, strict=True)}
    return RunArrays(path, replace(tables, columns=list(columns), chunks=chunks, tails=tails))


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise storage_error(error, path, "read") from error


def _database_bytes(path: Path) -> int:
    return _file_bytes(path) + _file_bytes(path.with_name(f"{path.name}-wal"))
