"""The episodes of a run: signals over steps, and everything of an episode as arrays."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidTypeError, OutOfRangeError, UnknownFieldError
from relive.model.clock import Times
from relive.model.dataset import Dataset, Positions
from relive.model.episode import Episode, EpisodeView
from relive.model.schema import DType
from relive.model.signal import Signal
from relive.model.source import Rows
from relive.replay.arrays import FINAL, SCALARS, VALID
from relive.replay.columns import ColumnSpec, leaf_name, row_of
from relive.replay.scalars import StepRecord
from relive.replay.source import SIGNALS, RunSource
from relive.replay.storage.tables import EpisodeRow

WALL: Final = "wall"
"""The clock on which a step has the time at which it was recorded."""

_INTERNAL: Final = frozenset({"episode", "step_index", "ts_ns"})
_IMAGE_AXES: Final = 3


class ReplaySignal(Signal[Any]):
    """One value of each step of an episode that has it.

    Its times are step indices; `on("wall")` has the times at which the steps were recorded.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayRecorder, ReplayRun
        >>> root = tempfile.mkdtemp()
        >>> with ReplayRecorder(root, "run-1") as recorder:
        ...     for number in range(3):
        ...         _ = recorder.step([number / 2.0], 1, 0.5, terminated=number == 2)
        >>> observation = ReplayRun(root, "run-1").episodes[0]["observation"]
        >>> observation.time[1]
        (array([0.5]), 1)
    """

    def __init__(
        self,
        source: RunSource,
        spec: ColumnSpec,
        name: str,
        rows: npt.NDArray[np.int64],
        true_row: int | None = None,
    ) -> None:
        self._source = source
        self._spec = spec
        self._name = name
        self._rows = rows
        self._true_row = true_row
        """The row that is true, whatever is stored: an episode was truncated after its step."""

    @property
    def name(self) -> str:
        """The name of the signal."""
        return self._name

    @property
    def kind(self) -> str:
        """What a value is: `scalar`, `vector` or `image`."""
        shape = self._spec.shape
        if len(shape) == _IMAGE_AXES and shape[-1] == _IMAGE_AXES and self._spec.dtype == "|u1":
            return "image"
        return "vector" if shape else "scalar"

    @property
    def dtype(self) -> DType:
        """The dtype of one value."""
        return np.dtype(self._spec.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self._spec.shape

    @cached_property
    def timestamps(self) -> Times:
        """The index of every step, as a read-only array."""
        return _frozen(self._source.arrays.read("step_index", self._rows))

    @property
    def clocks(self) -> tuple[str, ...]:
        """The clock `wall`."""
        return (WALL,)

    def clock(self, name: str) -> Times:
        """Return the time at which every step was recorded, in nanoseconds since 1970."""
        if name != WALL:
            raise self._unknown_clock(name)
        return _frozen(self._source.arrays.read("ts_ns", self._rows))

    def __len__(self) -> int:
        """Count the records."""
        return len(self._rows)

    def value_at(self, row: int) -> Any:
        """Return the value of one record; an array is read-only."""
        return _frozen(self.values_at(range(row, row + 1)))[0]

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the values of records."""
        wanted = self._rows[np.asarray(rows, np.int64)]
        values = self._source.arrays.read(self._spec.name, wanted)
        if self._true_row is not None:
            values |= wanted == self._true_row
        if out is None:
            return values
        out[...] = values
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the values are."""
        return type(self), (self._source, self._spec, self._name, self._rows, self._true_row)


class ReplayEpisode(Episode):
    """An episode of a run.

    Its signals are `observation`, `action`, `reward`, `terminated`, `truncated`, `frame` and the
    arrays of `info` and `extras`; a nested observation has a signal for each leaf, such as
    `observation.image`. A signal has records only for the steps that have the value.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayRecorder, ReplayRun
        >>> root = tempfile.mkdtemp()
        >>> with ReplayRecorder(root, "run-1") as recorder:
        ...     for number in range(3):
        ...         _ = recorder.step([number / 2.0], 1, 0.5, terminated=number == 2)
        >>> episode = ReplayRun(root, "run-1").episodes[0]
        >>> episode["return"], episode.status, episode.arrays("rewards")
        (1.5, 'terminated', {'rewards': array([0.5, 0.5, 0.5])})
    """

    def __init__(self, source: RunSource, row: EpisodeRow) -> None:
        self._source = source
        self._row = row

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._row.run_id

    @property
    def episode_id(self) -> str:
        """The id of the episode in its run."""
        return self._row.episode_id

    @property
    def agent_id(self) -> str:
        """The agent; empty if there is only one."""
        return self._row.agent_id

    @property
    def status(self) -> str:
        """`terminated`, `truncated`, or `recording` while it is being recorded."""
        if self._row.ended_ns is not None:
            return self._row.status
        return "recording" if self._source.is_live else "truncated"

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """The rows of the steps in the arrays of the run."""
        return _frozen(self._source.rows_of(self._row.number))

    @cached_property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals by name, sorted by name."""
        signals: dict[str, Signal[Any]] = {}
        for field, specs in self._source.arrays.fields.items():
            if field.startswith((FINAL, VALID)) or field in _INTERNAL:
                continue
            rows = self.rows[self._source.arrays.are_valid(field, self.rows)]
            for spec in specs:
                name = leaf_name(SIGNALS.get(field, field), spec.keys)
                true_row = self._truncated_row if field == "truncated" else None
                signals[name] = ReplaySignal(self._source, spec, name, rows, true_row)
        return dict(sorted(signals.items()))

    @property
    def _truncated_row(self) -> int | None:
        """The row after whose step the episode was truncated, if it was."""
        is_truncated = self.status == "truncated" and len(self.rows) > 0
        return int(self.rows[-1]) if is_truncated else None

    @property
    def statics(self) -> Mapping[str, Any]:
        """The seed, return, length, status and metadata of the episode."""
        row = self._row
        return {
            "run_id": row.run_id,
            "episode_id": row.episode_id,
            "agent_id": row.agent_id,
            "env_index": row.env_index,
            "seed": row.seed,
            "return": row.total_reward,
            "length": row.steps,
            "status": self.status,
            "metadata": None if row.metadata is None else json.loads(row.metadata),
        }

    @property
    def meta(self) -> dict[str, Any]:
        """The uid, the time at which the episode began, and how it ended."""
        return {
            "uid": f"{self._source.run.uid}-{self._row.number}",
            "created_ts_ns": self._row.started_ns,
            "outcome": {"ended": self.status},
        }

    def by_clock(self, clock: str = WALL) -> EpisodeView:
        """Return the episode with the times of a clock instead of step indices."""
        return self.derived({name: s.on(clock) for name, s in self.signals.items()})

    def arrays(self, *fields: str) -> dict[str, Any]:
        """Return the whole episode as arrays, one row per step.

        The fields are `observations`, `actions`, `rewards`, `terminated`, `truncated`,
        `step_index`, `ts_ns`, `frames`, `info.<key>` and `extras.<name>`, as far as the run has
        them; nested values are nested. A step without a value has zeros, and the field
        `valid.<field>` says which have it. `final` has what was seen after the last step.

        Args:
            fields: The fields or leaves to read, or `valid.<field>`; all fields and `final` if none
                is given.
        """
        arrays, rows = self._source.arrays, self.rows
        found: dict[str, Any] = {}
        for field in fields or self._step_fields:
            name = field.removeprefix(VALID)
            if name.startswith(FINAL):
                raise UnknownFieldError(
                    f"unknown field {field!r}; the fields are "
                    f"{', '.join(map(repr, self._step_fields))}",
                    hint="final() returns what was seen after the last step",
                )
            top = name if name in arrays.fields else arrays.field_of(name)
            are_valid = arrays.are_valid(top, rows)
            if field == name:
                found[field] = read_values(self._source, field, rows)
            if field != name or not are_valid.all():
                found[VALID + name] = are_valid
        if "truncated" in found and self._truncated_row is not None:
            found["truncated"][-1] = True
        if not fields:
            found["final"] = self.final()
        return found

    @property
    def _step_fields(self) -> list[str]:
        return [
            name
            for name in self._source.arrays.fields
            if name != "episode" and not name.startswith((FINAL, VALID))
        ]

    def final(self) -> dict[str, Any]:
        """Return the observation and frame after the last step, as far as they were recorded."""
        arrays = self._source.arrays
        place = self._source.end_of(self._row.number)
        if place is None:
            return {}
        return {
            field.removeprefix(FINAL): row_of(arrays.read_field(field, [place]), 0)
            for field in arrays.fields
            if field.startswith(FINAL)
            and field not in SCALARS
            and arrays.are_valid(field, [place])[0]
        }

    def load(self) -> dict[str, Any]:
        """Return the episode as a dict with a list of steps, each a dict."""
        count = len(self.rows)
        if not self._source.arrays.fields and count:  # only scalars were recorded
            return self._load_scalars()
        found = self.arrays()
        frames = _rows_or_none(found, "frames", count)
        actions = _rows_or_none(found, "actions", count)
        if "actions" not in found:  # the recorder kept no arrays of actions
            actions = [record.action for record in self._records()]
        rewards = _rows_or_none(found, "rewards", count)
        steps = [
            {
                "step_index": int(found["step_index"][place]),
                "action": actions[place],
                "reward": None if rewards[place] is None else float(rewards[place]),
                "terminated": bool(found["terminated"][place]),
                "truncated": bool(found["truncated"][place]),
                "frame": frames[place],
            }
            for place in range(count)
        ]
        return self._loaded(steps)

    def _records(self) -> list[StepRecord]:
        return [StepRecord.from_row(row) for row in self._source.step_rows(self.rows)]

    def _load_scalars(self) -> dict[str, Any]:
        steps: list[dict[str, Any]] = [
            {
                "step_index": row.step_index,
                "action": row.action,
                "reward": row.reward,
                "terminated": row.terminated,
                "truncated": row.truncated or row.row == self._truncated_row,
                "frame": None,
            }
            for row in self._records()
        ]
        return self._loaded(steps)

    def _loaded(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "episode_id": self.episode_id,
            "steps": steps,
            "total_reward": self._row.total_reward,
            "length": len(steps),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the episode is."""
        return type(self), (self._source, self._row)

    def __repr__(self) -> str:
        """Return the id and the number of steps, on one line."""
        return f"ReplayEpisode({self.episode_id!r}, {self._row.steps} steps, {self.status})"


class ReplayEpisodes(Dataset):
    """The episodes of a run, in the order in which they began. A snapshot.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayRecorder, ReplayRun
        >>> root = tempfile.mkdtemp()
        >>> with ReplayRecorder(root, "run-1") as recorder:
        ...     for number in range(4):
        ...         _ = recorder.step([0.5], 1, number, terminated=number % 2 == 1)
        >>> episodes = ReplayRun(root, "run-1").episodes
        >>> [episode["return"] for episode in episodes]
        [1.0, 5.0]
        >>> len(episodes.filter(lambda episode: episode["return"] > 2))
        1
    """

    def __init__(self, source: RunSource) -> None:
        self._source = source

    if TYPE_CHECKING:  # the methods of `Dataset`, which return what `episode_at` returns

        @overload
        def __getitem__(self, key: SupportsIndex) -> ReplayEpisode: ...  # type: ignore[overload-overlap]

        @overload
        def __getitem__(self, key: Positions) -> list[Any]: ...

        def __getitem__(self, key: Any) -> Any: ...

        def __iter__(self) -> Iterator[ReplayEpisode]: ...

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._source.episodes)

    def episode_at(self, position: int) -> ReplayEpisode:
        """Return the episode at `position`."""
        return ReplayEpisode(self._source, self._source.episodes[position])

    def uid_at(self, position: int) -> str:
        """Return the uid of the episode at `position`."""
        return f"{self._source.run.uid}-{self._source.episodes[position].number}"


def read_values(source: RunSource, field: str, rows: Any) -> Any:
    """Return rows of a field, or of one leaf of it; a row that does not exist is an error."""
    arrays = source.arrays
    is_field = field in arrays.fields
    top = field if is_field else arrays.field_of(field)
    is_end = top.startswith(FINAL)
    count = source.run.ends if is_end else source.run.steps
    wanted = as_rows(rows, count, "last observations" if is_end else "steps")
    return arrays.read_field(field, wanted) if is_field else arrays.read(field, wanted)


def as_rows(rows: Any, count: int, what: str) -> npt.NDArray[np.int64]:
    """Return rows as an array; one that does not exist is an error."""
    try:
        wanted = np.asarray(rows)
    except ValueError:  # lists of different lengths
        wanted = np.empty((1, 1))
    if wanted.ndim != 1 or (wanted.dtype.kind not in "iu" and wanted.size):
        raise InvalidTypeError(f"`rows` must be a list of integers, got {rows!r}")
    outside = wanted[(wanted < 0) | (wanted >= count)]
    if outside.size:
        raise OutOfRangeError(f"row {outside.flat[0]} is out of range for {count} {what}")
    return wanted.astype(np.int64)


def _rows_or_none(found: Mapping[str, Any], field: str, count: int) -> list[Any]:
    """Return the values of a field, one for each step; None where a step has none."""
    if field not in found:
        return [None] * count
    values = found[field]
    are_valid = found.get(VALID + field)
    return [
        row_of(values, place) if are_valid is None or are_valid[place] else None
        for place in range(count)
    ]


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
