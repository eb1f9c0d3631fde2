"""Reading packs: one file, several as one, or a selection of their entries."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import as_int, as_text, check_choice, worker_count
from relive.errors import (
    ClosedError,
    InvalidError,
    InvalidTypeError,
    UnknownNameError,
    UnsupportedError,
)
from relive.model.ragged import Ragged
from relive.model.report import Level, Progress, Report
from relive.model.schema import Field
from relive.model.select import compose, members
from relive.model.source import (
    Batch,
    IndexArray,
    Indices,
    Key,
    Rows,
    Source,
    as_indices,
    check_out,
    pick_fields,
    resolve,
)
from relive.model.split import split
from relive.store.pack.export import Target, is_per_step, opened, write_runs, write_steps
from relive.store.pack.files import OpenOptions, PackFile, open_packs
from relive.store.pack.iterate import Batches, DecodeFailure, Entries, skips_errors
from relive.store.pack.stats import COLUMNS, Columns, PackStats, pack_stats, read_columns
from relive.store.pack.steps import PackSteps
from relive.store.pack.validate import validate_files
from relive.store.paths import Location

_REMOTE_WORKERS: Final = 16
_SMALL_GROUP: Final = 64
_FIELDS: Final = {"payload": Field(np.uint8, ragged=True), "kind": Field(np.uint16)}


class PackReader(Source):
    """The entries of a pack, of several packs as one, or a selection of them.

    `reader[i]` decodes an entry: a `Run` for the kinds "v1" and "v2", bytes for "bytes", and
    the result of the registered decoder for any other kind. A slice, an array or a mask
    returns another reader of those entries. As a source, its rows have the fields `payload`
    and `kind`. Made by `PackReader.open`; picklable, thread-safe.

    Example:
        >>> import relive
        >>> with relive.PackWriter("words.pack") as writer:
        ...     positions = writer.extend([b"zero", b"one", b"two"])
        >>> reader = relive.PackReader.open("words.pack")
        >>> len(reader), reader[1]
        (3, b'one')
        >>> reader[1:].decode_batch([1, 0])
        [b'two', b'one']
    """

    def __init__(self, files: tuple[PackFile, ...], rows: Rows | None = None) -> None:
        if not isinstance(files, tuple) or not files:
            raise InvalidTypeError(
                "a PackReader cannot be created directly", hint="use PackReader.open(path)"
            )
        self._files = files
        self._rows = rows
        """Positions in all files together; None for all of them."""
        self._options = files[0].options
        self._starts: IndexArray = np.cumsum([0, *(len(file.native) for file in files)])
        self._table: _native.Table | None = None
        self._columns: Columns | None = None
        self._stats: PackStats | None = None

    @classmethod
    def open(
        cls,
        uri: Location | Iterable[Location],
        *,
        verify: str = "first",
        io: str = "mmap",
        max_payload_bytes: int = 1 << 30,
        workers: int | None = None,
        **remote: object,
    ) -> Self:
        """Open a pack, the packs that a glob pattern matches, or a list of packs, as one.

        Args:
            uri: A path, a glob pattern, an `http`, `s3`, `gs` or `az` URI, or a list of them.
            verify: When checksums are compared: when an entry is "first" read, "always", or
                "never".
            io: "mmap", or "pread" for files that another process may truncate while they are
                read.
            max_payload_bytes: A compressed payload that is longer raises a `TooLargeError`.
            workers: The most threads that one call uses; by default the number of cores, at
                most eight.
            remote: Options for URIs; see `relive.store.remote.file.RemoteFile`.
        """
        options = OpenOptions(verify, io, max_payload_bytes, worker_count(workers))
        return cls(open_packs(uri, options, remote))

    @property
    def fields(self) -> Mapping[str, Field]:
        """`payload`, the bytes of an entry, and `kind`, its number."""
        return _FIELDS

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._all_rows)

    @property
    def path(self) -> Path:
        """The path of the pack; an `UnsupportedError` if it is remote or there are several."""
        files = self.files
        if len(files) > 1 or not files[0].is_local:
            raise UnsupportedError(
                f"`{self.uri}` is not a single local file", hint="use `.uri`, not `.path`"
            )
        return Path(files[0].uri)

    @property
    def uri(self) -> str:
        """The path, or the URI without its user, password and query; several with commas."""
        return ", ".join(file.uri for file in self.files)

    @property
    def files(self) -> tuple[PackFile, ...]:
        """The open packs."""
        if not self._files:
            raise ClosedError("the PackReader is closed")
        return self._files

    def close(self) -> None:
        """Release the files. Selections and payloads made before keep what they need."""
        self._files = ()
        self._table = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """Return the path and the number of entries, on one line."""
        uri = self.uri if self._files else "closed"
        of = "" if self._rows is None else f" of {self._starts[-1]}"
        return f"PackReader({uri}: {len(self)}{of} entries)"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the locations of the packs and the selected positions."""
        return PackReader, (self.files, self._rows)

    def kind(self, index: SupportsIndex) -> str:
        """Return the kind of an entry: "bytes", "v1", "v2" or a registered kind."""
        file, row = self._locate_one(index)
        return file.native.kind(row)

    def name(self, index: SupportsIndex) -> str | None:
        """Return the name of an entry, if it has one."""
        file, row = self._locate_one(index)
        return file.native.name(row)

    def find(self, name: str) -> int:
        """Return the position of the entry with that name."""
        as_text("`name`", name)
        for file, start in zip(self.files, self._starts.tolist(), strict=False):
            row = file.native.find(name)
            if row is None:
                continue
            rows = self._all_rows
            if isinstance(rows, range):
                if start + row in rows:
                    return rows.index(start + row)
            else:
                found = np.flatnonzero(rows == start + row)
                if len(found):
                    return int(found[0])
        raise UnknownNameError(f"no entry of `{self.uri}` is named {name!r}")

    def payload(self, index: SupportsIndex) -> memoryview:
        """Return the bytes of an entry; without a copy if they are stored raw and mapped."""
        file, row = self._locate_one(index)
        return memoryview(file.native.payload(row))  # type: ignore[arg-type]

    def decode(self, index: SupportsIndex) -> Any:
        """Return an entry decoded; a run of version 1 is upgraded."""
        return self.decode_batch([self._position(index)])[0]

    def decode_batch(self, indices: Indices) -> list[Any]:
        """Return entries decoded in parallel, in the order of `indices`.

        The first entry that cannot be decoded raises its error.
        """
        found = self.try_decode(indices)
        for item in found:
            if isinstance(item, DecodeFailure):
                raise item.error
        return found

    def try_decode(self, indices: Indices) -> list[Any]:
        """Return entries as `decode_batch` does, with a `DecodeFailure` for each bad one."""
        rows = as_indices(indices, len(self))
        if rows.ndim != 1:
            raise InvalidError(f"`indices` must have one dimension, got {rows.ndim}")
        return self._decode(rows, self._options.workers)

    def iter_indices(
        self, indices: Indices, *, workers: int | None = None, errors: str = "raise"
    ) -> Entries:
        """Return an iterator over decoded entries, in the order of `indices`.

        Entries are decoded ahead on native threads; at most twice `workers` are in memory, or
        128 small ones. An entry that cannot be decoded raises its error; with `errors="skip"`
        it is left out and counted in `skipped`.
        """
        rows = as_indices(indices, len(self)).ravel()
        count = self._iterator_workers(workers)
        # Small entries are handed over in larger groups, which costs less per entry.
        small = all(file.is_small for file in self.files)
        group = max(count, _SMALL_GROUP) if small else count
        return Entries(self._decode, rows, count, skip=skips_errors(errors), group=group)

    def iter_batches(
        self,
        batch_size: int,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - as the seed spells it
        seed: int | None = None,
        workers: int | None = None,
        *,
        drop_last: bool = False,
        errors: str = "raise",
    ) -> Batches:
        """Return an iterator over all entries once, in lists of `batch_size`.

        With `shuffle`, the order is that of `Sampler` and depends on `seed` alone (None is 0):
        pass another seed for each epoch.
        """
        size = as_int("batch_size", batch_size, at_least=1)
        number = as_int("seed", 0 if seed is None else seed, at_most=None)
        skip = skips_errors(errors)
        if len(self) == 0:
            return Batches(self._decode, iter(()), 1, skip=skip)
        sampler = _native.Sampler(
            len(self),
            size,
            "shuffle" if shuffle else "sequential",
            seed=number,
            window=None,
            stride=None,
            rank=0,
            world_size=1,
            tail="drop" if drop_last else "keep",
            epochs=1,
        )
        batches = (drawn[0] for drawn in iter(sampler.draw, None) if drawn is not None)
        return Batches(self._decode, batches, self._iterator_workers(workers), skip=skip)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over all entries, decoded."""
        return self.iter_indices(range(len(self)))

    def __getitems__(self, indices: Indices) -> list[Any]:
        """Return entries decoded, as a list."""
        return self.decode_batch(indices)

    @overload  # type: ignore[override]  # entries are decoded, where rows are dicts
    def __getitem__(self, key: SupportsIndex) -> Any: ...

    @overload
    def __getitem__(self, key: Key) -> "PackReader": ...

    def __getitem__(self, key: Key | SupportsIndex) -> Any:
        """Decode one entry, or return a reader of those that a slice, array or mask selects."""
        rows = resolve(key, len(self))  # type: ignore[arg-type]
        if isinstance(rows, int):
            return self.decode(rows)
        return self._select(rows)

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read payloads and kinds into one batch; see `Source.gather`."""
        rows = as_indices(indices, len(self), check=False)
        picked = pick_fields(_FIELDS, fields)
        given = check_out(out, picked, rows.shape) if out is not None else None
        columns = [list(_FIELDS).index(name) for name in picked]
        found = self._native_table().gather(rows, columns, given, self.gather_workers)
        return {
            name: Ragged(*value) if isinstance(value, tuple) else value
            for name, value in found.items()
        }

    def native_table(self) -> "_native.Table | None":
        """Return the entries as a table of the core if all packs are local files."""
        return self._native_table() if self.is_local else None

    def steps(self) -> PackSteps:
        """Return the steps of all runs as a source."""
        return PackSteps(self)

    def to_jsonl(
        self,
        path: Target,
        parallel: bool = True,  # noqa: FBT001, FBT002 - as the seed spells it
        workers: int | None = None,
        granularity: str = "runs",
        *,
        lists: bool = True,
        boards: str = "integers",
        errors: str = "raise",
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Write runs or their steps as JSON lines; return how many entries were left out.

        The bytes are the same for any number of workers, and memory stays small.

        Args:
            path: The file to write, or a file open for writing bytes.
            parallel: Whether to use more than one thread.
            workers: The number of threads.
            granularity: Write a line for each of the "runs" or of the "steps".
            lists: Whether the lines of runs include the boards and moves.
            boards: "integers", or "hex" for tools that read numbers as doubles.
            errors: "raise" the error of the first bad entry, or "skip" bad entries.
            overwrite: Whether to replace an existing file.
            progress: Called with the number of entries done and the number of all entries.
        """
        steps, skip = is_per_step(granularity), skips_errors(errors)
        check_choice("boards", boards, ("integers", "hex"))
        threads = self._iterator_workers(workers) if parallel else 1
        numbers, rows = self.locate_all()
        with opened(path, overwrite=overwrite) as file:
            return _native.write_jsonl(
                [each.native for each in self.files],
                numbers,
                rows,
                file.write,
                steps=steps,
                lists=lists,
                hex_boards=boards == "hex",
                skip=skip,
                workers=threads,
                progress=None if progress is None else lambda done: progress(done, len(self)),
            )

    def to_parquet(
        self,
        path: Target,
        granularity: str = "runs",
        *,
        errors: str = "raise",
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Write runs or their steps as a Parquet file; the arguments are those of `to_jsonl`."""
        steps, skip = is_per_step(granularity), skips_errors(errors)
        if steps and skip:
            raise UnsupportedError(
                'errors="skip" cannot be used with granularity="steps"',
                hint="write the good entries to another pack first with `relive pack subset`",
            )
        with opened(path, overwrite=overwrite) as file:
            if not steps:
                return write_runs(self, file, progress, skip=skip)
            write_steps(self, file, progress)
            return 0

    def split(  # type: ignore[override]
        self,
        ratios: Iterable[float],
        *,
        by: str | Callable[[Any], object] | Sequence[object] | npt.NDArray[Any] | None = None,
        seed: int = 0,
    ) -> "tuple[PackReader, ...]":
        """Divide the entries into disjoint readers.

        `by` keeps entries with one key together: "engine", "steps", "highest_tile",
        "max_score" or "kind", a function of the decoded entry, or a key for each entry.
        """
        if isinstance(by, str) and by in COLUMNS:
            by = self._run_columns().keys(by)
        return tuple(self._select(subset.rows) for subset in split(self, ratios, by=by, seed=seed))

    def where(
        self,
        *,
        highest_tile: tuple[int | None, int | None] | None = None,
        steps: tuple[int | None, int | None] | None = None,
        max_score: tuple[int | None, int | None] | None = None,
        engine: str | Sequence[str] | None = None,
    ) -> "PackReader":
        """Return a reader of the runs that match all conditions.

        Each pair is a first value, included, and a last one, excluded; None for no bound.
        """
        ranges = {"highest_tile": highest_tile, "steps": steps, "max_score": max_score}
        return self._select(self._run_columns().matching(ranges, engine))

    @property
    def stats(self) -> PackStats:
        """Counts of the entries; steps are those of runs."""
        if self._stats is None:
            locations = None if self.is_whole else self.locate_all()
            self._stats = pack_stats(self.files, locations)
        return self._stats

    def validate(self, level: Level = "sample", *, progress: Progress | None = None) -> Report:
        """Check the files: "index", a "sample" of entries too, or "full", which is every byte.

        See `relive.store.pack.validate`.
        """
        locations = [file.location for file in self.files]
        return validate_files(locations, level, self._options, progress)

    @property
    def is_whole(self) -> bool:
        """Whether the reader has all entries of all packs, in order."""
        return self._rows is None

    @property
    def is_local(self) -> bool:
        """Whether all packs are local files."""
        return all(file.is_local for file in self.files)

    @property
    def gather_workers(self) -> int:
        """The number of threads that one `gather` uses."""
        # A remote pack requests all rows at once on one thread.
        mapped = all(file.native.mapped for file in self.files)
        return self._options.workers if mapped else 1

    def locate_all(self) -> tuple[IndexArray, IndexArray]:
        """Return for each entry the number of its file and its position in that file."""
        return self._locate(np.asarray(self._all_rows, dtype=np.int64))

    @property
    def _all_rows(self) -> Rows:
        return range(int(self._starts[-1])) if self._rows is None else self._rows

    def _select(self, rows: Rows) -> "PackReader":
        return PackReader(self.files, rows if self._rows is None else compose(self._rows, rows))

    def _position(self, index: SupportsIndex) -> int:
        position = resolve(index, len(self))  # type: ignore[arg-type]
        if not isinstance(position, int):
            raise InvalidTypeError(f"`index` must be an integer, got {index!r}")
        return position

    def _locate_one(self, index: SupportsIndex) -> tuple[PackFile, int]:
        files, row = self.files, int(self._all_rows[self._position(index)])
        if len(files) == 1:
            return files[0], row
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return files[number], row - int(self._starts[number])

    def _locate(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        return numbers, rows - self._starts[numbers]

    def _decode(self, positions: IndexArray, workers: int) -> list[Any]:
        files = self.files
        numbers, rows = self._locate(members(self._all_rows, positions))
        found: list[Any] = [None] * len(positions)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            for at, value in zip(
                here.tolist(), files[number].decode(rows[here], workers), strict=True
            ):
                found[at] = value
        return found

    def _native_table(self) -> "_native.Table":
        if self._table is None:
            tables = [file.native.table() for file in self.files]
            table = tables[0] if len(tables) == 1 else _native.Table.concat(tables)
            if isinstance(self._rows, range):
                table = table.select_range(self._rows.start, self._rows.step, len(self._rows))
            elif self._rows is not None:
                table = table.select(self._rows)
            self._table = table
        return self._table

    def _run_columns(self) -> Columns:
        if self._columns is None:
            self._columns = read_columns(self.files, self._rows)
        return self._columns

    def _iterator_workers(self, workers: int | None) -> int:
        if workers is not None:
            return worker_count(workers)
        # Larger groups of remote entries cost fewer round trips.
        return self._options.workers if self.is_local else _REMOTE_WORKERS
