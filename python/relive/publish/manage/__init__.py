"""What can be found out about published versions: checks, comparisons and statistics."""

from relive.publish.manage.diff import ColumnChange, TableDiff, VersionDiff, diff
from relive.publish.manage.statistics import ColumnStatistics, column_statistics
from relive.publish.manage.validate import validate

__all__ = [
    "ColumnChange",
    "ColumnStatistics",
    "TableDiff",
    "VersionDiff",
    "column_statistics",
    "diff",
    "validate",
]
