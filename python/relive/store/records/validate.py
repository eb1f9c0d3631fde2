"""Checks of record stores, also of those that cannot be opened."""

import os

from relive import _native
from relive._arguments import worker_count
from relive.model.report import Level, Problem, Progress, Report, check_level


def validate(
    path: str | os.PathLike[str],
    level: Level = "sample",
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a store, also one that cannot be opened.

    `checked["records"]` of the report is the number of records that were read. A problem's
    `row` is the position of its record and `field` the name of its field.

    Args:
        path: The directory of the store.
        level: "index" reads the tables, "sample" some records too, "full" every byte.
        workers: The number of threads; by default the number of cores, at most eight.
        progress: Called with the number of records read and the number of all records.

    Example:
        >>> import relive
        >>> from relive.store.records import validate
        >>> with relive.RecordStore.create("arm", {"q": relive.Field("float32", (7,))}) as store:
        ...     positions = store.extend({"q": [[0.0] * 7] * 3})
        >>> report = validate("arm", "full")
        >>> report.ok, report.checked["records"]
        (True, 3)
    """
    check_level(level)
    name = os.fspath(path)
    records, found = _native.validate_records(name, level, worker_count(workers), progress)
    problems = (Problem(name, kind, text, field=field, row=row) for field, row, kind, text in found)
    return Report(level, {"records": records}, tuple(problems))
