"""Transitions of a run that grows: what cannot change any more is computed once.

Transitions are in *parts*, in the order of their rows. All but the last part have only what is
committed and stays as it is, whatever is recorded later. The last one is computed again from a
table of the steps that it needs. Parts of similar size are joined, so that there are few.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._native import RunPlanes, RunTransitions, Table
from relive.errors import CorruptError, InvalidError
from relive.model.schema import Field
from relive.model.source import pick_fields
from relive.replay.arrays import FINAL, VALID, RunArrays
from relive.replay.columns import ColumnSpec, leaf_name
from relive.replay.source import SIGNALS, RunSource
from relive.replay.transitions.options import Options, Sequences
from relive.replay.transitions.planes import (
    NUMBERS,
    Place,
    Planes,
    depth_of,
    final_of,
    observation_planes,
    row_planes,
)
from relive.replay.transitions.recent import RecentSteps
from relive.replay.transitions.steps import (
    NO_END,
    OBSERVATIONS,
    EpisodeEnds,
    Ints,
    Items,
    Steps,
    StepTable,
    Windows,
    items_of,
    places_of,
    windows_of,
)

_EXTRAS: Final = "extras."
_REWARDS: Final = "rewards"
_INTERNAL: Final = frozenset({"episode", _REWARDS, "terminated", "truncated"})
"""Fields of the run that transitions have in another form."""
_OPTIONAL: Final = ("frames", "info.", "step_index", "ts_ns")
"""Fields of the run that only `fields` adds."""
_MEMORY_BYTES: Final = 64
"""Rows of at most this size are kept in memory."""
_ORDER: Final = (
    "observation",
    "action",
    "reward",
    "next_observation",
    "terminated",
    "truncated",
    "discount",
    "n",
    "index",
    "episode",
)
_VALUES: Final = "values of "
"""Begins the names of the columns of a table that transitions have as they are."""
_PART_ROWS: Final = 256
"""As many rows of steps become a part when nothing can change them any more."""
_SEQUENCE_ROWS: Final = 4096
"""Parts of sequences have some transitions twice, so they are larger."""
_MAX_PART: Final = 1 << 18
"""Parts are joined up to this many transitions."""
_FEW: Final = 64


@dataclass(frozen=True, slots=True)
class Column:
    """A field of transitions, and where its values are."""

    name: str
    spec: ColumnSpec | None
    """The column of the run; None for what is computed."""
    field: Field
    is_next: bool = False
    """Whether it is what was observed next."""

    @property
    def is_index(self) -> bool:
        """Whether it is the rows of the steps."""
        return self.spec is None and self.name == "index"


Values = dict[str, tuple[npt.NDArray[Any] | None, int | None]]
"""For each column its rows, or the entries of planes and their number; neither for a mask."""


@dataclass(frozen=True, slots=True)
class Part:
    """Transitions, or sequences of them."""

    index: Ints
    """The row that each transition or sequence begins with, in increasing order."""
    length: int
    """How many transitions there are."""
    values: Values
    planes: list[Planes]
    windows: Windows | None
    columns: list[Column]
    sequences: Sequences | None
    natives: dict[int, RunTransitions] = field(default_factory=dict)
    """The same for the core, by what is added to `index`."""

    def native(self, store: RunPlanes, start: int = 0) -> RunTransitions:
        """Return the transitions for the core, with `start` added to the field `index`."""
        found = self.natives.get(start)
        if found is None:
            found = self.natives.setdefault(start, self._made(store, start))
        return found

    def _made(self, store: RunPlanes, start: int) -> RunTransitions:
        arguments = []
        for column in self.columns:
            array, number = self.values[column.name]
            if column.is_index and start:
                assert array is not None  # noqa: S101 - it has a row for each transition
                array = array + start
            arguments.append(
                (column.name, np.dtype(column.field.dtype), list(column.field.shape), array, number)
            )
        windows = None
        if self.windows is not None and self.sequences is not None:
            own = self.windows
            windows = self.sequences.steps, own.starts, own.lengths, own.skipped
        planes = [each.as_argument() for each in self.planes]
        return RunTransitions(store, arguments, planes, self.length, windows=windows)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is in the window of a part."""

    part: Part
    store: RunPlanes
    skipped: int

    @property
    def index(self) -> Ints:
        """The row that each transition or sequence begins with, in increasing order."""
        return self.part.index[self.skipped :]

    def table(self, start: int) -> Table:
        """Return the transitions as a table, with `start` added to the field `index`."""
        table = self.part.native(self.store, start).table(self.store)
        left = len(self.part.index) - self.skipped
        return table.select_range(self.skipped, 1, left) if self.skipped else table


