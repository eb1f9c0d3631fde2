"""What is done with published versions: checks, comparisons, statistics, deletion, copies."""

from relive.publish.manage.diff import ColumnChange, TableDiff, VersionDiff, diff
from relive.publish.manage.garbage import GarbageReport, collect_garbage
from relive.publish.manage.mirror import MirrorReport, mirror
from relive.publish.manage.statistics import ColumnStatistics, column_statistics
from relive.publish.manage.validate import validate

__all__ = [
    "ColumnChange",
    "ColumnStatistics",
    "GarbageReport",
    "MirrorReport",
    "TableDiff",
    "VersionDiff",
    "collect_garbage",
    "column_statistics",
    "diff",
    "mirror",
    "validate",
]
