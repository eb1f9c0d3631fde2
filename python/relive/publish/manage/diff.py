"""Compares two published versions: tables, rows, columns and bytes."""

import os
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal

from relive.publish.version.catalog import Catalog
from relive.publish.version.names import parse_reference
from relive.store.roots import Root, open_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from relive.publish.version.lookup import Version
    from relive.publish.version.manifest import TableEntry

_BATCH_ROWS: Final = 8192

Change = Literal["same", "added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that only one of two versions of a table has, or that has another type.

    Example:
        >>> ColumnChange("reward", None, "double").change
        'added'
    """

    name: str
    before: str | None
    """The type in the first version; None if it has no such column."""
    after: str | None

    @property
    def change(self) -> Change:
        """What happened to the column."""
        return _change(self.before, self.after)


@dataclass(frozen=True, slots=True)
class TableDiff:
    """How a table differs between two versions.

    Example:
        >>> table = TableDiff("main", "changed", (10, 12), (900, 980), (), (1, 1, 1), (300, 380))
        >>> table.rows, table.shards
        ((10, 12), (1, 1, 1))
    """

    name: str
    change: Change
    rows: tuple[int, int]
    """The number of rows before and after."""
    bytes: tuple[int, int]
    """The size of all shards before and after."""
    columns: tuple[ColumnChange, ...]
    shards: tuple[int, int, int]
    """How many shards only the first version has, both have, and only the second has."""
    shard_bytes: tuple[int, int]
    """The size of the shards that only the first version has, and only the second."""
    has_same_rows: bool | None = None
    """Whether both have the same rows in the same order; None if that was not compared."""


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """How two versions differ.

    Example:
        >>> VersionDiff("lab/a@00", "lab/b@00", (), ()).is_same
        True
    """

    before: str
    """The first version, as `ws/name@digest`."""
    after: str
    tables: tuple[TableDiff, ...]
    sections: tuple[str, ...]
    """The other sections that differ, such as `about`, `readme` and `artifacts`."""

    @property
    def is_same(self) -> bool:
        """Whether both versions have the same content."""
        return not self.sections and all(table.change == "same" for table in self.tables)


def diff(
    before: str,
    after: str,
    *,
    root: str | os.PathLike[str] | Root | None = None,
    rows: bool = False,
    **remote: Any,
) -> VersionDiff:
    """Compare two versions, of one dataset or of two.

    Shards are compared by their digests, so no data is read. With `rows=True`, tables of the
    same columns and number of rows whose shards differ are read and compared row by row: another
    version of pyarrow writes the same rows as other bytes.

    Example:
        >>> import pyarrow as pa, relive
        >>> from relive.publish import diff
        >>> for steps in ([1, 2, 3], [1, 2, 3, 4]):
        ...     builder = relive.DatasetBuilder("lab/kitchen", root="root")
        ...     builder.add_table("main", pa.table({"step": steps}))
        ...     digest = builder.publish(tag=f"v{len(steps)}")
        >>> diff("lab/kitchen@v3", "lab/kitchen@v4", root="root").tables[0].rows
        (3, 4)
    """
    opened = open_root(root, **remote)
    catalog = Catalog(opened)
    first, second = (catalog.resolve(parse_reference(each)) for each in (before, after))
    old, new = first.manifest, second.manifest
    tables = [
        _table_diff(name, old.tables.get(name), new.tables.get(name))
        for name in dict.fromkeys((*old.tables, *new.tables))
    ]
    if rows:
        tables = [_with_rows(each, first, second, opened) for each in tables]
    sections = [
        name
        for name in dict.fromkeys((*old.sections, *new.sections))
        if old.sections.get(name) != new.sections.get(name)
    ]
    sections += [name for name in ("about", "readme") if getattr(old, name) != getattr(new, name)]
    return VersionDiff(first.pinned, second.pinned, tuple(tables), tuple(sorted(sections)))


def _table_diff(name: str, old: "TableEntry | None", new: "TableEntry | None") -> TableDiff:
    before = {} if old is None else {shard.blob.digest: shard.blob.nbytes for shard in old.shards}
    after = {} if new is None else {shard.blob.digest: shard.blob.nbytes for shard in new.shards}
    columns = _column_changes(old and old.schema, new and new.schema)
    gone = [size for digest, size in before.items() if digest not in after]
    come = [size for digest, size in after.items() if digest not in before]
    is_same = (
        old is not None
        and new is not None
        and old.schema.equals(new.schema, check_metadata=True)
        and [shard.blob for shard in old.shards] == [shard.blob for shard in new.shards]
        and old.splits == new.splits
    )
    return TableDiff(
        name,
        "same" if is_same else _change(old, new),
        (old.rows if old else 0, new.rows if new else 0),
        (old.nbytes if old else 0, new.nbytes if new else 0),
        columns,
        (len(gone), len(before.keys() & after.keys()), len(come)),
        (sum(gone), sum(come)),
        True if is_same else None,
    )


def _column_changes(old: "pa.Schema | None", new: "pa.Schema | None") -> tuple[ColumnChange, ...]:
    if old is None or new is None:
        return ()
    before, after = ({field.name: _type_text(field) for field in each} for each in (old, new))
    return tuple(
        ColumnChange(name, before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    )


def _type_text(field: "pa.Field") -> str:
    return f"{field.type}" if field.nullable else f"{field.type} not null"


def _change(before: object, after: object) -> Change:
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def _with_rows(table: TableDiff, first: "Version", second: "Version", root: Root) -> TableDiff:
    """Return the comparison of a table with that of its rows, which are read if need be."""
    if table.change != "changed":
        return table
    if table.rows[0] != table.rows[1] or table.columns:
        return replace(table, has_same_rows=False)
    batches = zip_longest(
        _batches(table.name, first, root), _batches(table.name, second, root), fillvalue=None
    )
    return replace(table, has_same_rows=all(_are_equal(*pair) for pair in batches))


def _batches(table: str, version: "Version", root: Root) -> "Iterator[pa.RecordBatch]":
    from relive.publish.read.dataset import dataset

    opened = dataset(version.pinned, root=root).table(table)
    yield from opened.batches(batch_size=_BATCH_ROWS)


def _are_equal(first: "pa.RecordBatch | None", second: "pa.RecordBatch | None") -> bool:
    if first is None or second is None or first.num_rows != second.num_rows:
        return False
    second = second.select(first.schema.names)
    if first.equals(second):
        return True
    # Arrow does not consider NaN equal to itself.
    return repr(first.to_pylist()) == repr(second.to_pylist())
