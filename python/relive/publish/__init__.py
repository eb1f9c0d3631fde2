"""Immutable, content-addressed versions of datasets: publish, open and read them."""

from relive.publish.manage import (
    ColumnChange,
    ColumnStatistics,
    GarbageReport,
    MirrorReport,
    TableDiff,
    VersionDiff,
    collect_garbage,
    column_statistics,
    diff,
    mirror,
    validate,
)
from relive.publish.read.dataset import PublishedDataset, dataset
from relive.publish.read.table import Table
from relive.publish.write.builder import DatasetBuilder, Plan

__all__ = [
    "ColumnChange",
    "ColumnStatistics",
    "DatasetBuilder",
    "GarbageReport",
    "MirrorReport",
    "Plan",
    "PublishedDataset",
    "Table",
    "TableDiff",
    "VersionDiff",
    "collect_garbage",
    "column_statistics",
    "dataset",
    "diff",
    "mirror",
    "validate",
]
