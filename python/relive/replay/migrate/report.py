"""What a migration reports."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

MigrationProgress: TypeAlias = Callable[[str, int, int], object]
"""Is called with what is done (`scan`, `copy`, `verify`, `drop`, `compact`), how many rows or steps
of it are done, and how many there are."""

_MAX_PROBLEMS: Final = 100


@dataclass(frozen=True, slots=True)
class MigrationProblem:
    """A step that the source and the root do not have in the same way."""

    run_id: str
    episode_id: str
    agent_id: str
    step_index: int | None
    """None if it concerns the whole run."""
    message: str

    def __str__(self) -> str:
        """Return the place and what is wrong, on one line."""
        agent = f", agent {self.agent_id!r}" if self.agent_id else ""
        if self.step_index is None:
            return f"run {self.run_id!r}: {self.message}"
        return f"episode {self.episode_id!r}{agent}, step {self.step_index}: {self.message}"


@dataclass(slots=True)
class MigrationReport:
    """What a migration did.

    `rows` is the sum of `copied`, `present`, `duplicates`, `damaged`, `late`, `deleted` and the
    rows of `skipped_runs`.
    """

    rows: int = 0
    """Rows of steps in the source when the call began."""
    runs: int = 0
    episodes: int = 0
    copied: int = 0
    """Steps that were copied."""
    present: int = 0
    """Steps that the root had before."""
    duplicates: int = 0
    """Rows of a step that has an earlier row; they are left out."""
    conflicting: int = 0
    """Those of them that differ from the earlier row."""
    damaged: int = 0
    """Rows that cannot be read and were left out, with `skip_damaged`."""
    late: int = 0
    """Rows that appeared after a later step of their episode was copied; they are left out, and not
    compared."""
    deleted: int = 0
    """Rows that were deleted from the source during the call."""
    irregular: int = 0
    """Observations, frames and actions that do not have the shape and dtype of the first of their
    run: they are in fields of their own, or JSON."""
    split: int = 0
    """How often an episode went on after it had ended; what followed is an episode of its own."""
    extra: int = 0
    """Steps that only the root has; counted with `verify`."""
    skipped_runs: list[str] = field(default_factory=list)
    """Runs that are deleted in the root, and runs that are archived there and lack steps of the
    source. Deleted ones are not compared."""
    verified: int | None = None
    """Steps that were compared; None without `verify`."""
    uncompared: tuple[str, ...] = ()
    """Columns that were removed from the source before this call: what the root has of them was not
    compared."""
    problem_count: int = 0
    """How many steps differ; a run that cannot be read counts as one."""
    problems: list[MigrationProblem] = field(default_factory=list)
    """The first 100 of them."""
    dropped: tuple[str, ...] = ()
    """The columns that were removed from the source."""
    kept: int = 0
    """Rows of the source that no run has, because they are damaged, conflicting or late, or because
    their run was deleted: before columns were removed, these rows were copied to the table
    `left_out_steps`."""
    staged: Path | None = None
    """Set if the source is the database of the root itself: the root that has the runs until
    `drop_blobs` moves them into the source."""
    bytes_before: int | None = None
    """The size of the source before it was compacted."""
    bytes_after: int | None = None

    @property
    def is_verified(self) -> bool:
        """Whether all steps were compared, with all of their columns, and are the same."""
        return self.verified is not None and not self.problem_count and not self.uncompared

    def add_problem(self, problem: MigrationProblem) -> None:
        """Count a problem, and keep it if it is one of the first."""
        self.problem_count += 1
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)
