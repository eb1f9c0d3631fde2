"""Immutable, content-addressed versions of datasets: publish, open and read them."""

from relive.publish.manage import (
    ColumnChange,
    ColumnStatistics,
    GarbageReport,
    TableDiff,
    VersionDiff,
    collect_garbage,
    column_statistics,
    diff,
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
    "Plan",
    "PublishedDataset",
    "Table",
    "TableDiff",
    "VersionDiff",
    "collect_garbage",
    "column_statistics",
    "dataset",
    "diff",
    "validate",
]
