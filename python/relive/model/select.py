"""`Subset`: a view of some rows of a source."""

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
    over_snapshot,
)

if TYPE_CHECKING:
    from relive._native import Table


class Subset(Source):
    """A view of the rows of `source` at the positions `rows`, in that order.

    Nothing is copied. A subset of a subset refers to the source itself, and slicing a slice
    takes no memory. Pickles as the source and the positions.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> from relive.load import Subset
        >>> subset = Subset(relive.ArraySource(np.arange(10) * 2), [7, 0])
        >>> subset.gather([1, 0])["data"].tolist()
        [0, 14]
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
        self._snapshot: Subset | None = None

    @property
    def source(self) -> Source:
        """The source that rows are read from, never a `Subset`."""
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

    def snapshot(self) -> Source:
        """Return the same positions of a snapshot of the source."""
        source = self._source.snapshot()
        if source is self._source:
            return self
        if self._snapshot is None or self._snapshot.source is not source:
            self._snapshot = over_snapshot(self, Subset, source, self._rows)
        return self._snapshot

    def native_table(self) -> "Table | None":
        """Return the selection as a table of the Rust core, if the source has one."""
        table = self._source.native_table()
        if table is None:
            return None
        cached = self._native
        # A source that grew has a different table from the one this selection was made of.
        if cached is None or cached[0] is not table:
            rows = self._rows
            if isinstance(rows, range):
                cached = table, table.select_range(rows.start, rows.step, len(rows))
            else:
                cached = table, table.select(rows)
            self._native = cached
        return cached[1]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the source and the rows, without the table."""
        return _restore, (type(self), self._source, self._rows)

    def __repr__(self) -> str:
        """Return the number of rows, the fields and the class of the source, on one line."""
        return f"Subset({describe(self)}, of {type(self._source).__name__})"


def view(source: Source, rows: Rows) -> Subset:
    """Return a subset of rows that are valid and that the caller does not change."""
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
            f"`rows` must have one dimension, got {array.ndim}",
            hint="use gather(), which takes indices of any shape",
        )
    return array.copy() if array is rows or not array.flags.owndata else array


def _frozen(rows: Rows) -> Rows:
    if isinstance(rows, np.ndarray):
        rows.flags.writeable = False
    return rows


def members(rows: Rows, positions: IndexArray) -> IndexArray:
    """Return the members of `rows` at `positions`, which are valid."""
    if isinstance(rows, np.ndarray):
        return rows.take(positions)
    if rows.step == 1:
        return positions + rows.start if rows.start else positions
    return positions * rows.step + rows.start


def compose(outer: Rows, inner: Rows) -> Rows:
    """Return the rows that `inner` selects out of `outer`."""
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