class Snapshot:
    """The transitions of a run at one moment."""

    def __init__(  # noqa: PLR0917 - its attributes
        self,
        source: RunSource,
        count: int,
        ends: int,
        columns: list[Column] | None,
        pieces: list[Piece],
        episodes: "EpisodeRows",
        *,
        first: int = 0,
        settled: int,
        lineage: object,
        version: int,
    ) -> None:
        self.source = source
        self.count = count
        """How many steps count."""
        self.ends = ends
        """How many last observations of episodes count."""
        self._columns = columns
        self._pieces = pieces
        self._indexes = [piece.index for piece in pieces]
        self._starts = np.cumsum([0, *map(len, self._indexes)])
        self.length = int(self._starts[-1])
        self._episodes = episodes
        self.first = first
        """The first row of the window."""
        self.settled = settled
        """No transition that begins with an earlier step is added later."""
        self.lineage = lineage
        """The same object as long as steps were added, and none were removed."""
        self.version = version
        """Of two snapshots with the same lineage, the later one has the greater version."""
        self.start = 0
        """What is added to the rows of the run, in `index` too; see `numbered`."""

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The fields; unknown before the first step."""
        return {column.name: column.field for column in self._known()}

    @cached_property
    def table(self) -> Table:
        """The transitions as a table of the core."""
        self._known()
        tables = [piece.table(self.start) for piece in self._pieces]
        return tables[0] if len(tables) == 1 else Table.concat(tables)

    def numbered(self, start: int) -> "Snapshot":
        """Return the same transitions, with rows from `start` on, in `index` too."""
        made = copy(self)
        made.__dict__.pop("table", None)
        made.start = start
        made.first += start - self.start
        made.settled += start - self.start
        return made

    @cached_property
    def columns(self) -> dict[str, int]:
        """The numbers of the columns of the table."""
        return {name: number for number, name in enumerate(self.fields)}

    def __len__(self) -> int:
        """Count the transitions, or sequences of them."""
        return self.length

    def since(self, key: int) -> Ints:
        """Return the rows that transitions or sequences begin with, from one on, in their order."""
        row = key - self.start
        indexes = [index for index in self._indexes if len(index) and index[-1] >= row]
        if not indexes:
            return np.zeros(0, np.int64)
        indexes[0] = indexes[0][np.searchsorted(indexes[0], row) :]
        found = indexes[0] if len(indexes) == 1 else np.concatenate(indexes)
        return found + self.start if self.start else found

    def steps_of(self, count: int) -> int:
        """Return how many steps the run had when it had `count` transitions or sequences.

        If earlier ones have left the window, that is not known: it had at least so many steps.
        """
        if self.first > self.start:
            return count
        index = self.since(self.start) - self.start
        # What follows the step had to be recorded, too.
        return min(int(index[count - 1]) + 2, self.count) if count <= len(index) else self.count

    def positions(self, rows: Ints) -> Ints:
        """Return the positions of the transitions that begin with rows, or -1."""
        rows = rows - self.start
        made = np.full(rows.shape, -1)
        for start, index in zip(self._starts, self._indexes, strict=False):
            if len(index):
                found = np.minimum(np.searchsorted(index, rows), len(index) - 1)
                is_there = index[found] == rows
                made[is_there] = start + found[is_there]
        return made

    def episode_of(self, row: int) -> int:
        """Return the number of the episode of a step."""
        return int(self._episodes.upto(self.count).number[row - self.start])

    def bounds(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the first and the last row of the episodes of steps."""
        episodes = self._episodes.upto(self.count)
        episode = episodes.number[rows - self.start]
        last: Ints = np.minimum(episodes.last[episode], self.count - 1)
        return episodes.first[episode] + self.start, last + self.start

    def rows_of(self, episode: int) -> Ints:
        """Return the rows of all steps of an episode."""
        episodes = self._episodes.upto(self.count)
        first, last = episodes.first[episode], episodes.last[episode]
        rows: Ints = np.arange(first, min(last, self.count - 1) + 1)
        is_there = episodes.number[rows] == episode
        found: Ints = rows[is_there] + self.start
        return found

    def _known(self) -> list[Column]:
        if self._columns is None:
            raise InvalidError(
                f"run {self.source.run.run_id!r} has no steps yet, so its fields are unknown",
                hint="record a step first",
            )
        return self._columns


