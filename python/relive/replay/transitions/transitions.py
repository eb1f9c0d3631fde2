"""`Transitions`: the steps of a run as a source to train from."""

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int, worker_count
from relive._forks import call_after_fork
from relive._native import Table
from relive.errors import InvalidError, InvalidTypeError
from relive.model.schema import Field
from relive.model.source import (
    Batch,
    Indices,
    RowKeys,
    Source,
    as_indices,
    check_out,
    describe,
    pick_fields,
)
from relive.replay.source import RunSource
from relive.replay.transitions.draws import Drawer, Draws, KeySampler
from relive.replay.transitions.growing import GrowingTransitions, Snapshot
from relive.replay.transitions.options import Options
from relive.replay.transitions.rate import Rate, RateLimit, RunSize
from relive.replay.transitions.recent import RecentSteps

_MAX_PREFETCH: Final = 4096


class Transitions(Source):
    """The transitions of a run, or sequences of them: a replay buffer on the disk.

    Made by `ReplayRun.transitions` and `ReplayRecorder.transitions`. A snapshot: what is recorded
    later appears after `refresh`. With `follow`, `sample` and `batches` refresh before each draw,
    and a loader before each epoch. `index` is the row of the step that a transition begins with and
    stays the same, whatever its position becomes. Thread-safe; pickles as the path of the run, the
    arguments and the number of steps. The steps of a recorder are committed for that.

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
        recent: RecentSteps | None = None,
    ) -> None:
        if options.last is not None and rate.min_size > options.last:
            raise InvalidError(
                f"`min_size` is {rate.min_size}, but `last` keeps at most {options.last} steps",
                hint="pass a smaller min_size= or a larger last=",
            )
        self._options = options
        self._follow = follow
        self._recent = recent
        self._flush = None if recent is None else recent.flush
        self._growing: GrowingTransitions | None = GrowingTransitions(options, recent)
        self._limit = RateLimit(rate, source.run.steps)
        self._workers = worker_count(None)
        self._refreshing = threading.Lock()
        self._state = self._growing.snapshot(source)
        self._version = 0 if recent is None else recent.version
        self._view: tuple[Snapshot, Transitions] | None = None
        self._snapshot_of: Snapshot | None = None
        self._has_warned = False
        call_after_fork(self)

    def after_fork(self) -> None:
        """Replace the locks, in a forked process."""
        if self._refreshing.locked():
            self._growing = None  # another thread was changing it
        self._refreshing = threading.Lock()
        if self._recent is not None:
            self._recent.reading = threading.RLock()

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

    def row_keys(self) -> tuple[RowKeys, ...]:
        """Return the rows that the transitions begin with: the field `index`."""
        return (self._state,)

    def numbered_from(self, start: int) -> Source:
        """Return the transitions of now, with `start` added to their rows and to `index`."""
        state = self._state
        if self._snapshot_of is state and state.start == start:
            return self
        return _with(self._options, state.numbered(start))

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
        self._view = state, _with(self._options, state, self._flush)
        return self._view[1]

    def refresh(self) -> None:
        """Read which steps were recorded since. That takes little time if they are few."""
        with self._refreshing:
            source, recent = self._state.source, self._recent
            if recent is None:
                self._update(source.refreshed())
                return
            with recent.reading:
                end_row = recent.read()
                is_newer = recent.is_newer(source.run.steps)
                if end_row and (recent.must_flush or recent.column_count != len(source.columns)):
                    recent.flush()  # new columns, whose place in the file is not known yet
                    recent.must_flush, is_newer = False, True
                self._update(source.refreshed() if is_newer else source)

    def _update(self, source: RunSource) -> None:
        version = 0 if self._recent is None else self._recent.version
        state = self._state
        is_same = source is state.source and version == self._version
        if is_same and state.count >= source.run.steps:
            return
        if self._growing is None:  # in another process, or a snapshot
            self._growing = GrowingTransitions(self._options, self._recent)
        self._state = self._growing.snapshot(source)
        self._version = version

    @property
    def due(self) -> int | None:
        """How many transitions may be drawn now without waiting; None for any number."""
        return self._limit.due(self._size_now())

    def sample(
        self,
        n: int | None = None,
        *,
        seed: int | None = None,
        generator: np.random.Generator | None = None,
        sampler: KeySampler | None = None,
        fields: Sequence[str] | None = None,
    ) -> Batch:
        """Return `n` transitions that are drawn uniformly, with repeats.

        If `min_size` or `samples_per_insert` do not allow it, this waits while another process
        records the run, at most `timeout` seconds. An `OverloadError` is raised if it may not wait.

        Args:
            n: How many; left out with a sampler.
            seed: Makes the draw repeatable.
            generator: What draws, instead of a seed.
            sampler: A `PrioritizedSampler` of these transitions, which draws by priority. The batch
                has a `weight`, and `sampler.update(batch["index"], priorities)` sets priorities.
            fields: The names of the fields to read; all of them by default.
        """
        drawer = _drawer(seed, generator, sampler)
        return self.draw(_count(n, sampler), drawer, fields)()

    def batches(
        self,
        n: int | None = None,
        *,
        seed: int | None = None,
        generator: np.random.Generator | None = None,
        sampler: KeySampler | None = None,
        fields: Sequence[str] | None = None,
        prefetch: int = 0,
    ) -> Draws:
        """Return an endless iterator over batches of `n` transitions, drawn as `sample` does.

        Each batch is drawn from the transitions that there are then. The iterator has a
        `state_dict` and `load_state_dict`, with which it continues as if it had not stopped.

        Args:
            n: How many transitions a batch has; left out with a sampler.
            seed: Makes the draws repeatable.
            generator: What draws, instead of a seed.
            sampler: A `PrioritizedSampler` of these transitions, which draws by priority.
            fields: The names of the fields to read; all of them by default.
            prefetch: How many batches are read ahead, on a thread, if they may be drawn. They do
                not have what was recorded meanwhile.
        """
        return Draws(
            self,
            _count(n, sampler),
            _drawer(seed, generator, sampler),
            fields,
            as_int("prefetch", prefetch, at_least=0, at_most=_MAX_PREFETCH),
        )

    def draw(
        self, n: int, drawer: Drawer, fields: Sequence[str] | None, *, ahead: bool = False
    ) -> Callable[[], Batch]:
        """Choose `n` transitions as `sample` does, and return what reads them.

        What is drawn `ahead` is not in the state before `returned`.
        """
        if self._limit.rate.is_limited:
            self._limit.wait(n, self._size_now, self._is_live, is_own=self._is_own, ahead=ahead)
        elif self._follow:
            self.refresh()
        try:
            return self._drawn(n, drawer, fields)
        except BaseException:
            self._limit.add(-n, ahead=-n if ahead else 0)
            raise

    def _drawn(self, n: int, drawer: Drawer, fields: Sequence[str] | None) -> Callable[[], Batch]:
        state = self._state
        if not state.length:
            raise InvalidError(
                f"run {state.source.run.run_id!r} has no transitions to draw from",
                hint="record at least two steps, then call refresh()",
            )
        extras: Mapping[str, Any] = {}
        if isinstance(drawer, np.random.Generator):
            rows = drawer.integers(0, state.length, n)
        else:
            drawer.take((state,))
            index, extras = next(drawer)
            rows = state.positions(index)
            if rows.min(initial=0) < 0:
                raise InvalidError(
                    "the sampler drew a transition that is not there",
                    hint="pass a sampler of these transitions to one thread only",
                )
        columns = None
        if fields is not None:
            columns = [state.columns[name] for name in pick_fields(state.fields, fields)]
        return lambda: self._read(state, rows, columns) | dict(extras)

    def _read(
        self, state: Snapshot, rows: npt.NDArray[np.int64], columns: list[int] | None
    ) -> Batch:
        """Read a draw; warn once if the cache cannot hold what one draw needs.

        Draws of several threads at the same time count as one.
        """
        before = state.decoded_bytes
        batch = state.table.gather(rows, columns, None, self._workers)
        needed, limit = state.decoded_bytes - before, self._options.cache_bytes
        if needed > limit and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a draw of {len(rows)} from run {state.source.run.run_id!r} decoded {needed} "
                f"bytes, but `cache_bytes` keeps {limit}: each draw decodes chunks again; pass "
                "a larger `cache_bytes`, or run `relive replay compact --layout train`",
                RuntimeWarning,
                stacklevel=4,
            )
        return batch

    def may_draw(self, n: int) -> bool:
        """Check whether `n` transitions may be drawn without waiting."""
        due = self.due
        return due is None or due >= n

    def returned(self, n: int) -> None:
        """Count `n` transitions that were drawn ahead as returned."""
        self._limit.add(0, ahead=-n)

    def undo(self, n: int) -> None:
        """Count `n` transitions that were drawn ahead as not drawn."""
        self._limit.add(-n, ahead=-n)

    def state_dict(self) -> dict[str, Any]:
        """Return how many transitions were drawn, and from which step on steps count for that.

        Those that an iterator has drawn ahead, and not returned, do not count.
        """
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
        with self._refreshing:
            return state.bounds(self._checked(index))

    def episode_rows(self, index: int) -> npt.NDArray[np.int64]:
        """Return the rows of all steps of the episode that a step belongs to, in their order.

        They follow each other unless several streams were recorded.
        """
        state = self._state
        rows = self._checked([index])
        with self._refreshing:
            return state.rows_of(state.episode_of(int(rows[0])))

    def _checked(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return rows after checking that the run has such steps."""
        rows = _rows(index)
        as_indices(rows - self._state.start, self._state.count)
        return rows

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the run is, the arguments, and how many steps it has here.

        The recorder of the run commits them first.
        """
        state = self._state
        run = state.source.run
        if state.count > run.steps or state.ends > run.ends:
            # Another process cannot read what is in memory.
            if self._flush is not None:
                self._flush()
            now = state.source.refreshed().run
            if state.count > now.steps or state.ends > now.ends:
                raise InvalidError(
                    f"cannot pickle transitions of {state.count} steps of run {run.run_id!r}, of "
                    f"which {now.steps} are committed",
                    hint="close the recorder first, or call its flush()",
                )
        return _restore, (
            state.source,
            self._options,
            run.uid,
            state.count,
            state.ends,
            state.start,
        )

    def __repr__(self) -> str:
        """Return the id of the run, the number of transitions and the fields, on one line."""
        lacks = self._state.lacks
        what = describe(self) if lacks is None else f"no {lacks} yet"
        return f"Transitions({self._state.source.run.run_id!r}, {what})"

    def _is_live(self) -> bool:
        if not self._follow:
            return False
        self.refresh()
        return self._state.source.is_live

    def _is_own(self) -> bool:
        return self._recent is not None or self._state.source.is_own

    def _size_now(self) -> RunSize:
        """Return the steps of the run, and how many transitions there are."""
        if self._follow:
            self.refresh()
        state = self._state
        last = self._options.last
        is_full = last is not None and state.count >= last
        return RunSize(state.count, state.length, is_full, state.steps_of)


def _count(n: int | None, sampler: KeySampler | None) -> int:
    """Return how many transitions a batch has."""
    if sampler is None or n is not None:
        count = as_int("n", n, at_least=1)
        if sampler is not None and count != sampler.batch_size:
            raise InvalidError(
                f"the sampler has batch_size={sampler.batch_size}, but `n` is {count}",
                hint="leave out `n`",
            )
        return count
    return sampler.batch_size


def _drawer(
    seed: int | None, generator: np.random.Generator | None, sampler: KeySampler | None
) -> Drawer:
    if sampler is None:
        return _generator(seed, generator)
    if seed is not None or generator is not None:
        raise InvalidError("pass `sampler`, or `seed` or `generator`, not both")
    if not hasattr(sampler, "take"):
        raise InvalidTypeError(f"`sampler` must be a PrioritizedSampler, got {sampler!r}")
    return sampler


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


def _restore(  # noqa: PLR0917 - as pickled
    source: RunSource, options: Options, uid: str, count: int, ends: int, start: int
) -> Transitions:
    """Return the transitions that another process has, of the same steps."""
    run = source.run
    if run.uid != uid or run.steps < count or run.ends < ends:
        raise InvalidError(
            f"run {run.run_id!r} no longer has the {count} steps of these transitions",
            hint="make them again with run.transitions()",
        )
    return _with(options, GrowingTransitions(options).snapshot(source, count, ends).numbered(start))


def _with(
    options: Options, state: Snapshot, flush: Callable[[], None] | None = None
) -> Transitions:
    made = object.__new__(Transitions)
    made.__dict__.update(
        _options=options,
        _follow=False,
        _recent=None,
        _flush=flush,
        _growing=None,
        _version=0,
        _limit=RateLimit(Rate.of(), state.count),
        _workers=worker_count(None),
        _refreshing=threading.Lock(),
        _state=state,
        _view=None,
        _snapshot_of=state,
        _has_warned=False,
    )
    call_after_fork(made)
    return made
