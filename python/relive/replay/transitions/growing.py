"""Transitions of a run that grows: what cannot change any more is computed once.

Transitions are in *parts*, in the order of their rows. All but the last part have only what is
committed and stays as it is, whatever is recorded later. The last one is computed again from a
table of the steps that it needs. Parts of similar size are joined, so that there are few.

A stream whose episode is open and gets no steps does not hold back the others: what begins with its
last steps stays in the last part, and is joined with the part of its rows when it is settled.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from relive._native import RunPlanes, RunTransitions, Table
from relive.errors import CorruptError, InvalidError
from relive.model.schema import Field
from relive.model.source import pick_fields
from relive.replay.arrays import FINAL, VALID, RunArrays
from relive.replay.columns import ColumnSpec, leaf_name
from relive.replay.source import SIGNALS, RunSource
from relive.replay.storage.tables import EpisodeRow
from relive.replay.transitions.options import Options, Sequences
from relive.replay.transitions.planes import (
    FIRST_PLANE,
    NUMBERS,
    PRESENT,
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
    Flags,
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
_IDLE_PARTS: Final = 4
"""Steps that are not settled are left aside when so many parts could be made of later ones."""
_IDLE_COST: Final = 16
"""And if for each step that is left aside there are more than so many others."""
_MAX_PART: Final = 1 << 18
"""Parts are joined up to this many transitions."""
_FEW: Final = 64
_FIRST_OF_WINDOW: Final = 4096
"""No later transition needs earlier planes than so many at the beginning of the window."""


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
    """Consecutive transitions or sequences of a part."""

    part: Part
    store: RunPlanes
    first: int
    end: int

    @property
    def index(self) -> Ints:
        """The row that each transition or sequence begins with, in increasing order."""
        return self.part.index[self.first : self.end]


class Settled(int):
    """The row from which on transitions are added later, and earlier rows that may be added."""

    open_rows: Ints

    def __new__(cls, row: int, open_rows: Ints) -> Self:
        """Make it of the row and of the earlier rows."""
        made = super().__new__(cls, row)
        made.open_rows = open_rows
        return made

    def shifted(self, distance: int) -> "Settled":
        """Return it for rows whose numbers are greater by `distance`."""
        return Settled(self + distance, self.open_rows + distance)


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
        recent_episodes: Ints,
        *,
        first: int = 0,
        settled: Settled,
        lineage: object,
        version: int,
    ) -> None:
        self.source = source
        self.count = count
        """How many steps count."""
        self.ends = ends
        """How many last observations of episodes count. Of both, some may be in memory only."""
        self._columns = columns
        self._pieces = pieces
        self._indexes = [piece.index for piece in pieces]
        self._starts = np.cumsum([0, *map(len, self._indexes)])
        self.length = int(self._starts[-1])
        self._episodes = episodes
        self._recent_episodes = recent_episodes  # of the steps that are not committed
        self.first = first
        """The first row of the window."""
        self.settled = settled
        """A later snapshot returns with `since` what was added since this one."""
        self.lineage = lineage
        """The same object as long as steps were added, and none were removed."""
        self.version = version
        """Of two snapshots with the same lineage, the later one has the greater version."""
        self.start = 0
        """What is added to the rows of the run, in `index` too; see `numbered`."""

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The fields; unknown before the first observation."""
        return {column.name: column.field for column in self._known()}

    @cached_property
    def _firsts(self) -> Ints:
        """The row that each part begins with. If there are several parts, none of them is empty."""
        return np.array([index[0] for index in self._indexes], np.int64)

    @cached_property
    def table(self) -> Table:
        """The transitions as a table of the core."""
        self._known()
        whole: dict[int, Table] = {}
        tables = []
        for piece in self._pieces:
            part = piece.part
            table = whole.get(id(part))
            if table is None:
                native = part.native(piece.store, self.start)
                table = whole.setdefault(id(part), native.table(piece.store))
            count = piece.end - piece.first
            is_whole = count == len(part.index)
            tables.append(table if is_whole else table.select_range(piece.first, 1, count))
        return tables[0] if len(tables) == 1 else Table.concat(tables)

    def numbered(self, start: int) -> "Snapshot":
        """Return the same transitions, with rows from `start` on, in `index` too."""
        made = copy(self)
        made.__dict__.pop("table", None)
        made.start = start
        made.first += start - self.start
        made.settled = self.settled.shifted(start - self.start)
        return made

    @property
    def decoded_bytes(self) -> int:
        """How many bytes were decoded so far to read transitions, in this process."""
        return self._pieces[-1].store.decoded_bytes if self._pieces else 0

    @cached_property
    def columns(self) -> dict[str, int]:
        """The numbers of the columns of the table."""
        return {name: number for number, name in enumerate(self.fields)}

    def __len__(self) -> int:
        """Count the transitions, or sequences of them."""
        return self.length

    def since(self, key: int) -> Ints:
        """Return the rows that transitions or sequences begin with, from one on, in their order.

        Of `settled`, also the earlier ones that may have been added since.
        """
        row = key - self.start
        indexes = [index for index in self._indexes if len(index) and index[-1] >= row]
        if indexes:
            indexes[0] = indexes[0][np.searchsorted(indexes[0], row) :]
        if isinstance(key, Settled) and len(key.open_rows):
            open_rows = key.open_rows[self.positions(key.open_rows) >= 0] - self.start
            indexes.insert(0, open_rows)
        if not indexes:
            return np.zeros(0, np.int64)
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
        if not self.length:
            return made
        part = np.maximum(np.searchsorted(self._firsts, rows, side="right") - 1, 0)
        for number in np.unique(part):
            index, is_in = self._indexes[number], part == number
            wanted = rows[is_in]
            found = np.minimum(np.searchsorted(index, wanted), len(index) - 1)
            made[is_in] = np.where(index[found] == wanted, self._starts[number] + found, -1)
        return made

    def episode_of(self, row: int) -> int:
        """Return the number of the episode of a step."""
        return int(self._numbers(np.array([row - self.start]))[0])

    def bounds(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the first and the last row of the episodes of steps."""
        numbers, which = np.unique(self._numbers(rows - self.start), return_inverse=True)
        first, last = self._spans(numbers)
        which = which.reshape(rows.shape)
        return first[which] + self.start, last[which] + self.start

    def rows_of(self, episode: int) -> Ints:
        """Return the rows of all steps of an episode."""
        (first,), (last,) = self._spans(np.array([episode]))
        committed = self._episodes.upto(self.source, self._committed).number[: self._committed]
        found = np.concatenate(
            (
                first + np.flatnonzero(committed[first : last + 1] == episode),
                self._committed + np.flatnonzero(self._recent_episodes == episode),
            )
        )
        return found + self.start

    @property
    def _committed(self) -> int:
        return self.count - len(self._recent_episodes)

    def _numbers(self, rows: Ints) -> Ints:
        """Return the numbers of the episodes of steps."""
        committed = self._committed
        known = self._episodes.upto(self.source, committed).number
        found = np.empty(rows.shape, np.int64)
        is_committed = rows < committed
        found[is_committed] = known[rows[is_committed]]
        found[~is_committed] = self._recent_episodes[rows[~is_committed] - committed]
        return found

    def _spans(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the first and the last row of episodes, which are in increasing order."""
        if not len(numbers):
            return numbers, numbers
        committed = self._committed
        known = self._episodes.upto(self.source, committed)
        first, last = np.full(len(numbers), self.count), np.full(len(numbers), -1)
        is_known = numbers < len(known.first)
        first[is_known] = known.first[numbers[is_known]]
        last[is_known] = known.last[numbers[is_known]]
        # Of episodes that later snapshots have more steps of.
        goes_on = last >= committed
        last[goes_on] = -1
        start = int(first[goes_on].min(initial=committed))
        recent = self._recent_episodes
        for begin, found in ((start, known.number[start:committed]), (committed, recent)):
            place = np.minimum(np.searchsorted(numbers, found), len(numbers) - 1)
            rows = np.flatnonzero(numbers[place] == found)
            np.minimum.at(first, place[rows], begin + rows)
            np.maximum.at(last, place[rows], begin + rows)
        return first, last

    @property
    def lacks(self) -> str | None:
        """What there must be before there are transitions: steps, or observations."""
        if self._columns is not None:
            return None
        return "observations" if self.count else "steps"

    def _known(self) -> list[Column]:
        if self._columns is None:
            raise InvalidError(
                f"run {self.source.run.run_id!r} has no {self.lacks} yet, so its fields are "
                "unknown",
                hint="pass `observation` to step()" if self.count else "record a step first",
            )
        return self._columns


@dataclass(frozen=True, slots=True)
class CommittedEpisodes:
    """The episodes of the first steps of a run."""

    number: Ints
    """The number of the episode of each step."""
    first: Ints
    """The first row of each episode."""
    last: Ints
    """The last row of each episode; -1 without steps."""


class EpisodeRows:
    """The episodes of the committed steps of a run, read when asked for. Thread-safe."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self._known = CommittedEpisodes(none, none, none)

    def upto(self, source: RunSource, count: int) -> CommittedEpisodes:
        """Return those of at least `count` steps, all of which a source has."""
        known = self._known
        before = len(known.number)
        if before < count:
            rows = np.arange(before, count)
            new = _episodes_of(source, rows)
            episodes = max(len(known.first), int(new.max(initial=-1)) + 1)
            first = np.full(episodes, np.iinfo(np.int64).max)
            last = np.full(episodes, -1)
            first[: len(known.first)], last[: len(known.last)] = known.first, known.last
            np.minimum.at(first, new, rows)
            np.maximum.at(last, new, rows)
            known = CommittedEpisodes(np.concatenate((known.number, new)), first, last)
            self._known = known  # all at once, as another thread may read it
        return known


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
        self._begin_row = 0  # no row from this one on is in a part
        self._settled = Settled(0, np.zeros(0, np.int64))
        self._numbered = 0  # rows before have the numbers of their planes in the table
        self._known_ends = 0
        self._has_finals = False
        self._arrays: RunArrays | None = None
        self._end_of: dict[int, int] = {}
        self._episodes = EpisodeRows()

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
            return self._without_observations(source, 0, 0)
        arrays = source.arrays
        leaves = arrays.fields.get(OBSERVATIONS, [])
        if not leaves:
            if run.status != "recording" or not source.columns:
                raise InvalidError(
                    f"run {run.run_id!r} has no observations, so it has no transitions",
                    hint="pass `observation` to step()",
                )
            return self._without_observations(source, committed, count)
        columns = self._columns
        if arrays is not self._arrays or columns is None:
            columns = _columns(source, self._options)
            if columns != self._columns:
                self._clear()
                self._columns = columns
        is_longer = self._open_planes(arrays, mapped=run.status != "recording")
        self._has_finals = all(final_of(arrays, spec) is not None for spec in leaves)
        if not self._has_finals:
            ends = 0
        self._read(source, committed, count)
        self._read_ends(arrays, ends)
        tail = self._update(source, committed, ends)
        first_row = 0 if self._options.last is None else max(0, count - self._options.last)
        table = self._table
        assert table is not None  # noqa: S101 - made by `_read`
        if recent is not None and self._has_finals:
            ends = max([ends, *(end.row + 1 for end in recent.ends.values())])
        recent_episodes = table["episode"][np.searchsorted(table["row"], committed) :].copy()
        pieces = self._in_window(tail, first_row)
        if is_longer and first_row:
            self._drop_before(pieces[0])
        return Snapshot(
            source,
            count,
            ends,
            columns,
            pieces,
            self._episodes,
            recent_episodes,
            first=first_row,
            settled=self._settled,
            lineage=self._lineage,
            version=self._made,
        )

    def _without_observations(self, source: RunSource, committed: int, count: int) -> Snapshot:
        recent, episodes = self._recent, np.zeros(0, np.int64)
        if recent is not None and committed < count:
            steps = recent.steps[committed - recent.first_row : count - recent.first_row]
            episodes = np.array([step.episode.number for step in steps], np.int64)
        return Snapshot(
            source,
            count,
            0,
            None,
            [],
            self._episodes,
            episodes,
            settled=self._settled,
            lineage=self._lineage,
            version=self._made,
        )

    def _in_window(self, tail: Part, first_row: int) -> list[Piece]:
        """Return what is in the window, in the order of rows."""
        store = self._planes
        assert store is not None  # noqa: S101 - set by the caller
        # Parts that left the window.
        while self._parts and self._parts[0].index[-1] < first_row:
            self._parts.pop(0)
        found: list[Piece] = []

        def add(part: Part, first: int, end: int) -> None:
            if first < end:
                found.append(Piece(part, store, first, end))

        at = int(np.searchsorted(tail.index, first_row))
        for part in self._parts:
            done = int(np.searchsorted(part.index, first_row))
            # What is open among the rows of this part.
            end = int(np.searchsorted(tail.index, part.index[-1]))
            spots = np.searchsorted(part.index, tail.index[at:end])
            for spot in np.unique(spots).tolist():
                add(part, done, spot)
                open_end = at + int(np.searchsorted(spots, spot, side="right"))
                add(tail, at, open_end)
                done, at, spots = spot, open_end, spots[spots > spot]
            add(part, done, len(part.index))
        add(tail, at, len(tail.index))
        return found or [Piece(tail, store, 0, 0)]

    def _drop_before(self, piece: Piece) -> None:
        """Drop the planes before the window, so that its own have room in the cache."""
        part, first = piece.part, piece.first
        if part.windows is not None and first < len(part.windows.starts):
            first = int(part.windows.starts[first])
        least: dict[int, int] = {}
        for entries, number in part.values.values():
            if entries is None or number is None:
                continue
            planes = part.planes[number]
            used = entries[first : first + _FIRST_OF_WINDOW]
            ids = used + FIRST_PLANE if planes.ids is None else planes.ids[used].ravel()
            column, rows = planes.fields[0]
            ids = ids[(ids >= FIRST_PLANE) & (ids <= rows)]
            if len(ids):
                row = int(ids.min()) - FIRST_PLANE
                least[column] = min(least.get(column, row), row)
        assert self._planes is not None  # noqa: S101 - set by the caller
        for column, row in least.items():
            self._planes.drop_before(column, row)

    def _open_planes(self, arrays: RunArrays, *, mapped: bool) -> bool:
        """Open what reads planes, and return whether it has more of them than before."""
        if arrays is self._arrays and self._planes is not None:
            return False
        # Only `abort` truncates a file, to what it had when its recorder began.
        self._planes = arrays.planes(
            cache_bytes=self._options.cache_bytes, mapped=mapped, before=self._planes
        )
        self._arrays = arrays
        return True

    def _continues(self, source: RunSource) -> bool:
        """Check whether a source has everything that the one before has."""
        before = self._source
        if before is None or before is source:
            return True
        old, run = before.run, source.run
        return source.continues(before) and run.steps >= old.steps and run.ends >= old.ends

    def _read(self, source: RunSource, committed: int, count: int) -> None:
        """Add the steps to the table that are not in it."""
        arrays = source.arrays
        assert self._columns is not None  # noqa: S101 - set by the caller
        specs = [
            column.spec
            for column in self._columns
            if column.spec is not None
            and column.spec.field != OBSERVATIONS
            and is_small(column.spec)
        ]
        large = {
            column.spec.field
            for column in self._columns
            if column.spec is not None and not is_small(column.spec)
        } - {OBSERVATIONS}
        stacked = [spec for spec in arrays.fields[OBSERVATIONS] if spec.stack is not None]
        if self._end_row < committed or self._table is None:
            rows = np.arange(self._end_row, committed)
            episode = _episodes_of(source, rows)
            new = {
                "row": rows,
                "episode": episode,
                "index": arrays.read("step_index", rows),
                "has": arrays.are_valid(OBSERVATIONS, rows),
                "terminated": arrays.read("terminated", rows),
                "truncated": arrays.read("truncated", rows),
                "reward": _rewards(arrays, rows),
                **{_VALUES + spec.name: arrays.read(spec.name, rows) for spec in specs},
                **{PRESENT + field: arrays.are_valid(field, rows) for field in large},
            }
            self._add(new, stacked)
            self._end_row = committed
        recent = self._recent
        if recent is not None and self._end_row < count:
            new = self._recent_values(recent, arrays, specs, count)
            steps = recent.steps[self._end_row - recent.first_row : count - recent.first_row]
            for field in large:
                new[PRESENT + field] = np.array([field in step.present for step in steps], np.bool_)
            self._add(new, stacked)
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
                "is_done": np.zeros(count, np.bool_),
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
        rows = source.episodes
        recent = {} if self._recent is None else self._recent.ends
        for place, number in enumerate(numbers):
            row = _episode_row(rows, number)
            if row is not None and row.ended_ns is not None:
                flags[place] = True, True, row.dropped > 0, row.terminated, row.truncated
                row_of[place] = self._end_of.get(number, NO_END)
            elif number in recent:
                end = recent[number].end
                flags[place] = True, False, end.dropped > 0, end.terminated, end.truncated
                row_of[place] = recent[number].row if self._has_finals else NO_END
            elif row is not None:
                flags[place, 2] = row.dropped > 0
        is_over, is_committed, dropped, terminated, truncated = flags.T
        return EpisodeEnds(episodes, is_over, is_committed, dropped, terminated, truncated, row_of)

    def _update(self, source: RunSource, committed: int, ends: int) -> Part:
        """Make a part of what stays as it is, if that is enough, and return the rest as a part."""
        table = self._table
        assert table is not None  # noqa: S101 - set by the caller
        steps = Steps(table, self._ends(source))
        at = Place(source.arrays, steps, table, committed, ends, self._recent)
        is_open = ~table["is_done"][steps.order]
        is_settled = steps.settled(committed, self._horizon)
        unsettled = np.sort(steps.rows[is_open & ~is_settled])
        until = self._settled_until(unsettled, min(committed, self._end_row))
        if until - self._begin_row >= self._part_rows:
            is_done = is_open & is_settled & (steps.rows < until)
            # All of it is committed: what is in memory now is not kept for it.
            self._add_parts(replace(at, recent=None), is_done)
            is_open &= ~is_done
            tail = self._build(at, is_open)
            self._trim(steps, is_open)
            self._begin_row = until
        else:
            tail = self._build(at, is_open)
        is_aside = is_open & (steps.rows < self._begin_row)
        self._settled = Settled(self._begin_row, np.sort(steps.rows[is_aside]))
        return tail

    def _settled_until(self, unsettled: Ints, end_row: int) -> int:
        """Return the row up to which parts can be made, if that is enough.

        Args:
            unsettled: The rows that are not settled, in their order.
            end_row: The row after the last one that is committed.
        """
        first, last = np.searchsorted(unsettled, (self._begin_row, end_row))
        stops = np.append(unsettled[first:last], end_row)
        if stops[0] - self._begin_row >= self._part_rows:
            return int(stops[0])
        # So many steps are left aside up to each stop. They cost more than others, so that those of
        # streams that go on are not among them.
        gain = stops - self._begin_row - _IDLE_COST * np.arange(len(stops))
        best = int(gain.argmax())
        is_enough = gain[best] >= _IDLE_PARTS * self._part_rows
        return int(stops[best if is_enough else 0])

    def _add_parts(self, at: Place, is_done: Flags) -> None:
        """Add what begins with settled steps to the parts."""
        rows = at.steps.rows
        is_late = is_done & (rows < self._begin_row)
        if is_late.any() and self._parts:
            firsts = [part.index[0] for part in self._parts]
            numbers = np.maximum(np.searchsorted(firsts, rows, side="right") - 1, 0)
            for number in np.unique(numbers[is_late]).tolist():
                late = self._build(at, is_late & (numbers == number))
                if len(late.index):
                    self._parts[number] = self._joined([self._parts[number], late])
            is_done = is_done & ~is_late
        part = self._build(at, is_done)
        if len(part.index):
            self._parts.append(part)
            self._join()

    def _trim(self, steps: Steps, is_open: Flags) -> None:
        """Keep the steps in the table that later parts need."""
        table = self._table
        assert table is not None  # noqa: S101 - set by the caller
        count = len(steps.rows)
        for name, values in (
            ("is_done", ~is_open),
            ("is_known", np.ones(count, np.bool_)),
            ("into", steps.into),
            ("from_start", steps.from_start[steps.segment]),
        ):
            ordered = np.empty_like(values)
            ordered[steps.order] = values
            table.arrays[name] = ordered
        # The last steps before of each episode that goes on.
        kept = is_open.copy()
        for back in range(1, self._context + 1):
            if back < count:
                goes_on = is_open[back:] & (steps.episode[back:] == steps.episode[:-back])
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

    def _build(self, at: Place, is_wanted: Flags) -> Part:
        """Make a part of what begins at some places."""
        options, steps = self._options, at.steps
        windows = None
        if options.sequences is None:
            places = places_of(steps, is_wanted)
            index = steps.rows[places]
        else:
            places, windows = windows_of(steps, is_wanted, options.sequences)
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
        for name, (given, number) in values.items():
            if given is not None:
                array = np.ascontiguousarray(given)
                array.flags.writeable = False
                values[name] = array, number
        index.flags.writeable = False  # views of it are returned
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
        """Return several parts as one, in the order of rows."""
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
        if (index[1:] < index[:-1]).any():
            order = np.argsort(index, kind="stable")  # which merges them
            index = index[order]
            if windows is not None:
                windows = windows.take(order)
            else:
                values = {
                    name: (None if array is None else array[order], number)
                    for name, (array, number) in values.items()
                }
        return self._part(index, int(starts[-1]), values, planes, windows)


def _episode_row(rows: Sequence[EpisodeRow], number: int) -> EpisodeRow | None:
    """Return the row of an episode, if there is one. Some numbers may be missing."""
    place = number
    if place >= len(rows) or rows[place].number != number:
        place = bisect_left(rows, number, key=lambda row: row.number)
    return rows[place] if place < len(rows) and rows[place].number == number else None


def _episodes_of(source: RunSource, rows: Ints) -> Ints:
    """Return the numbers of the episodes of committed steps."""
    episode: Ints = source.arrays.read("episode", rows)
    if len(episode) and not 0 <= episode.min() <= episode.max() < source.run.episodes:
        raise CorruptError(f"`{source.path}`: a step has an episode that does not exist")
    return episode


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