class EpisodeRows:
    """The episode of each step of a run, and the rows of each episode, read when asked for."""

    def __init__(self, read: Callable[[int, int], Ints]) -> None:
        self._read = read
        self.number: Ints = np.zeros(0, np.int64)
        self.first: Ints = np.zeros(0, np.int64)
        self.last: Ints = np.zeros(0, np.int64)

    def upto(self, count: int) -> "EpisodeRows":
        """Return them for at least `count` steps."""
        known = len(self.number)
        if known < count:
            new = self._read(known, count)
            episodes = max(len(self.first), int(new.max(initial=-1)) + 1)
            first, last = np.full(episodes, count), np.full(episodes, -1)
            first[: len(self.first)], last[: len(self.last)] = self.first, self.last
            np.minimum.at(first, new, np.arange(known, count))
            np.maximum.at(last, new, np.arange(known, count))
            self.first, self.last = first, last
            self.number = np.concatenate((self.number, new))
        return self


class GrowingTransitions:
    """Makes snapshots of the transitions of a run. One thread at a time.

    Args:
        options: What transitions are.
        recent: What a recorder of this process has accepted.
    """

    def __init__(self, options: Options, recent: RecentSteps | None = None) -> None:
        self._options = options
        self._recent = recent
        sequences = options.sequences
        self._horizon = options.n_step + (0 if sequences is None else sequences.steps - 1)
        self._context = max(1, (options.stack or 1) - 1)
        self._part_rows = _PART_ROWS if sequences is None else _SEQUENCE_ROWS
        self._source: RunSource | None = None
        self._made = 0
        self._is_forgotten = False
        self._clear()

    def _clear(self) -> None:
        self._lineage = object()
        self._planes: RunPlanes | None = None
        self._columns: list[Column] | None = None
        self._parts: list[Part] = []
        self._table: StepTable | None = None
        self._end_row = 0  # the row after the last one in the table
        self._begin_row = 0  # the first row that is in no part
        self._numbered = 0  # rows before have the numbers of their planes in the table
        self._known_ends = 0
        self._has_finals = False
        self._arrays: RunArrays | None = None
        self._end_of: dict[int, int] = {}
        self._episodes = EpisodeRows(self._read_episodes)

    def snapshot(
        self, source: RunSource, count: int | None = None, ends: int | None = None
    ) -> Snapshot:
        """Return the transitions of a run as it is now, or of its first steps."""
        try:
            return self._snapshot(source, count, ends)
        except BaseException:
            # Ctrl-C may come between any two changes: the next call reads everything again.
            self._clear()
            raise

    def _snapshot(self, source: RunSource, count: int | None, ends: int | None) -> Snapshot:
        recent = self._recent
        end_row = 0 if recent is None else recent.first_row + len(recent.steps)
        run = source.run
        committed = run.steps if count is None else count
        ends = run.ends if ends is None else ends
        count = max(committed, end_row)
        is_forgotten = recent is not None and recent.is_forgotten
        if not self._continues(source) or is_forgotten != self._is_forgotten:
            self._clear()
        self._is_forgotten = is_forgotten
        self._source = source
        self._made += 1
        if not count:
            return Snapshot(
                source,
                0,
                0,
                None,
                [],
                self._episodes,
                settled=0,
                lineage=self._lineage,
                version=self._made,
            )
        arrays = source.arrays
        leaves = arrays.fields.get(OBSERVATIONS, [])
        if not leaves:
            raise InvalidError(
                f"run {run.run_id!r} has no observations, so it has no transitions",
                hint="pass `observation` to step()",
            )
        columns = self._columns
        if arrays is not self._arrays or columns is None:
            columns = _columns(source, self._options)
            if columns != self._columns:
                self._clear()
                self._columns = columns
        self._open_planes(arrays, mapped=run.status != "recording")
        self._has_finals = all(final_of(arrays, spec) is not None for spec in leaves)
        if not self._has_finals:
            ends = 0
        self._read(arrays, committed, count)
        self._read_ends(arrays, ends)
        tail = self._update(source, committed, ends)
        first_row = 0 if self._options.last is None else max(0, count - self._options.last)
        return Snapshot(
            source,
            count,
            ends,
            columns,
            self._in_window(tail, first_row),
            self._episodes,
            first=first_row,
            settled=self._begin_row,
            lineage=self._lineage,
            version=self._made,
        )

    def _in_window(self, tail: Part, first_row: int) -> list[Piece]:
        """Return what is in the window of each part."""
        assert self._planes is not None  # noqa: S101 - set by the caller
        found = []
        for part in (*self._parts, tail):
            skipped = int(np.searchsorted(part.index, first_row))
            if skipped < len(part.index) or part is tail:
                found.append(Piece(part, self._planes, skipped))
        if len(found) > 1 and not len(found[-1].index):
            found.pop()
        # Parts that left the window.
        while self._parts and not (self._parts[0].index[-1:] >= first_row).any():
            self._parts.pop(0)
        return found

    def _open_planes(self, arrays: RunArrays, *, mapped: bool) -> None:
        if arrays is not self._arrays or self._planes is None:
            # Only `abort` truncates a file, to what it had when its recorder began.
            self._planes = arrays.planes(
                cache_bytes=self._options.cache_bytes, mapped=mapped, before=self._planes
            )
            self._arrays = arrays

    def _continues(self, source: RunSource) -> bool:
        """Check whether a source has everything that the one before has."""
        before = self._source
        if before is None or before is source:
            return True
        old, run = before.run, source.run
        return source.continues(before) and run.steps >= old.steps and run.ends >= old.ends

    def _read(self, arrays: RunArrays, committed: int, count: int) -> None:
        """Add the steps to the table that are not in it."""
        assert self._columns is not None  # noqa: S101 - set by the caller
        specs = [
            column.spec
            for column in self._columns
            if column.spec is not None
            and column.spec.field != OBSERVATIONS
            and is_small(column.spec)
        ]
        stacked = [spec for spec in arrays.fields[OBSERVATIONS] if spec.stack is not None]
        if self._end_row < committed or self._table is None:
            rows = np.arange(self._end_row, committed)
            episode = arrays.read("episode", rows)
            self._check_episodes(episode)
            new = {
                "row": rows,
                "episode": episode,
                "index": arrays.read("step_index", rows),
                "has": arrays.are_valid(OBSERVATIONS, rows),
                "terminated": arrays.read("terminated", rows),
                "truncated": arrays.read("truncated", rows),
                "reward": _rewards(arrays, rows),
                **{_VALUES + spec.name: arrays.read(spec.name, rows) for spec in specs},
            }
            self._add(new, stacked)
            self._end_row = committed
        recent = self._recent
        if recent is not None and self._end_row < count:
            self._add(self._recent_values(recent, arrays, specs, count), stacked)
            self._end_row = count
        if self._numbered < committed and stacked:
            table = self._table
            assert table is not None  # noqa: S101 - made above
            which = (table["row"] >= self._numbered) & (table["row"] < committed)
            for spec in stacked:
                numbers = arrays.read_numbers(spec.name, table["row"][which])
                table[NUMBERS + spec.name][which] = numbers
        self._numbered = max(self._numbered, committed)

    def _add(self, new: dict[str, npt.NDArray[Any]], stacked: Iterable[ColumnSpec]) -> None:
        """Add steps, without the numbers of their planes."""
        count = len(new["row"])
        added = StepTable(
            {
                **new,
                "is_known": np.zeros(count, np.bool_),
                "into": np.zeros(count, np.int64),
                "from_start": np.zeros(count, np.bool_),
                **{
                    NUMBERS + spec.name: np.zeros((count, depth_of(spec)), np.uint32)
                    for spec in stacked
                },
            }
        )
        self._table = added if self._table is None else self._table.joined(added)

    def _recent_values(
        self, recent: RecentSteps, arrays: RunArrays, specs: Iterable[ColumnSpec], count: int
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the values of steps that are in memory only."""
        first = self._end_row
        steps = recent.steps[first - recent.first_row : count - recent.first_row]
        rows = np.arange(first, count)
        found: dict[str, npt.NDArray[Any]] = {
            "row": rows,
            "episode": np.array([step.episode.number for step in steps], np.int64),
            "index": np.array([step.step_index for step in steps], np.int64),
            "has": np.array([OBSERVATIONS in step.present for step in steps], np.bool_),
            "terminated": np.array([step.terminated for step in steps], np.bool_),
            "truncated": np.array([step.truncated for step in steps], np.bool_),
            "reward": np.array(
                [math.nan if step.reward is None else step.reward for step in steps], np.float64
            ),
        }
        for spec in specs:
            if spec.field == "step_index":
                values = found["index"]
            elif spec.field == "ts_ns":
                values = np.array([step.ts_ns for step in steps], np.int64)
            else:
                values = np.empty((len(rows), *spec.shape), np.dtype(spec.dtype))
                recent.arrays.read(arrays.number_of(spec.name), rows, values)
            found[_VALUES + spec.name] = values
        return found

    def _read_ends(self, arrays: RunArrays, ends: int) -> None:
        """Read which episodes have a last observation."""
        if self._known_ends < ends:
            rows = np.arange(self._known_ends, ends)
            rows = rows[arrays.are_valid(FINAL + OBSERVATIONS, rows)]
            numbers = arrays.read("final.episode", rows)
            self._end_of.update(zip(numbers.tolist(), rows.tolist(), strict=True))
            self._known_ends = ends

    def _ends(self, source: RunSource) -> EpisodeEnds:
        """Return how the episodes of the table ended."""
        assert self._table is not None  # noqa: S101 - set by the caller
        episodes = np.unique(self._table["episode"])
        count = len(episodes)
        flags = np.zeros((count, 5), np.bool_)
        row_of = np.full(count, NO_END)
        numbers = episodes.tolist()
        if count > _FEW:
            known = {row.number: row for row in source.episodes}
        else:
            known = {}
            for number in numbers:
                place = bisect_left(source.episodes, number, key=lambda row: row.number)
                if place < len(source.episodes):
                    known[number] = source.episodes[place]
        recent = {} if self._recent is None else self._recent.ends
        for place, number in enumerate(numbers):
            row = known.get(number)
            if row is not None and row.number == number and row.ended_ns is not None:
                flags[place] = True, True, row.dropped > 0, row.terminated, row.truncated
                row_of[place] = self._end_of.get(number, NO_END)
            elif number in recent:
                end, end_row, _ = recent[number]
                flags[place] = True, False, end.dropped > 0, end.terminated, end.truncated
                row_of[place] = end_row if self._has_finals else NO_END
            elif row is not None and row.number == number:
                flags[place, 2] = row.dropped > 0
        is_over, is_committed, dropped, terminated, truncated = flags.T
        return EpisodeEnds(episodes, is_over, is_committed, dropped, terminated, truncated, row_of)

    def _update(self, source: RunSource, committed: int, ends: int) -> Part:
        """Make a part of what stays as it is, if that is enough, and return the rest as a part."""
        table = self._table
        assert table is not None  # noqa: S101 - set by the caller
        steps = Steps(table, self._ends(source))
        at = Place(source.arrays, steps, table, committed, ends, self._recent)
        unsettled = ~steps.settled(committed, self._horizon) & (steps.rows >= self._begin_row)
        until = int(steps.rows[unsettled].min(initial=min(committed, self._end_row)))
        if until - self._begin_row >= self._part_rows:
            # All of it is committed: what is in memory now is not kept for it.
            part = self._build(replace(at, recent=None), self._begin_row, until)
            if len(part.index):
                self._parts.append(part)
                self._join()
            self._begin_row = until
            tail = self._build(at, until, self._end_row)
            self._trim(steps, until)
            return tail
        return self._build(at, self._begin_row, self._end_row)

    def _trim(self, steps: Steps, until: int) -> None:
        """Keep the steps in the table that later parts need."""
        table = self._table
        assert table is not None  # noqa: S101 - set by the caller
        count = len(steps.rows)
        for name, values in (
            ("is_known", np.ones(count, np.bool_)),
            ("into", steps.into),
            ("from_start", steps.from_start[steps.segment]),
        ):
            ordered = np.empty_like(values)
            ordered[steps.order] = values
            table.arrays[name] = ordered
        is_later = steps.rows >= until
        # The last steps before of each episode that goes on.
        kept = is_later.copy()
        for back in range(1, self._context + 1):
            if back < count:
                goes_on = is_later[back:] & (steps.episode[back:] == steps.episode[:-back])
                kept[:-back] |= goes_on
        self._table = table.take(np.sort(steps.order[kept]))
        if self._end_of and len(self._end_of) > 2 * _FEW:
            left = set(self._table["episode"].tolist())
            last = max(left, default=-1)
            self._end_of = {
                number: row
                for number, row in self._end_of.items()
                if number in left or number > last
            }

    def _build(self, at: Place, first_row: int, end_row: int) -> Part:
        """Make a part of what begins with some rows."""
        options, steps = self._options, at.steps
        windows = None
        if options.sequences is None:
            places = places_of(steps, first_row, end_row)
            index = steps.rows[places]
        else:
            places, windows = windows_of(steps, first_row, end_row, options.sequences)
            index = steps.rows[places][windows.starts]
        items = items_of(steps, places, n_step=options.n_step, gamma=options.gamma)
        values, planes = self._values(at, items)
        return self._part(index, len(places), values, planes, windows)

    def _values(self, at: Place, items: Items) -> tuple[Values, list[Planes]]:
        """Return the values of the columns, and where their planes are."""
        assert self._columns is not None  # noqa: S101 - set by the caller
        scalars: dict[str, npt.NDArray[Any] | None] = {
            "reward": items.reward,
            "terminated": items.terminated,
            "truncated": items.truncated,
            "discount": items.discount,
            "n": items.n,
            "index": at.steps.rows[items.places],
            "episode": at.steps.episode[items.places],
            "mask": None,
        }
        values: Values = {}
        planes: list[Planes] = []
        seen: dict[str, int] = {}
        observed: dict[tuple[str, bool], npt.NDArray[np.uint32]] = {}
        for column in self._columns:
            spec = column.spec
            if spec is None:
                values[column.name] = scalars[column.name], None
            elif spec.field == OBSERVATIONS:
                if spec.name not in seen:
                    made, *entries = observation_planes(at, spec, items, self._options)
                    seen[spec.name] = len(planes)
                    planes.append(made)
                    observed[spec.name, False], observed[spec.name, True] = entries
                values[column.name] = observed[spec.name, column.is_next], seen[spec.name]
            elif is_small(spec):
                found = at.table[_VALUES + spec.name][at.steps.order[items.places]]
                values[column.name] = found, None
            else:
                made, entry = row_planes(at, spec, items)
                values[column.name] = entry, len(planes)
                planes.append(made)
        return values, planes

    def _part(
        self,
        index: Ints,
        length: int,
        values: Values,
        planes: list[Planes],
        windows: Windows | None,
    ) -> Part:
        assert self._columns is not None  # noqa: S101 - set by the caller
        assert self._planes is not None  # noqa: S101
        for name, (array, number) in values.items():
            values[name] = None if array is None else np.ascontiguousarray(array), number
        columns, sequences = self._columns, self._options.sequences
        part = Part(index, length, values, planes, windows, columns, sequences)
        part.native(self._planes)  # checks the arrays
        return part

    def _join(self) -> None:
        """Join the last parts while that makes parts of similar size."""
        parts = self._parts
        count = 1
        total = parts[-1].length
        while count < len(parts):
            before = parts[-count - 1].length
            if before > 2 * total or before + total > _MAX_PART:
                break
            total += before
            count += 1
        if count > 1:
            self._parts = [*parts[:-count], self._joined(parts[-count:])]

    def _joined(self, parts: list[Part]) -> Part:
        """Return several parts as one."""
        starts = np.cumsum([0, *(part.length for part in parts)])
        planes = [
            first.joined([part.planes[number] for part in parts[1:]])
            for number, first in enumerate(parts[0].planes)
        ]
        values: Values = {}
        for name, (array, number) in parts[0].values.items():
            if array is None:
                values[name] = None, None
                continue
            arrays = [part.values[name][0] for part in parts]
            if number is not None and parts[0].planes[number].ids is not None:
                shift = 0
                for place, part in enumerate(parts):
                    ids = part.planes[number].ids
                    assert ids is not None  # noqa: S101 - as in the first part
                    arrays[place] = arrays[place] + np.uint32(shift)  # type: ignore[operator]
                    shift += len(ids)
            values[name] = np.concatenate(arrays), number  # type: ignore[arg-type]
        windows = None
        if parts[0].windows is not None:
            found = [part.windows for part in parts if part.windows is not None]
            windows = Windows(
                np.concatenate(
                    [
                        each.starts + np.uint32(start)
                        for each, start in zip(found, starts, strict=False)
                    ]
                ),
                np.concatenate([each.lengths for each in found]),
                np.concatenate([each.skipped for each in found]),
            )
        index = np.concatenate([part.index for part in parts])
        return self._part(index, int(starts[-1]), values, planes, windows)

    def _read_episodes(self, first: int, end: int) -> Ints:
        """Return the episodes of steps."""
        source, recent = self._source, self._recent
        assert source is not None  # noqa: S101 - set before a snapshot exists
        committed = min(end, source.run.steps)
        found = source.arrays.read("episode", np.arange(first, committed))
        self._check_episodes(found)
        if recent is not None and committed < end:
            start = max(first, committed) - recent.first_row
            steps = recent.steps[start : end - recent.first_row]
            more = np.array([step.episode.number for step in steps], np.int64)
            found = np.concatenate((found, more))
        return found

    def _check_episodes(self, episode: Ints) -> None:
        source = self._source
        assert source is not None  # noqa: S101 - set before a snapshot exists
        if len(episode) and not 0 <= episode.min() <= episode.max() < source.run.episodes:
            raise CorruptError(f"`{source.path}`: a step has an episode that does not exist")


def is_read_in_batches(spec: ColumnSpec) -> bool:
    """Check whether transitions read a column for each batch; what is small they keep in memory."""
    if spec.field.removeprefix(FINAL) == OBSERVATIONS:
        return True
    return _is_of_steps(spec) and not spec.field.startswith(_OPTIONAL) and not is_small(spec)


def is_small(spec: ColumnSpec) -> bool:
    """Check whether the values of a column are kept in memory."""
    return np.dtype(spec.dtype).itemsize * math.prod(spec.shape) <= _MEMORY_BYTES


def _is_of_steps(spec: ColumnSpec) -> bool:
    """Check whether transitions can have a column as it is."""
    is_other = spec.field in _INTERNAL or spec.field.startswith((FINAL, VALID))
    return spec.field != OBSERVATIONS and not is_other


def _columns(source: RunSource, options: Options) -> list[Column]:
    """Return the columns of the transitions of a run that are wanted, in their order."""
    lead = () if options.sequences is None else (options.sequences.steps,)
    wanted = _wanted(source, options)
    found = []
    for spec in source.arrays.fields[OBSERVATIONS]:
        shape = spec.shape if options.stack is None else (options.stack, *spec.shape)
        for next_ in ("", "next_"):
            name = leaf_name(f"{next_}observation", spec.keys)
            field = Field(spec.dtype, (*lead, *shape))
            found.append(Column(name, spec, field, is_next=bool(next_)))
    for spec, name in _step_columns(source):
        found.append(Column(name, spec, Field(spec.dtype, (*lead, *spec.shape))))
    dtypes: dict[str, npt.DTypeLike] = {
        "reward": np.float32,
        "terminated": np.bool_,
        "truncated": np.bool_,
        "discount": np.float32,
        "n": np.int32,
        "index": np.int64,
        "episode": np.int64,
    }
    if options.sequences is not None:
        dtypes["mask"] = np.bool_
    found += [Column(name, None, Field(dtype, lead)) for name, dtype in dtypes.items()]
    return sorted(
        (column for column in found if column.name in wanted),
        key=lambda column: (_rank(column.name), column.is_next),
    )


def _rank(name: str) -> int:
    """Return where a field is among the others; those of equal rank stay in their order."""
    top = name.partition(".")[0]
    return _ORDER.index(top) if top in _ORDER else len(_ORDER) + (name == "mask")


def _depth(spec: ColumnSpec) -> int:
    return spec.shape[0 if spec.stack == "first" else -1]


def _rewards(arrays: RunArrays, rows: Ints) -> npt.NDArray[np.float64]:
    """Return the reward of each row; NaN where there is none."""
    if _REWARDS not in arrays.fields:
        return np.full(len(rows), np.nan)
    rewards = arrays.read(_REWARDS, rows)
    rewards[~arrays.are_valid(_REWARDS, rows)] = np.nan
    return rewards


def _step_columns(source: RunSource) -> list[tuple[ColumnSpec, str]]:
    """Return the columns of steps that transitions have as they are, and their names there."""
    return [
        (spec, leaf_name(SIGNALS.get(field, field), spec.keys))
        for field, specs in source.arrays.fields.items()
        for spec in specs
        if _is_of_steps(spec)
    ]


def _wanted(source: RunSource, options: Options) -> set[str]:
    """Return the names of the fields that were asked for."""
    known = {*_ORDER} - {"observation", "next_observation", "action"}
    if options.sequences is not None:
        known.add("mask")
    for spec in source.arrays.fields[OBSERVATIONS]:
        known |= {leaf_name(f"{next_}observation", spec.keys) for next_ in ("", "next_")}
    optional: set[str] = set()
    for spec, name in _step_columns(source):
        (optional if spec.field.startswith(_OPTIONAL) else known).add(name)
    if options.fields is None:
        return known
    found = set()
    every = known | optional
    for name in options.fields:
        # A nested field stands for all of its leaves.
        below = {each for each in every if each == name or each.startswith(f"{name}.")}
        if not below:
            pick_fields({each: Field(np.bool_) for each in sorted(every)}, [name])  # raises
        found |= below
    return found
