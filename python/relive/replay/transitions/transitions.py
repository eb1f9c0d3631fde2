"""`Transitions`: the steps of a run as a source to train from."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int, worker_count
from relive._native import Table
from relive.errors import InvalidError, InvalidTypeError
from relive.model.schema import Field
from relive.model.source import (
    Batch,
    Indices,
    Source,
    as_indices,
    check_out,
    describe,
    pick_fields,
)
from relive.replay.arrays import FINAL, VALID
from relive.replay.columns import ColumnSpec, leaf_name
from relive.replay.source import SIGNALS, RunSource
from relive.replay.transitions.draws import Draws
from relive.replay.transitions.options import Options
from relive.replay.transitions.planes import (
    Planes,
    final_of,
    observation_planes,
    row_planes,
)
from relive.replay.transitions.rate import Rate, RateLimit
from relive.replay.transitions.steps import OBSERVATIONS, Items, Steps, items_of, windows_of

_EXTRAS: Final = "extras."
_REWARDS: Final = "rewards"
_INTERNAL: Final = frozenset({"episode", _REWARDS, "terminated", "truncated"})
"""Fields of the run that transitions have in another form."""
_OPTIONAL: Final = ("frames", "info.", "step_index", "ts_ns")
"""Fields of the run that only `fields` adds."""
_MAX_PREFETCH: Final = 4096
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


class Transitions(Source):
    """The transitions of a run, or sequences of them: a replay buffer on the disk.

    Made by `ReplayRun.transitions` and `ReplayRecorder.transitions`. A snapshot: what is recorded
    later appears after `refresh`. With `follow`, `sample` and `batches` refresh before each draw,
    and a loader before each epoch. `index` is the row of the step that a transition begins with and
    stays the same, whatever its position becomes. Thread-safe; pickles as the path of the run, the
    arguments and the number of steps.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayRecorder, ReplayRun
        >>> root = tempfile.mkdtemp()
        >>> with ReplayRecorder(root, "run-1") as recorder:
        ...     for number in range(4):
        ...         _ = recorder.step([number / 2.0], 1, 1.0, terminated=number == 3)
        >>> transitions = ReplayRun(root, "run-1").transitions(n_step=2, gamma=0.5)
        >>> batch = transitions.gather([0, 2])
        >>> batch["reward"].tolist(), batch["discount"].tolist()
        ([1.5, 1.5], [0.25, 0.0])
        >>> batch["next_observation"].tolist(), batch["index"].tolist()
        ([[1.0], [1.5]], [0, 2])
    """

    def __init__(
        self,
        source: RunSource,
        options: Options,
        rate: Rate,
        *,
        follow: bool = False,
        flush: Callable[[], None] | None = None,
    ) -> None:
        self._options = options
        self._follow = follow
        self._flush = flush
        self._limit = RateLimit(rate, source.run.steps)
        self._limiting = threading.Lock()
        self._workers = worker_count(None)
        self._refreshing = threading.Lock()
        self._state = _State(source, options, source.run.steps, source.run.ends)
        self._view: tuple[_State, Transitions] | None = None
        self._snapshot_of: _State | None = None

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every transition, by name."""
        return self._state.fields

    def __len__(self) -> int:
        """Return the number of transitions, or of sequences of them."""
        return self._state.length

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the transitions at `indices` on native threads; see `Source.gather`."""
        state = self._state
        rows = as_indices(indices, state.length, check=False)
        if fields is None and out is None:  # the core checks the range
            return state.table.gather(rows, None, None, self._workers)
        picked = pick_fields(state.fields, fields)
        given = check_out(out, picked, rows.shape)
        columns = [state.columns[name] for name in picked]
        return state.table.gather(rows, columns, given, self._workers)

    def native_table(self) -> Table:
        """Return the transitions as a table of the core."""
        return self._state.table

    def snapshot(self) -> Source:
        """Return the transitions as they are now, whatever `refresh` changes later."""
        if self._follow:
            self.refresh()
        state, known = self._state, self._view
        if self._snapshot_of is state:
            return self
        if known is not None and known[0] is state:
            return known[1]
        self._view = state, _with(self._options, state)
        return self._view[1]

    def refresh(self) -> None:
        """Read again which steps the run has.

        What was decoded is read again when it is needed.
        """
        with self._refreshing:
            if self._flush is not None:
                self._flush()
            before = self._state.source
            source = before.refreshed()
            if source is not before:
                self._state = _State(source, self._options, source.run.steps, source.run.ends)

    @property
    def due(self) -> int | None:
        """How many transitions may be drawn now without waiting; None for any number."""
        if self._follow:
            self.refresh()
        return self._limit.due(*self._size())

    def sample(
        self,
        n: int,
        *,
        seed: int | None = None,
        generator: np.random.Generator | None = None,
        fields: Sequence[str] | None = None,
    ) -> Batch:
        """Return `n` transitions that are drawn uniformly, with repeats.

        If `min_size` or `samples_per_insert` do not allow it, this waits while another process
        records the run, at most `timeout` seconds. An `OverloadError` is raised if it may not wait.

        Args:
            n: How many.
            seed: Makes the draw repeatable.
            generator: What draws, instead of a seed.
            fields: The names of the fields to read; all of them by default.
        """
        return self.draw(as_int("n", n, at_least=1), _generator(seed, generator), fields)()

    def batches(
        self,
        n: int,
        *,
        seed: int | None = None,
        generator: np.random.Generator | None = None,
        fields: Sequence[str] | None = None,
        prefetch: int = 0,
    ) -> Draws:
        """Return an endless iterator over batches of `n` transitions, drawn as `sample` does.

        Each batch is drawn from the transitions that there are then. The iterator has a
        `state_dict` and `load_state_dict`, with which it continues as if it had not stopped.

        Args:
            n: How many transitions a batch has.
            seed: Makes the draws repeatable.
            generator: What draws, instead of a seed.
            fields: The names of the fields to read; all of them by default.
            prefetch: How many batches are read ahead, on a thread, if they may be drawn. They do
                not have what was recorded meanwhile.
        """
        return Draws(
            self,
            as_int("n", n, at_least=1),
            _generator(seed, generator),
            fields,
            as_int("prefetch", prefetch, at_least=0, at_most=_MAX_PREFETCH),
        )

    def draw(
        self, n: int, generator: np.random.Generator, fields: Sequence[str] | None
    ) -> Callable[[], Batch]:
        """Choose `n` transitions as `sample` does, and return what reads them."""
        if self._limit.rate.is_limited:
            self._wait(n)
        elif self._follow:
            self.refresh()
        state = self._state
        if not state.length:
            raise InvalidError(
                f"run {state.source.run.run_id!r} has no transitions to draw from",
                hint="record at least two steps, then call refresh()",
            )
        rows = generator.integers(0, state.length, n)
        columns = None
        if fields is not None:
            columns = [state.columns[name] for name in pick_fields(state.fields, fields)]
        return lambda: state.table.gather(rows, columns, None, self._workers)

    def may_draw(self, n: int) -> bool:
        """Check whether `n` transitions may be drawn without waiting."""
        due = self.due
        return due is None or due >= n

    def undo(self, n: int) -> None:
        """Count `n` transitions as not drawn."""
        with self._limiting:
            self._limit.samples -= n

    def state_dict(self) -> dict[str, Any]:
        """Return how many transitions were drawn, and from which step on steps count for that."""
        return dict(self._limit.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the counts of a state, so that draws are allowed as if without a stop."""
        self._limit.load_state_dict(state)

    def positions(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return where the transitions are that begin with steps; -1 where there is none.

        Args:
            index: The rows of steps, of any shape, as the field `index` has them. That of a
                sequence is the row of its first step.
        """
        return self._state.positions(_rows(index))

    def episode_bounds(
        self, index: npt.ArrayLike
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first and the last row of the episodes that steps belong to.

        Args:
            index: The rows of steps, of any shape, as the field `index` has them.
        """
        state = self._state
        rows = as_indices(_rows(index), state.count)
        first, last = state.bounds
        episode = state.episode[rows]
        return first[episode], last[episode]

    def episode_rows(self, index: int) -> npt.NDArray[np.int64]:
        """Return the rows of all steps of the episode that a step belongs to, in their order.

        They follow each other unless several streams were recorded.
        """
        state = self._state
        rows = as_indices([index], state.count)
        found = state.source.rows_of(int(state.episode[rows[0]]))
        return found[found < state.count].copy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the run is, the arguments, and how many steps it has here."""
        state = self._state
        run = state.source.run
        return _restore, (state.source, self._options, run.uid, state.count, state.ends)

    def __repr__(self) -> str:
        """Return the id of the run, the number of transitions and the fields, on one line."""
        what = describe(self) if self._state.count else "no steps yet"
        return f"Transitions({self._state.source.run.run_id!r}, {what})"

    def _wait(self, n: int) -> None:
        """Wait until `n` transitions may be drawn, and count them."""
        with self._limiting:
            self._limit.wait(
                n,
                self._size_now,
                self._is_live,
                is_own=lambda: self._flush is not None or self._state.source.is_own,
            )

    def _is_live(self) -> bool:
        if not self._follow:
            return False
        self.refresh()
        return self._state.source.is_live

    def _size_now(self) -> tuple[int, int]:
        if self._follow:
            self.refresh()
        return self._size()

    def _size(self) -> tuple[int, int]:
        """Return the steps of the run, and how many transitions there are."""
        state = self._state
        return state.count, state.length


class _State:
    """The transitions of the first steps of a run."""

    def __init__(self, source: RunSource, options: Options, count: int, ends: int) -> None:
        self.source = source
        self.count = count
        """How many steps count."""
        self.ends = ends
        """How many last observations of episodes count."""
        made = _columns(source, options, count, ends) if count else None
        self._made = made
        self.length = 0 if made is None else len(made.table)
        self._index = np.zeros(0, np.int64) if made is None else made.index

    @property
    def fields(self) -> dict[str, Field]:
        """The fields; unknown before the first step."""
        return self._known().fields

    @property
    def table(self) -> Table:
        """The transitions as a table of the core."""
        return self._known().table

    @cached_property
    def columns(self) -> dict[str, int]:
        """The numbers of the columns of the table."""
        return {name: number for number, name in enumerate(self.fields)}

    def _known(self) -> "_Columns":
        if self._made is None:
            raise InvalidError(
                f"run {self.source.run.run_id!r} has no steps yet, so its fields are unknown",
                hint="record a step first",
            )
        return self._made

    def positions(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the positions of the transitions that begin with rows, or -1."""
        found = np.searchsorted(self._index, rows)
        known = np.append(self._index, -1)[found]
        return np.where(known == rows, found, -1)

    @cached_property
    def episode(self) -> npt.NDArray[np.int32]:
        """The number of the episode of each row."""
        return self.source.arrays.read("episode", np.arange(self.count)).astype(np.int32)

    @cached_property
    def bounds(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first and the last row of each episode."""
        first = np.full(self.source.run.episodes, self.count)
        last = np.full(self.source.run.episodes, -1)
        np.minimum.at(first, self.episode, np.arange(self.count))
        np.maximum.at(last, self.episode, np.arange(self.count))
        return first, last


@dataclass(frozen=True, slots=True)
class _Columns:
    fields: dict[str, Field]
    table: Table
    index: npt.NDArray[np.int64]
    """The row that each transition or sequence begins with, in increasing order."""


class _Builder:
    """Collects the columns of a table of transitions."""

    def __init__(
        self, source: RunSource, options: Options, steps: Steps, items: Items, ends: int
    ) -> None:
        self._source = source
        self._options = options
        self._steps = steps
        self._items = items
        self._ends = ends
        sequences = options.sequences
        self._lead = () if sequences is None else (sequences.steps,)
        self._wanted = _wanted(source, options)
        self._columns: dict[str, tuple[Any, ...]] = {}
        self._planes: list[tuple[Any, ...]] = []
        self._fields: dict[str, Field] = {}

    def build(self) -> _Columns:
        """Make the table."""
        items, sequences = self._items, self._options.sequences
        index = self._steps.rows[items.places]
        for spec in self._source.arrays.fields[OBSERVATIONS]:
            self._add_observations(spec)
        for spec, name in _step_columns(self._source):
            self._add_values(name, spec, index)
        scalars = {
            "reward": items.reward,
            "terminated": items.terminated,
            "truncated": items.truncated,
            "discount": items.discount,
            "n": items.n,
            "index": index,
            "episode": self._steps.episode[items.places],
        }
        for name, array in scalars.items():
            self._add(name, array.dtype, (), array)
        windows = None
        if sequences is not None:
            found = windows_of(self._steps, items, sequences)
            windows = sequences.steps, found.starts, found.lengths, found.skipped
            index = index[found.starts]
            self._add("mask", np.bool_, (), None)
        names = sorted(self._fields, key=_rank)
        table = self._source.arrays.transitions(
            [self._columns[name] for name in names],
            self._planes,
            len(items.places),
            windows=windows,
            cache_bytes=self._options.cache_bytes,
            # Only `abort` truncates a file, to what it had when its recorder began.
            mapped=self._source.run.status != "recording",
        )
        return _Columns({name: self._fields[name] for name in names}, table, index)

    def _add_observations(self, spec: ColumnSpec) -> None:
        """Add what was observed, and what was observed next, of a leaf."""
        names = [leaf_name(f"{next_}observation", spec.keys) for next_ in ("", "next_")]
        if self._wanted.isdisjoint(names):
            return
        options, arrays = self._options, self._source.arrays
        planes, *entries = observation_planes(
            arrays, spec, self._steps, self._items, options=options, ends=self._ends
        )
        number = self._add_planes(planes)
        shape = spec.shape if options.stack is None else (options.stack, *spec.shape)
        for name, entry in zip(names, entries, strict=True):
            self._add(name, spec.dtype, shape, entry, number)

    def _add_values(self, name: str, spec: ColumnSpec, index: npt.NDArray[np.int64]) -> None:
        """Add a column of the steps that transitions begin with."""
        if name not in self._wanted:
            return
        arrays = self._source.arrays
        if _is_small(spec):
            self._add(name, spec.dtype, spec.shape, arrays.read(spec.name, index))
        else:
            planes, entry = row_planes(arrays, spec, self._steps, self._items)
            self._add(name, spec.dtype, spec.shape, entry, self._add_planes(planes))

    def _add_planes(self, planes: Planes) -> int:
        axis = planes.axis or "first"
        self._planes.append((planes.fields, planes.ids, planes.depth, axis))
        return len(self._planes) - 1

    def _add(
        self,
        name: str,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        values: npt.NDArray[Any] | None,
        planes: int | None = None,
    ) -> None:
        """Add a column if it is wanted: an array, the entries of planes, or a mask."""
        if name not in self._wanted:
            return
        shape = (*self._lead, *shape)
        self._fields[name] = Field(dtype, shape)
        array = None if values is None else np.ascontiguousarray(values)
        self._columns[name] = (name, np.dtype(dtype), list(shape), array, planes)


def is_read_in_batches(spec: ColumnSpec) -> bool:
    """Check whether transitions read a column for each batch; what is small they keep in memory."""
    if spec.field.removeprefix(FINAL) == OBSERVATIONS:
        return True
    return _is_of_steps(spec) and not spec.field.startswith(_OPTIONAL) and not _is_small(spec)


def _is_of_steps(spec: ColumnSpec) -> bool:
    """Check whether transitions can have a column as it is."""
    is_other = spec.field in _INTERNAL or spec.field.startswith((FINAL, VALID))
    return spec.field != OBSERVATIONS and not is_other


def _is_small(spec: ColumnSpec) -> bool:
    return np.dtype(spec.dtype).itemsize * math.prod(spec.shape) <= _MEMORY_BYTES


def _rank(name: str) -> int:
    """Return where a field is among the others; those of equal rank stay in their order."""
    top = name.partition(".")[0]
    return _ORDER.index(top) if top in _ORDER else len(_ORDER) + (name == "mask")


def _columns(source: RunSource, options: Options, count: int, ends: int) -> _Columns:
    """Make the table of the transitions of the first `count` steps of a run."""
    arrays = source.arrays
    leaves = arrays.fields.get(OBSERVATIONS, [])
    if not leaves:
        raise InvalidError(
            f"run {source.run.run_id!r} has no observations, so it has no transitions",
            hint="pass `observation` to step()",
        )
    if not all(final_of(arrays, spec) for spec in leaves):
        ends = 0
    steps = Steps(source, count, ends)
    items = items_of(
        steps,
        _rewards(source, count),
        n_step=options.n_step,
        gamma=options.gamma,
        first_row=0 if options.last is None else max(0, count - options.last),
        is_by_row=options.sequences is None,
    )
    return _Builder(source, options, steps, items, ends).build()


def _rewards(source: RunSource, count: int) -> npt.NDArray[np.float64]:
    """Return the reward of each row; NaN where there is none."""
    rows = np.arange(count)
    if _REWARDS not in source.arrays.fields:
        return np.full(count, np.nan)
    rewards = source.arrays.read(_REWARDS, rows)
    rewards[~source.arrays.are_valid(_REWARDS, rows)] = np.nan
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


def _generator(seed: int | None, generator: np.random.Generator | None) -> np.random.Generator:
    if generator is None:
        return np.random.default_rng(None if seed is None else as_int("seed", seed, at_least=0))
    if seed is not None:
        raise InvalidError("pass `seed` or `generator`, not both")
    if not isinstance(generator, np.random.Generator):
        raise InvalidTypeError(f"`generator` must be a NumPy Generator, got {generator!r}")
    return generator


def _rows(index: npt.ArrayLike) -> npt.NDArray[np.int64]:
    rows = np.asarray(index)
    if rows.dtype.kind not in "iu" and rows.size:
        raise InvalidTypeError(f"`index` must be integers, got {rows.dtype}")
    return rows.astype(np.int64)


def _restore(source: RunSource, options: Options, uid: str, count: int, ends: int) -> Transitions:
    """Return the transitions that another process has, of the same steps."""
    run = source.run
    if run.uid != uid or run.steps < count or run.ends < ends:
        raise InvalidError(
            f"run {run.run_id!r} no longer has the {count} steps of these transitions",
            hint="make them again with run.transitions()",
        )
    return _with(options, _State(source, options, count, ends))


def _with(options: Options, state: _State) -> Transitions:
    made = object.__new__(Transitions)
    made.__dict__.update(
        _options=options,
        _follow=False,
        _flush=None,
        _limit=RateLimit(Rate.of(), state.count),
        _limiting=threading.Lock(),
        _workers=worker_count(None),
        _refreshing=threading.Lock(),
        _state=state,
        _view=None,
        _snapshot_of=state,
    )
    return made
