"""Views: some rows of a source, which are a source again."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError
from relive.model.schema import Field
from relive.model.source import (
    Batch,
    IndexArray,
    Indices,
    Rows,
    Source,
    as_indices,
    check_source,
    describe,
    fits,
)

if TYPE_CHECKING:
    from relive._native import Table

__all__ = ["Subset", "compose", "members", "view"]


class Subset(Source):
    """The rows of `source` at the positions `rows`, in that order; nothing is copied.

    A subset of a subset is one subset of the root, and ranges stay ranges: slicing a slice
    costs no memory. Pickles as the source and the rows.
    """

    def __init__(self, source: Source, rows: Rows | npt.ArrayLike) -> None:
        self._select(source, _checked(rows, len(check_source(source))))

    def _select(self, source: Source, rows: Rows) -> None:
        if isinstance(source, Subset):
            rows = compose(source.rows, rows)
            source = source.source
        self._source = source
        self._rows = _frozen(rows)
        self._native: tuple[Table, Table] | None = None

    @property
    def source(self) -> Source:
        """The source that the rows are read from, never a subset itself."""
        return self._source

    @property
    def rows(self) -> Rows:
        """The positions in `source`: a range, or a read-only array."""
        return self._rows

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of the source."""
        return self._source.fields

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._rows)

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the rows at `indices` of the view; see `Source.gather`."""
        checked = as_indices(indices, len(self._rows))
        return self._source.gather(members(self._rows, checked), fields, out)

    def native_table(self) -> "Table | None":
        """Give the selection as a table of the core, when the source has one."""
        table = self._source.native_table()
        if table is None:
            return None
        cached = self._native
        # A source that grew has another table than the one this selection was made from.
        if cached is None or cached[0] is not table:
            rows = self._rows
            if isinstance(rows, range):
                cached = table, table.select_range(rows.start, rows.step, len(rows))
            else:
                cached = table, table.select(rows)
            self._native = cached
        return cached[1]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the source and the rows; the core's table is made again where it is needed."""
        return _restore, (type(self), self._source, self._rows)

    def __repr__(self) -> str:
        """Give the number of rows, the fields and the kind of source, on one line."""
        return f"Subset({describe(self)}, of {type(self._source).__name__})"


def view(source: Source, rows: Rows) -> Subset:
    """Make a subset of rows that are known to be inside, and that nobody else can change."""
    return _restore(Subset, source, rows)


def _restore(cls: type[Subset], source: Source, rows: Rows) -> Subset:
    subset = cls.__new__(cls)
    subset._select(source, rows)  # noqa: SLF001 - a constructor of the same class
    return subset


def _checked(rows: Rows | npt.ArrayLike, length: int) -> Rows:
    if isinstance(rows, range):
        if not rows:
            return range(0)
        if fits(rows) and min(rows[0], rows[-1]) >= 0 and max(rows[0], rows[-1]) < length:
            return rows
    array = as_indices(rows, length)
    if array.ndim != 1:
        raise InvalidError(
            f"a view has one axis, and the rows have {array.ndim}",
            hint="gather() takes indices of any shape",
        )
    return array.copy() if array is rows or not array.flags.owndata else array


def _frozen(rows: Rows) -> Rows:
    if isinstance(rows, np.ndarray):
        rows.flags.writeable = False
    return rows


def members(rows: Rows, positions: IndexArray) -> IndexArray:
    """Give the members of `rows` at `positions`, which are known to be inside."""
    if isinstance(rows, np.ndarray):
        return rows.take(positions)
    if rows.step == 1:
        return positions + rows.start if rows.start else positions
    return positions * rows.step + rows.start


def compose(outer: Rows, inner: Rows) -> Rows:
    """Give the rows of the root that `inner` selects out of `outer`."""
    if isinstance(inner, np.ndarray):
        return members(outer, inner)
    if not inner:
        return range(0)
    if isinstance(outer, range):
        start, step = outer[inner[0]], outer.step * inner.step
        return range(start, start + step * len(inner), step)
    stop = inner[-1] + (1 if inner.step > 0 else -1)
    part = outer[inner[0] : stop if stop >= 0 else None : inner.step]
    return np.ascontiguousarray(part)
