"""The result of `validate` for everything on disk: a `Report` of `Problem`s."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from relive._arguments import check_choice

__all__ = [
    "LEVELS",
    "Damaged",
    "Level",
    "Problem",
    "Progress",
    "Report",
    "Unfinished",
    "check_level",
]

Level: TypeAlias = Literal["index", "sample", "full"]
"""How much `validate` reads: structure only, some of the data, or every byte."""
LEVELS: Final = ("index", "sample", "full")

Progress: TypeAlias = Callable[[int, int | None], object]
"""Called with how much is done and how much there is in all, None where that is unknown."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Example:
        >>> problem = Problem("runs.a2pack", "corrupt", "the checksum does not match", row=7)
        >>> problem.kind, problem.row
        ('corrupt', 7)
    """

    path: str
    """The path or URI of the file."""
    kind: str
    """The `kind` of the error that reading it would raise."""
    message: str
    """What is wrong, with the values."""
    field: str | None = None
    """The signal of an episode, or the field of a record store."""
    row: int | None = None
    """The position of the pack entry, the record or the video frame."""
    offset: int | None = None
    """The byte of the file."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An episode directory that is not committed.

    Example:
        >>> import relive
        >>> writer = relive.LocalDatasetWriter("kitchen").new_episode()
        >>> writer.append("reward", 1.0)
        >>> writer.leave()
        >>> [unfinished.reason for unfinished in relive.LocalDataset("kitchen").unfinished]
        ['left']
    """

    path: Path
    reason: str
    """`locked`: it is being recorded; `left`: its writer has ended, and `relive recover` finishes
    it; `empty`: nothing was recorded."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A committed episode that cannot be read.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode() as episode:
        ...     episode.append("reward", 1.0)
        >>> (episode.path / "meta.json").write_text("{")
        1
        >>> dataset = relive.LocalDataset("kitchen", errors="skip")
        >>> [damaged.path == episode.path for damaged in dataset.damaged]
        [True]
    """

    path: Path
    reason: str
    """The message of the error that reading it raises."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what is wrong.

    Example:
        >>> report = Report("sample", {"entries": 2})
        >>> report.ok, report.checked["entries"]
        (True, 2)
    """

    level: str
    """The `level` that was requested."""
    checked: Mapping[str, int]
    """How much was read, by what was counted: `entries`, `records`, `episodes`, `signals`."""
    problems: tuple[Problem, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()
    """What is not committed, and was therefore not read."""
    unchecked: tuple[str, ...] = ()
    """The paths of what has no checksums, so that not all damage can be found: it was written
    without them, by an earlier version or by another program."""

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def check_level(level: object) -> None:
    """Raise unless `level` is one that `validate` takes."""
    check_choice("level", level, LEVELS)
