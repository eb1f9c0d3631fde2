"""`Table`: a table of a published dataset, read in batches, by row, or with SQL."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError, MissingExtraError, TooLargeError
from relive.model.schema import Field
from relive.model.source import Batch, IndexArray, Indices, Source, as_indices, check_out
from relive.model.source import pick_fields as pick
from relive.publish.read import rows
from relive.publish.read.batches import AUTO_STEPS, TableStream
from relive.publish.read.filters.conditions import (
    Condition,
    Filter,
    check_columns,
    make_filter,
    unknown_name,
)
from relive.publish.read.scan import Scan
from relive.publish.read.stream.batch_stream import BatchStream, Selection
from relive.publish.read.stream.blocks import TableBlocks
from relive.publish.read.stream.options import stream_options
from relive.publish.read.stream.shard import ShardLike

if TYPE_CHECKING:
    from relive.publish.read.dataset import PublishedDataset
    from relive.publish.read.stream.torch_dataset import TorchBatches

BATCH_ROWS: Final = 8192
LARGE_BYTES: Final = 2 << 30
"""What `arrow()`, `pandas()` and `polars()` load without `allow_large=True`."""


class Table(Source):
    """A table of a published version. Nothing is read until rows are asked for.

    `select` and `filter` return another table. Row groups that statistics exclude are not
    fetched, nor are columns that are not needed. A table is a `Source`, so that a `DataLoader`
    reads it by row. Thread-safe, works in forked and spawned processes, and pickles as the
    address of the root, the digest of the version, and the selection.

    Example:
        >>> import pyarrow as pa, relive
        >>> builder = relive.DatasetBuilder("demo/numbers", root="root")
        >>> builder.add_table("main", pa.table({"x": range(10), "y": [i * i for i in range(10)]}))
        >>> _ = builder.publish()
        >>> table = relive.dataset("demo/numbers", root="root").table()
        >>> table.select(["y"]).head(3).to_pydict()
        {'y': [0, 1, 4]}
        >>> table.gather([7, 0, 7])["y"].tolist()
        [49, 0, 49]
    """

    def __init__(
        self,
        dataset: "PublishedDataset",
        name: str,
        *,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        filters: Sequence[Filter] = (),
    ) -> None:
        self._dataset = dataset
        self._name = name
        self._split = split
        self._shards = dataset._shards(name)  # noqa: SLF001 - of this package
        entry = self._shards.entry
        if split is not None and split not in entry.splits:
            raise unknown_name("split", split, list(entry.splits))
        self._ranges = [(0, entry.rows)] if split is None else list(entry.splits[split])
        self._columns = list(entry.schema.names if columns is None else columns)
        self._filters = tuple(filters)

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._name

    @property
    def split_name(self) -> str | None:
        """The split that was selected; None for all rows."""
        return self._split

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the selected columns; makes no request."""
        return self._scan().schema

    def count(self) -> int:
        """Return the number of rows; without a filter it is known and nothing is read."""
        return self._scan().count()

    def head(self, n: int = 5) -> pa.Table:
        """Return the first `n` rows."""
        limit = as_int("n", n)
        with self.batches(max(1, limit), limit=limit, prefetch=0) as stream:
            return pa.Table.from_batches(list(stream), stream.schema)

    def select(self, columns: Sequence[str]) -> "Table":
        """Return the table with some of its columns, in that order."""
        return self._with(columns=self._checked(columns))

    def filter(self, condition: Condition) -> "Table":
        """Return the table with the rows for which a condition is true.

        Args:
            condition: A `pyarrow.compute.Expression`, or a SQL condition, which needs DuckDB. It
                may refer to columns that are not selected.
        """
        return self._with(filters=(*self._filters, self._filter(condition)))

    def batches(
        self,
        batch_size: int = BATCH_ROWS,
        *,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,  # noqa: A002 - the documented name
        limit: int | None = None,
        prefetch: int | Literal["auto"] = "auto",
        shard: ShardLike = None,
        shuffle: bool = False,
        seed: int = 0,
        window: int | None = None,
        partitions: int | None = None,
        tail: str = "keep",
    ) -> BatchStream:
        """Read the rows in record batches of `batch_size` rows, in order or shuffled.

        Args:
            batch_size: The rows of a batch of this rank.
            columns: The columns, in that order; by default those of the table.
            filter: A condition as in `filter()`. A batch of a shuffled or sharded stream then has
                the rows of its step that match, maybe none.
            limit: Read only the first so many rows, of all ranks together.
            prefetch: How many steps of about 8 MiB are fetched and decoded ahead. By default as
                many as the consumer needs. In order, with a filter and a limit, none, because the
                rows may be found soon.
            shard: `(rank, world_size)`: each rank reads its share of every step. `"auto"` takes
                `RANK` and `WORLD_SIZE`, else `LOCAL_RANK` and `LOCAL_WORLD_SIZE`, from the
                environment, and reads everything if they are not set.
            shuffle: Whether to read row groups in a random order, and to shuffle the rows of
                several. Each epoch has another order.
            seed: Chooses the order.
            window: With `shuffle`, how many rows are shuffled together; by default those of about
                64 MiB, and of at least four row groups. About three windows are in memory.
            partitions: Into how many parts of equal size the row groups are divided. A step has
                equally many rows of each. If the number of ranks divides it, ranks do not read what
                others train on; by default it is the number of ranks. With 1, the order is the
                same for any number of ranks, and every rank reads all row groups.
            tail: What happens if an epoch does not fill its last step: `"keep"` makes it short,
                with about equally many rows for all ranks, maybe none; `"drop"` leaves it out;
                `"pad"` repeats rows; `"error"` raises an `InvalidError` at once. With a filter
                only `"keep"` is possible.
        """
        given: dict[str, Any] = {
            "limit": limit, "prefetch": prefetch, "shard": shard, "shuffle": shuffle, "seed": seed,
            "window": window, "partitions": partitions, "tail": tail,
        }  # fmt: skip
        table = self._narrowed(columns, filter)
        options = stream_options(batch_size, filtered=bool(table._filters), **given)  # noqa: SLF001
        return BatchStream(table.selection(), options)

    def to_torch(
        self,
        batch_size: int = BATCH_ROWS,
        *,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,  # noqa: A002 - the documented name
        shard: ShardLike = "auto",
        **options: Any,
    ) -> "TorchBatches":
        """Return the batches as an iterable dataset of PyTorch that yields dicts of tensors.

        Iterate over it directly, or pass it to `torch.utils.data.DataLoader(data, batch_size=None,
        num_workers=…)`. Arguments are those of `batches()`.
        """
        from relive.publish.read.stream.torch_dataset import TorchBatches  # it needs torch

        table = self._narrowed(columns, filter)
        is_filtered = bool(table._filters)  # noqa: SLF001 - of the same class
        given = stream_options(batch_size, filtered=is_filtered, shard=shard, **options)
        return TorchBatches(table, given)

    def batch_dicts(
        self, batch_size: int = BATCH_ROWS, **options: Any
    ) -> Iterator[dict[str, list[Any]]]:
        """Read the rows in dicts of lists of Python values; options as of `batches`."""
        with self.batches(batch_size, **options) as stream:
            for batch in stream:
                yield batch.to_pydict()

    def arrow(self, *, allow_large: bool = False) -> pa.Table:
        """Return all rows as an Arrow table.

        More than 2 GiB raise a `TooLargeError` before anything is read, unless `allow_large`.
        """
        scan = self._scan()
        if not allow_large:
            self._check_size(scan)
        stream = TableStream(scan, 1, AUTO_STEPS)
        try:
            tables = list(stream)
        finally:
            stream.close()
        return pa.concat_tables(tables) if tables else scan.schema.empty_table()

    def pandas(self, *, allow_large: bool = False) -> Any:
        """Return all rows as a pandas DataFrame; large ones as `arrow()`."""
        _require("pandas")
        return self.arrow(allow_large=allow_large).to_pandas()

    def polars(self, *, allow_large: bool = False) -> Any:
        """Return all rows as a Polars DataFrame; large ones as `arrow()`."""
        polars = _require("polars")
        return polars.from_arrow(self.arrow(allow_large=allow_large))

    def query(self, sql: str) -> pa.Table:
        """Run SQL with DuckDB, which sees this table as `this`; return the result.

        SQL sees no files and no other tables. With an Arrow expression as a filter, the rows that
        match are loaded first, as by `arrow()`.
        """
        from relive.publish.read.queries import run  # it needs DuckDB

        return run(sql, {"this": self})

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every row, by name; for nested lists the first rows are read."""
        return self._fields

    def __len__(self) -> int:
        """Count the rows; with a filter, its columns are read once."""
        if self._filters:
            return len(self._positions)
        return sum(stop - start for start, stop in self._ranges)

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the rows at `indices` into one batch; each row group is fetched and decoded once.

        Decoded row groups are kept, up to 256 MiB in a process. A null is NaN, NaT or None; in a
        column of integers, booleans or lists it is an `InvalidError`.
        """
        picked = pick(self.fields, fields)
        wanted = as_indices(indices, len(self))
        given = check_out(out, picked, wanted.shape)
        positions = self._in_table(wanted.ravel())
        table = rows.take(self._shards, list(picked), positions)
        return rows.batch_of(table, picked, wanted.shape, given)

    def block_bounds(self) -> IndexArray:
        """Return the first row of each block, and the number of rows; reads all footers.

        A block is a row group, or a part of one over 64 MiB: rows that are fetched together.
        """
        bounds = TableBlocks(self._shards, self._columns, self._ranges).bounds
        if not self._filters:
            return bounds
        numbers = bounds.searchsorted(self._in_selection(self._positions), side="right") - 1
        changes = np.flatnonzero(np.diff(numbers)) + 1
        ends = [len(numbers)] if len(numbers) else []
        return np.array([0, *changes, *ends], np.int64)

    def __repr__(self) -> str:
        """Return the version, the number of rows and columns, on one line."""
        split = f", split {self._split!r}" if self._split else ""
        total = sum(stop - start for start, stop in self._ranges)
        text = f"{total} rows" if not self._filters else f"filtered from {total} rows"
        return (
            f"Table({self._dataset.id}@{self._dataset.digest[:12]}, {self._name!r}{split}: {text}, "
            f"{len(self._columns)} columns)"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the root, the version and the selection."""
        conditions = [one.condition for one in self._filters]
        selection = (self._name, self._split, self._columns, conditions)
        return _reopen, (self._dataset._address, *selection)  # noqa: SLF001 - of this package

    @cached_property
    def _fields(self) -> dict[str, Field]:
        return rows.fields_of(self._shards, self._columns)

    @cached_property
    def _positions(self) -> IndexArray:
        """The rows of the table that match the filters."""
        found = list(self._scan().positions())
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _in_table(self, wanted: IndexArray) -> IndexArray:
        """Return the positions of rows in the whole table."""
        if self._filters:
            return self._positions[wanted]
        if not len(wanted) or len(self._ranges) == 1:
            return wanted + (self._ranges[0][0] if self._ranges else 0)
        starts = np.array([start for start, _ in self._ranges], np.int64)
        sizes = np.array([stop - start for start, stop in self._ranges], np.int64)
        firsts = np.cumsum(sizes) - sizes
        number = firsts.searchsorted(wanted, side="right") - 1
        return wanted - firsts[number] + starts[number]

    def _in_selection(self, positions: IndexArray) -> IndexArray:
        """Return which of the selected rows, before filters, are at positions in the table."""
        starts = np.array([start for start, _ in self._ranges], np.int64)
        sizes = np.array([stop - start for start, stop in self._ranges], np.int64)
        number = starts.searchsorted(positions, side="right") - 1
        return positions - starts[number] + (np.cumsum(sizes) - sizes)[number]

    def _narrowed(self, columns: Sequence[str] | None, condition: Condition | None) -> "Table":
        table = self if columns is None else self.select(columns)
        return table if condition is None else table.filter(condition)

    def _with(self, **changes: Any) -> "Table":
        given = {"split": self._split, "columns": self._columns, "filters": self._filters}
        return Table(self._dataset, self._name, **(given | changes))

    def _filter(self, condition: Condition) -> Filter:
        return make_filter(condition, self._shards.schema)

    def _checked(self, columns: Sequence[str]) -> list[str]:
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise InvalidTypeError(f"`columns` must be a list of names, got {columns!r}")
        check_columns(columns, self._columns)
        if not len(columns) or len(set(columns)) < len(columns):
            raise InvalidError(f"`columns` must be different names, got {columns!r}")
        return list(columns)

    def _scan(self) -> Scan:
        return Scan(self._shards, self._columns, self._ranges, self._filters)

    def selection(self) -> Selection:
        """Return what streams read of the table."""
        return Selection(
            self._dataset.digest,
            self._name,
            self._split,
            self._shards,
            self._columns,
            self._ranges,
            self._filters,
        )

    def _check_size(self, scan: Scan) -> None:
        nbytes = scan.decoded_bytes(LARGE_BYTES)
        if nbytes > LARGE_BYTES:
            raise TooLargeError(
                f"{self!r} takes more than {LARGE_BYTES / (1 << 30):g} GiB in memory",
                hint="pass allow_large=True, select fewer columns or rows, or read batches()",
            )


def _reopen(
    address: tuple[Any, str, str],
    name: str,
    split: str | None,
    columns: list[str],
    conditions: list[Condition],
) -> Table:
    from relive.publish.read.dataset import reopened  # it imports this module

    table = reopened(*address).table(name, split).select(columns)
    for condition in conditions:
        table = table.filter(condition)
    return table


def _require(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"`{name}` is needed to return a DataFrame of it", hint=f"pip install {name}"
        ) from error
