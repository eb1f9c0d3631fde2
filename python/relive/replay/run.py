"""Runs and the root that they are in."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relive._arguments import as_bool, as_int, check_choice
from relive.errors import InvalidError, OutOfRangeError, ReliveError, UnknownNameError
from relive.model.report import Damaged
from relive.replay.arrays import RunArrays
from relive.replay.columns import decoded_key
from relive.replay.episodes import ReplayEpisode, ReplayEpisodes, as_rows, read_values
from relive.replay.scalars import StepRecord, arrow_table, parsed_info
from relive.replay.source import RunSource, root_of, source_of
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import (
    arrays_path,
    check_stored_run_id,
    database_path,
    is_run_id,
)
from relive.replay.storage.tables import ROW, STEP_COLUMNS, RunTables, migrated_from
from relive.replay.transitions.options import Options, Pad
from relive.replay.transitions.rate import Rate
from relive.replay.transitions.transitions import Transitions
from relive.replay.writing.steps import INFO

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS: Final = frozenset(
    {"run_id", "episode_id", "agent_id", "action_ref", "frame_ref", "obs_ref", "info", "timestamp"}
)
"""The columns of steps that have text."""
_INFO_TEXT: Final = STEP_COLUMNS.index("info")
_INFO_ROWS: Final = 1 << 14
"""How many rows of infos are read at once."""


@dataclass(frozen=True, slots=True)
class RunSession:
    """A recorder of a run: the one that began it, or one that continued it.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayRecorder, ReplayRun
        >>> root = tempfile.mkdtemp()
        >>> for seed in (7, 8):
        ...     with ReplayRecorder(root, "run-1", seed=seed) as recorder:
        ...         _ = recorder.step([0.5], 1, 1.0, terminated=True)
        >>> [(session.seed, session.first_row) for session in ReplayRun(root, "run-1").sessions]
        [(7, 0), (8, 1)]
    """

    number: int
    first_row: int
    """The row of its first step."""
    steps: int
    """How many steps it recorded."""
    started_ns: int
    seed: int | None
    git: dict[str, Any] | None
    """The commit and the branch of its working directory, and whether files differed from it."""
    metadata: dict[str, Any] | None
    """What it was given, which may differ from the metadata of the run."""


class ReplayRun:
    """A recorded run: its episodes, its steps and their arrays.

    It is a snapshot: what is recorded later appears after `refresh`. Thread-safe.

    Args:
        path: The directory of the runs; or the file of a run, which is read with its database if
            it is in such a directory, and else without.
        run_id: The id of the run; None for a file.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayRecorder, ReplayRun
        >>> root = tempfile.mkdtemp()
        >>> with ReplayRecorder(root, "run-1") as recorder:
        ...     for number in range(3):
        ...         _ = recorder.step([number / 2.0], 1, 0.5, terminated=number == 2)
        >>> run = ReplayRun(root, "run-1")
        >>> run.status, len(run), run.episodes[0]["return"]
        ('finished', 3, 1.5)
        >>> run.episodes[0].arrays("observations")["observations"].tolist()
        [[0.0], [0.5], [1.0]]
    """

    def __init__(self, path: str | os.PathLike[str], run_id: str | None = None) -> None:
        self._source: RunSource = source_of(path, run_id)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._source.run.run_id

    @property
    def uid(self) -> str:
        """The identifier of the run, which copies keep."""
        return self._source.run.uid

    @property
    def status(self) -> str:
        """`recording`, `finished`, `failed`, `archived`, or `interrupted` after a kill."""
        status = self._source.run.status
        return "interrupted" if status == "recording" and not self._source.is_live else status

    @property
    def info(self) -> dict[str, Any]:
        """What is known about the run: environment, spaces, seed, git, settings, metadata."""
        run = self._source.run
        texts = ("env_spec", "spaces", "git", "config", "metadata")
        return {
            "run_id": run.run_id,
            "uid": run.uid,
            "status": self.status,
            "env_id": run.env_id,
            "seed": run.seed,
            "created_ns": run.created_ns,
            "ended_ns": run.ended_ns,
            "steps": run.steps,
            "episodes": len(self._source.episodes),
            **{name: _parsed(getattr(run, name)) for name in texts},
        }

    @property
    def sessions(self) -> list[RunSession]:
        """The recorders of the run, in their order: the first one, and those that continued it."""
        rows = self._source.sessions
        ends = [row.first_row for row in rows[1:]] + [len(self)]
        return [
            RunSession(
                row.number,
                row.first_row,
                end - row.first_row,
                row.started_ns,
                row.seed,
                _parsed(row.git),
                _parsed(row.metadata),
            )
            for row, end in zip(rows, ends, strict=True)
        ]

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of every array that steps have, by name."""
        return {
            spec.name: (spec.dtype, spec.shape)
            for specs in self._source.arrays.fields.values()
            for spec in specs
        }

    @cached_property
    def episodes(self) -> ReplayEpisodes:
        """The episodes, in the order in which they began."""
        return ReplayEpisodes(self._source)

    def episode(self, episode_id: str, agent_id: str | None = None) -> ReplayEpisode:
        """Return an episode by its id; `agent_id` is needed if several agents have it."""
        found = {
            row.agent_id: position
            for position, row in enumerate(self._source.episodes)
            if row.episode_id == episode_id
        }
        agents = ", ".join(map(repr, found))
        if found and agent_id is not None and agent_id not in found:
            raise UnknownNameError(
                f"run {self.run_id!r} has no episode {episode_id!r} of agent {agent_id!r}",
                hint=f"its agents are {agents}",
            )
        if not found:
            raise UnknownNameError(f"run {self.run_id!r} has no episode {episode_id!r}")
        if agent_id is None and len(found) > 1:
            raise InvalidError(
                f"{len(found)} agents have the episode {episode_id!r}: {agents}",
                hint="pass agent_id=",
            )
        agent = next(iter(found)) if agent_id is None else agent_id
        return self.episodes.episode_at(found[agent])

    @property
    def steps(self) -> "pa.Table":
        """All steps as an Arrow table, with the columns of the database."""
        import pyarrow as pa

        rows = self._source.step_rows(np.arange(len(self)))
        types = {name: pa.string() if name in _TEXTS else pa.int64() for name in STEP_COLUMNS}
        return arrow_table(STEP_COLUMNS, rows, {**types, "reward": pa.float64()})

    def step(self, row: int) -> StepRecord:
        """Return a step by its number in the run."""
        number = as_int("row", row)
        if number >= len(self):
            raise OutOfRangeError(f"row {number} is out of range for {len(self)} steps")
        (found,) = self._source.step_rows(np.array([number]))
        return StepRecord.from_row(found, migrated=self._is_migrated)

    def infos(self, rows: Any) -> list[dict[str, Any]]:
        """Return the infos of steps, with the arrays in them, in any order and with repeats.

        A step without an info has an empty dict. A file without its database has only the arrays.
        Of a run that was migrated, they are what they were before, with tuples, sets, bytes, times,
        and numbers that are not finite.

        Args:
            rows: The numbers of steps in the run: a list, a range or an array of integers.
        """
        wanted = as_rows(rows, len(self), "steps")
        found: dict[int, dict[str, Any]] = {}
        # One call reads whole commits, which may be many more rows than were asked for.
        numbers = np.unique(wanted)
        cuts = np.flatnonzero(np.diff(numbers // _INFO_ROWS)) + 1
        for part in np.split(numbers, cuts):
            for row in self._source.step_rows(part):
                text = row[_INFO_TEXT]
                found[row[ROW]] = parsed_info(text, migrated=self._is_migrated)
        arrays = self._source.arrays
        for field, (spec, *_) in arrays.fields.items():
            if not field.startswith(INFO):
                continue
            known = numbers[arrays.are_valid(field, numbers)]
            key = decoded_key(field.removeprefix(INFO))
            for row, value in zip(known.tolist(), arrays.read(spec.name, known), strict=True):
                found[row][key] = value
        return [found[row] for row in wanted.tolist()]

    def read(self, field: str, rows: Any) -> Any:
        """Return rows of a field, or of one leaf of it, in any order and with repeats.

        Where a step has no value, zeros are returned.

        Args:
            field: The field or leaf, such as `frames` or `observations.image`.
            rows: The numbers of steps in the run: a list, a range or an array of integers.
        """
        return read_values(self._source, field, rows)

    def transitions(
        self,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: int | None = None,
        sequence: int | None = None,
        stride: int | None = None,
        burn_in: int = 0,
        last: int | None = None,
        pad: Pad = "first",
        cache_bytes: int = 1 << 30,
        fields: Sequence[str] | None = None,
        follow: bool = False,
        min_size: int = 0,
        samples_per_insert: float | None = None,
        timeout: float | None = None,
    ) -> Transitions:
        """Return the transitions of the run: a source to train from, a replay buffer on the disk.

        Their fields are `observation`, `action`, `reward`, `next_observation`, `terminated`,
        `truncated`, `discount`, `n`, `index`, `episode` and the `extras.<name>` of the run. A
        nested observation has a field for each leaf, `observation.image` for example.

        A transition is a step of which is known what was observed next. The last step of an episode
        that was truncated, or that was not closed, is one only if `next_observation` was recorded;
        one that terminated repeats its observation instead, and has a discount of 0. No transition
        goes on into another episode or beyond a step that was dropped.

        Args:
            n_step: The most steps of a transition. `reward` is the discounted sum of theirs, and
                `n` how many they are: fewer where it is not known what was observed later.
            gamma: The discount of a step: `discount` is `gamma ** n`, and 0 after termination.
            stack: Return the last so many observations, along a new first axis, the oldest first.
                Observations that were recorded as stacks are stacks without it.
            sequence: Return this many transitions that follow each other, as `(B, T, …)`. `mask` is
                False where there is none, which is zeros.
            stride: How many steps after a sequence the next one of its episode begins. By default
                each step is learned from in one of them.
            burn_in: How many steps at the front of a sequence `mask` leaves out, unless an episode
                begins with it.
            last: Only transitions that begin with one of so many last steps.
            pad: What a stack has before the first observation of an episode: that observation, or
                zeros.
            cache_bytes: How many bytes are kept at most of what was decoded. Not needed for the
                codec `raw` in a closed run, which is read from a map of the file.
            fields: The fields to read. They may also be `frame`, `info.<key>`, `step_index` and
                `ts_ns`.
            follow: Whether draws have what was recorded until then: `sample` and `batches` refresh
                before each draw, and a loader before each epoch.
            min_size: How many transitions there must be before `sample` and `batches` draw, unless
                there are as many steps as `last` keeps. A draw waits for them, as it does for
                `samples_per_insert`, while another process records.
            samples_per_insert: How many transitions are drawn at most for each step that is
                recorded. Steps that are there at the start, or until there are `min_size`
                transitions, do not count.
            timeout: How many seconds such a draw waits; None as long as the run is recorded. Then
                it raises an `OverloadError`, and at once if this process records the run.
        """
        options = Options.of(
            n_step=n_step,
            gamma=gamma,
            stack=stack,
            sequence=sequence,
            stride=stride,
            burn_in=burn_in,
            last=last,
            pad=pad,
            cache_bytes=cache_bytes,
            fields=fields,
        )
        rate = Rate.of(min_size, samples_per_insert, timeout)
        is_following = as_bool("follow", follow)
        # Steps that were recorded since do not count as inserts.
        source = self._source.refreshed() if is_following else self._source
        return Transitions(source, options, rate, follow=is_following)

    @cached_property
    def _is_migrated(self) -> bool:
        """Whether infos have the markers of another program."""
        return migrated_from(self._source.run) is not None

    @property
    def arrays(self) -> RunArrays:
        """The arrays of the steps, by row."""
        return self._source.arrays

    @property
    def source(self) -> RunSource:
        """Where the rows and arrays are read from."""
        return self._source

    def refresh(self) -> None:
        """Read again what the run has."""
        self._source = self._source.refreshed()
        self.__dict__.pop("episodes", None)

    def __len__(self) -> int:
        """Return the number of steps."""
        return self._source.run.steps

    def __repr__(self) -> str:
        """Return the id, the number of episodes and steps, and the status, on one line."""
        run = self._source.run
        return (
            f"ReplayRun({run.run_id!r}, {len(self._source.episodes)} episodes, {run.steps} steps, "
            f"{self.status})"
        )


class ReplayRoot(Mapping[str, ReplayRun]):
    """The runs in a directory, by id, in the order in which they began.

    Args:
        root: The directory of the runs.
        errors: What happens with a run that the database does not have as it was committed: with
            `"raise"` reading it raises an error, with `"skip"` it is left out. Then all runs are
            checked first.

    Example:
        >>> import tempfile, relive
        >>> from relive.replay import ReplayRecorder
        >>> root = tempfile.mkdtemp()
        >>> for run_id in ("first", "second"):
        ...     with ReplayRecorder(root, run_id) as recorder:
        ...         _ = recorder.step([0.5], 1, 1.0, terminated=True)
        >>> runs = relive.open(root)
        >>> list(runs), runs["second"].status
        (['first', 'second'], 'finished')
    """

    def __init__(self, root: str | os.PathLike[str], *, errors: str = "raise") -> None:
        check_choice("errors", errors, ("raise", "skip"))
        self.path = root_of(root)
        """The directory of the runs."""
        self.damaged: tuple[Damaged, ...] = ()
        """The runs that were left out."""
        with Database.open(database_path(self.path)) as database:
            rows = database.rows(
                "SELECT run_id FROM runs WHERE status != 'deleted' ORDER BY created_ns, run_id"
            )
            self._ids = [run_id for (run_id,) in rows]
            if errors == "skip":
                self._leave_out_damaged(database)

    def __getitem__(self, run_id: str) -> ReplayRun:
        """Return a run by its id."""
        if run_id not in self._ids:
            raise UnknownNameError(f"`{self.path}` has no run {run_id!r}")
        check_stored_run_id(run_id)
        return ReplayRun(self.path, run_id)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids."""
        return iter(self._ids)

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._ids)

    def __repr__(self) -> str:
        """Return the root and the number of runs, on one line."""
        count = len(self)
        return f"ReplayRoot({str(self.path)!r}, {count} run{'s' * (count != 1)})"

    def _leave_out_damaged(self, database: Database) -> None:
        damaged = {}
        for run_id in self._ids:
            try:
                RunTables.load(database, run_id)
            except ReliveError as error:
                has_file = is_run_id(run_id)
                path = arrays_path(self.path, run_id) if has_file else database.path
                damaged[run_id] = Damaged(path, error.message)
        self.damaged = tuple(damaged.values())
        self._ids = [run_id for run_id in self._ids if run_id not in damaged]


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)
