"""Reading packs: one file, several as one, or a selection of their entries."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError, UnknownNameError
from relive.model.ragged import Ragged
from relive.model.schema import Field
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
from relive.store.arrays import thread_count
from relive.store.pack.export import Progress, Target, write_jsonl, write_parquet
from relive.store.pack.files import Options, Part, open_parts
from relive.store.pack.iterate import Batches, DecodeFailure, Entries, skips_errors
from relive.store.pack.selection import Selection
from relive.store.pack.stats import COLUMNS, PackStats, pack_stats
from relive.store.pack.steps import PackSteps
from relive.store.pack.validate import Report, validate_parts
from relive.store.paths import Location

__all__ = ["PackReader"]

_FAR_WORKERS: Final = 16
_SMALL_GROUP: Final = 64
_FIELDS: Final = {"payload": Field(np.uint8, ragged=True), "kind": Field(np.uint16)}


class PackReader(Source):
    """The entries of a pack, each found by its position.

    `reader[i]` decodes an entry: a `Run` for the kinds "v1" and "v2", bytes for "bytes", and
    whatever the registered decoder makes of any other kind. A slice, an array or a mask gives
    another reader of those entries, which can do all that this one can. As a source, its rows
    have the fields `payload` and `kind`. Made by `PackReader.open`; picklable, thread-safe.
    """

    _selection: Selection
    _stats: PackStats | None

    def __init__(self) -> None:
        raise InvalidTypeError("a reader is made by PackReader.open(path)")

    @classmethod
    def open(
        cls,
        uri: Location | Iterable[Location],
        *,
        verify: str = "first",
        io: str = "mmap",
        max_payload_bytes: int = 1 << 30,
        threads: int | None = None,
        **remote: object,
    ) -> Self:
        """Open a pack, the packs that a pattern matches, or a list of packs, as one.

        Args:
            uri: A path, a glob pattern, an `http`, `s3`, `gs` or `az` URI, or a list of them.
            verify: When checksums are compared: at the "first" touch of each entry, "always",
                or "never".
            io: "mmap", or "pread" for files that somebody might cut short while they are read.
            max_payload_bytes: Compressed payloads that claim to be longer are refused.
            threads: The most that one call uses; by default the cores, at most eight.
            remote: For URIs; see `relive.store.remote.file.RemoteFile`.
        """
        options = Options(verify, io, max_payload_bytes, thread_count(threads))
        return cls._of(Selection(open_parts(uri, options, remote), options))

    @classmethod
    def _of(cls, selection: Selection) -> Self:
        reader = cls.__new__(cls)
        reader._selection = selection  # noqa: SLF001 - its own constructor
        reader._stats = None  # noqa: SLF001
        return reader

    @property
    def fields(self) -> Mapping[str, Field]:
        """`payload`, the bytes of an entry, and `kind`, its number."""
        return _FIELDS

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._selection.all_rows)

    @property
    def path(self) -> str:
        """The path or URI; of several, all of them with commas."""
        return ", ".join(part.name for part in self._selection.parts)

    def close(self) -> None:
        """Let go of the files; views and payloads made before keep them until they are gone."""
        self._selection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """Give the place and the number of entries, on one line."""
        where = "closed" if self._selection.closed else self.path
        of = "" if self._selection.rows is None else f" of {self._selection.total}"
        return f"PackReader({where}: {len(self)}{of} entries)"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle where the packs are, and which entries are selected."""
        selection = self._selection
        return _restore, (selection.parts, selection.options, selection.rows)

    def kind(self, index: SupportsIndex) -> str:
        """Say what an entry is: "bytes", "v1", "v2" or the name of a registered kind."""
        part, row = self._selection.place(self._position(index))
        return part.native.kind(row)

    def name(self, index: SupportsIndex) -> str | None:
        """Give the name of an entry, if it has one."""
        part, row = self._selection.place(self._position(index))
        return part.native.name(row)

    def find(self, name: str) -> int:
        """Give the position of the entry of that name."""
        if not isinstance(name, str):
            raise InvalidTypeError(f"a name is text, not {name!r}")
        position = self._selection.find(name)
        if position is None:
            raise UnknownNameError(f"no entry of `{self.path}` is named {name!r}")
        return position

    def payload(self, index: SupportsIndex) -> memoryview:
        """Give the bytes of an entry: those of the mapped file itself where they are stored raw."""
        part, row = self._selection.place(self._position(index))
        return memoryview(part.native.payload(row))  # type: ignore[arg-type]

    def decode(self, index: SupportsIndex) -> Any:
        """Give an entry decoded; a run of version 1 is upgraded."""
        return self.decode_batch([self._position(index)])[0]

    def decode_batch(self, indices: Indices) -> list[Any]:
        """Give entries decoded in parallel, in the order asked; the first bad one is raised."""
        found = self.outcomes(indices)
        bad = next((item for item in found if isinstance(item, DecodeFailure)), None)
        if bad is not None:
            raise bad.error
        return found

    def outcomes(self, indices: Indices) -> list[Any]:
        """Give entries decoded in parallel; in the place of each bad one, a `DecodeFailure`."""
        rows = as_indices(indices, len(self))
        if rows.ndim != 1:
            raise InvalidError(f"entries are listed along one axis, and there are {rows.ndim}")
        return self._selection.decode(rows, self._selection.options.threads)

    def iter_indices(
        self, indices: Indices, *, workers: int | None = None, errors: str = "raise"
    ) -> Entries:
        """Give entries one by one, decoded ahead on native threads, in the order asked.

        At most twice `workers` are held, or 128 small ones that are no runs. A bad entry is
        raised, and named; with `errors="skip"` it is left out, and counted in `skipped`.
        """
        rows = as_indices(indices, len(self)).ravel()
        threads = self._workers(workers)
        # Between threads of Python, small things are handed over many at a time.
        group = max(threads, _SMALL_GROUP) if self._selection.small else threads
        return Entries(
            self._selection.decode, rows, threads, skip=skips_errors(errors), group=group
        )

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
        """Give all entries once, in lists of `batch_size`; shuffled as `Sampler(seed)` does.

        The order depends on `seed` alone, None being 0: give each pass another one.
        """
        size = as_int("batch_size", batch_size, at_least=1)
        chosen = as_int("seed", 0 if seed is None else seed)
        mode = "shuffle" if shuffle else "sequential"
        if len(self) == 0:
            return Batches(self._selection.decode, iter(()), 1, skip=skips_errors(errors))
        sampler = _native.Sampler(
            len(self),
            size,
            mode,
            seed=chosen,
            window=None,
            stride=None,
            rank=0,
            world_size=1,
            tail="drop" if drop_last else "keep",
            epochs=1,
        )
        draws = iter(sampler.draw, None)
        batches = (drawn[0] for drawn in draws if drawn is not None)
        return Batches(
            self._selection.decode, batches, self._workers(workers), skip=skips_errors(errors)
        )

    def __iter__(self) -> Iterator[Any]:
        """Give every entry decoded, in order."""
        return self.iter_indices(range(len(self)))

    def __getitems__(self, indices: Indices) -> list[Any]:
        """Give entries decoded, as a list."""
        return self.decode_batch(indices)

    @overload  # type: ignore[override]  # entries are decoded, where rows are dicts
    def __getitem__(self, key: SupportsIndex) -> Any: ...

    @overload
    def __getitem__(self, key: Key) -> "PackReader": ...

    def __getitem__(self, key: Key | SupportsIndex) -> Any:
        """Decode one entry, or give a reader of those that a slice, array or mask selects."""
        rows = resolve(key, len(self))  # type: ignore[arg-type]
        if isinstance(rows, int):
            return self.decode(rows)
        return self._view(rows)

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
        found = self._selection.table().gather(rows, columns, given, self._gather_threads)
        return {
            name: Ragged(*value) if isinstance(value, tuple) else value
            for name, value in found.items()
        }

    def native_table(self) -> "_native.Table | None":
        """Give the entries as a table of the core, where all packs are files."""
        return self._selection.table() if self._selection.local else None

    def steps(self) -> PackSteps:
        """Give the steps of all runs as a source of its own."""
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
        """Write runs, or their steps, as JSON lines; give how many bad entries were left out.

        The bytes are the same for any number of workers, and memory stays small.

        Args:
            path: Where to, or a file open for writing bytes.
            parallel: Whether to use more than one thread.
            workers: How many threads to use.
            granularity: A line for each of the "runs", or for each of the "steps".
            lists: Whether lines of runs have the boards and moves.
            boards: "integers", or "hex" for tools that read numbers as doubles.
            errors: "raise" for the first bad entry, or "skip" bad ones.
            overwrite: Whether an existing file is replaced.
            progress: Is told how many entries are done.
        """
        return write_jsonl(
            self,
            path,
            threads=self._workers(workers) if parallel else 1,
            granularity=granularity,
            lists=lists,
            boards=boards,
            errors=errors,
            overwrite=overwrite,
            progress=progress,
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
        """Write runs, or their steps, as a Parquet file; otherwise as `to_jsonl`."""
        return write_parquet(
            self,
            path,
            granularity=granularity,
            errors=errors,
            overwrite=overwrite,
            progress=progress,
        )

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
            by = self._selection.columns().keys(by)
        return tuple(self._view(part.rows) for part in split(self, ratios, by=by, seed=seed))

    def where(
        self,
        *,
        highest_tile: tuple[int | None, int | None] | None = None,
        steps: tuple[int | None, int | None] | None = None,
        max_score: tuple[int | None, int | None] | None = None,
        engine: str | Sequence[str] | None = None,
    ) -> "PackReader":
        """Give a reader of the runs that match; each pair is from (included) and to (excluded)."""
        ranges = {"highest_tile": highest_tile, "steps": steps, "max_score": max_score}
        return self._view(self._selection.columns().matching(ranges, engine))

    @property
    def stats(self) -> PackStats:
        """What the entries amount to; steps are counted over runs alone."""
        if self._stats is None:
            places = None if self.whole else self.places()
            self._stats = pack_stats(self._selection.parts, places)
        return self._stats

    def validate(self, level: str = "sample") -> Report:
        """Check the files again: the "index", a "sample" of entries too, or the "full" bytes."""
        return validate_parts([part.where for part in self.parts], level, self._selection.options)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The open packs."""
        return self._selection.parts

    def places(self) -> tuple[IndexArray, IndexArray]:
        """Give for each entry the number of its pack, and its position there."""
        return self._selection.places()

    @property
    def whole(self) -> bool:
        """Whether all entries of all packs are here, in order."""
        return self._selection.rows is None

    def _position(self, index: SupportsIndex) -> int:
        position = resolve(index, len(self))  # type: ignore[arg-type]
        if not isinstance(position, int):
            raise InvalidTypeError(f"one entry has one position, not {index!r}")
        return position

    def _view(self, rows: Rows) -> "PackReader":
        return PackReader._of(self._selection.select(rows))

    @property
    def _gather_threads(self) -> int:
        # What is far away is fetched by one request for all rows.
        mapped = all(part.native.mapped for part in self._selection.parts)
        return self._selection.options.threads if mapped else 1

    def _workers(self, workers: int | None) -> int:
        if workers is not None:
            return thread_count(workers)
        # What is far away is worth asking for in larger groups.
        return self._selection.options.threads if self._selection.local else _FAR_WORKERS


def _restore(parts: tuple[Part, ...], options: Options, rows: Rows | None) -> PackReader:
    return PackReader._of(Selection(parts, options, rows))  # noqa: SLF001 - its constructor
