"""Splits of a table: named ranges of its rows."""

import fnmatch
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError
from relive.publish.version.manifest import RowRanges
from relive.publish.version.names import check_member_name

_FORMS: Final = (
    "pass (start, stop), a range, a slice, a list of them, or paths of the table's files"
)


def row_ranges(
    splits: Mapping[str, Any] | None, rows: int, files: Sequence[tuple[Path, int]]
) -> dict[str, RowRanges]:
    """Return the rows of every split as ranges in order.

    A split is given as `(start, stop)`, a `range` or a `slice` of rows, as paths or glob patterns
    of files of the table, or as a list of them. `files` are those files with their numbers of
    rows. Rows of one split may not overlap; several splits may.
    """
    if splits is None:
        return {}
    if not isinstance(splits, Mapping):
        raise InvalidTypeError(f"`splits` must map names to rows, got {splits!r}", hint=_FORMS)
    return {
        check_member_name(name): _joined(name, _ranges(name, given, rows, files))
        for name, given in splits.items()
    }


def shifted(ranges: RowRanges, by: int) -> RowRanges:
    """Return the ranges of rows that begin `by` rows later."""
    return tuple((start + by, stop + by) for start, stop in ranges)


def _ranges(
    name: str, given: Any, rows: int, files: Sequence[tuple[Path, int]]
) -> list[tuple[int, int]]:
    if isinstance(given, str | os.PathLike):
        return _of_files(name, given, files)
    if isinstance(given, range | slice):
        start, stop, step = (
            given.indices(rows)
            if isinstance(given, slice)
            else (given.start, given.stop, given.step)
        )
        if step != 1:
            raise InvalidError(f"split `{name}` must have every row of a range, got {given!r}")
        return [_checked(name, start, stop, rows)]
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], list | tuple):  # noqa: PLR2004
        if isinstance(given[0], str | os.PathLike | range | slice):
            return [each for item in given for each in _ranges(name, item, rows, files)]
        return [_checked(name, *given, rows)]
    if isinstance(given, Iterable) and not isinstance(given, bytes | Mapping):
        return [each for item in given for each in _ranges(name, item, rows, files)]
    raise InvalidTypeError(f"split `{name}` cannot be {given!r}", hint=_FORMS)


def _checked(name: str, start: Any, stop: Any, rows: int) -> tuple[int, int]:
    first = as_int(f"split `{name}`: start", start, at_most=rows, hint=_FORMS)
    last = as_int(f"split `{name}`: stop", stop, at_least=first, at_most=rows, hint=_FORMS)
    return first, last


def _of_files(
    name: str, location: str | os.PathLike[str], files: Sequence[tuple[Path, int]]
) -> list[tuple[int, int]]:
    pattern = os.path.abspath(os.path.expanduser(os.fspath(location)))  # noqa: PTH100, PTH111
    found, start = [], 0
    for path, rows in files:
        text = os.fspath(path)
        inside = text.startswith(pattern + os.sep)
        if text == pattern or inside or fnmatch.fnmatchcase(text, pattern):
            found.append((start, start + rows))
        start += rows
    if not found:
        raise InvalidError(
            f"split `{name}`: no file of the table matches `{os.fspath(location)}`",
            hint="splits by path need a table of Parquet files, without rewrite=True",
        )
    return found


def _joined(name: str, ranges: list[tuple[int, int]]) -> RowRanges:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if joined and start < joined[-1][1]:
            raise InvalidError(f"split `{name}` has row {start} twice")
        if joined and start == joined[-1][1]:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)
