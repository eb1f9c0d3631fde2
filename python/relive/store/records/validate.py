"""What a look at every byte of a record store found."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from relive import _native
from relive.errors import InvalidError
from relive.store.arrays import thread_count

__all__ = ["Problem", "Progress", "Report", "validate"]

Progress: TypeAlias = Callable[[int, int], object]
"""Is told how many records are done, out of how many."""
_LEVELS: Final = ("index", "sample", "full")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    field: str | None
    """The field it is in, if it is in one."""
    row: int | None
    """The position of the record it is in, if it is in one."""
    kind: str
    """The kind of error that reading it would give."""
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what is wrong."""

    level: str
    records: int
    """How many records were read."""
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def validate(
    path: str | os.PathLike[str],
    level: str = "sample",
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a store, also one that cannot be opened; see `RecordStore.validate`."""
    if level not in _LEVELS:
        raise InvalidError(f"level is one of {', '.join(_LEVELS)}, not {level!r}")
    records, found = _native.validate_records(
        os.fspath(path), level, thread_count(threads), progress
    )
    return Report(level, records, tuple(Problem(*problem) for problem in found))
