"""Statistics of the columns of a published table, computed while it is read once."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from relive.model.report import Progress
    from relive.publish.read.table import Table

_BATCH_ROWS: Final = 65_536


@dataclass(slots=True)
class ColumnStatistics:
    """The number of values and nulls of a column, and the range and the mean of its values.

    Example:
        >>> ColumnStatistics(3, 1, 0.5, 2.0, 1.25).nulls
        1
    """

    values: int = 0
    nulls: int = 0
    min: Any = None
    """None for columns of text, bytes, lists and structs."""
    max: Any = None
    mean: float | None = None
    """None for columns that are not numbers."""


def column_statistics(
    table: "Table", *, progress: "Progress | None" = None
) -> dict[str, ColumnStatistics]:
    """Return the statistics of every column; the table is read once, batch by batch."""
    found = {name: ColumnStatistics() for name in table.schema().names}
    sums = dict.fromkeys(found, 0.0)
    done, total = 0, table.count()
    for batch in table.batches(batch_size=_BATCH_ROWS):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            sums[name] += _add(found[name], column)
        done += batch.num_rows
        if progress is not None:
            progress(done, total)
    for field in table.schema():
        each = found[field.name]
        if _is_number(field.type) and each.values:
            each.mean = sums[field.name] / each.values
    return found


def _add(statistics: ColumnStatistics, column: "pa.Array") -> float:
    """Add the values of one batch; return their sum."""
    import pyarrow as pa
    import pyarrow.compute as pc

    statistics.values += len(column) - column.null_count
    statistics.nulls += column.null_count
    kind = column.type
    if column.null_count == len(column) or not (_is_number(kind) or pa.types.is_temporal(kind)):
        return 0.0
    low, high = (each.as_py() for each in pc.min_max(column).values())
    if low is not None:  # all values may be NaN
        statistics.min = low if statistics.min is None else min(statistics.min, low)
        statistics.max = high if statistics.max is None else max(statistics.max, high)
    if not _is_number(kind):
        return 0.0
    return float(pc.sum(pc.cast(column, pa.float64(), safe=False)).as_py() or 0.0)


def _is_number(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )
