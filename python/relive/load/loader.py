"""`DataLoader`: batches for training, made ahead on threads, in a reproducible order."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from operator import add
from typing import Any, Final, NoReturn, Self

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int
from relive._interrupts import uninterrupted
from relive.errors import ClosedError, InvalidError, InvalidTypeError
from relive.load.batches import (
    BatchStream,
    Input,
    SourceLike,
    as_inputs,
    closer_of,
    common_bounds,
    common_length,
    open_stream,
    pick_rows,
    snapshots,
)
from relive.load.custom import Order, SamplerLike, length_of, order_of
from relive.load.priority import PrioritizedSampler
from relive.load.sampler import Cursor, Sampler
from relive.load.transform import Transform
from relive.model.sharding import check_shared, shard
from relive.model.source import Source

_MAX_AHEAD: Final = 4096
"""The most batches prepared ahead, and the most threads; the core has the same limit."""
_MAX_PROCESSES: Final = 256
_MAX_ENDS: Final = 8
"""Streams without a batch before an error: their rows are not those of the sampler."""


class _Process:
    """This process. Asking the system for each batch would take as long as the rest of `next`."""

    id = os.getpid()


def _after_fork() -> None:
    _Process.id = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


class DataLoader:
    """Batches of one or more sources, gathered ahead on native threads.

    Endless by default: iterate `loader.epoch()` for one epoch at a time, or limit each
    iteration with `epochs=`. Batches are dicts of arrays that belong to the consumer: memory is
    reused only when no array refers to it. The stream depends only on the arguments and the
    position, never on the number of workers.

    Args:
        sources: One source, whose fields are those of a batch; or two, named `data` and
            `label`; or one dict of sources. Arrays and paths of `.npy` files are sources too. A
            source that has a name and several fields is a dict inside the batch.
        batch_size: Samples per batch and rank.
        mode: `"shuffle"`, `"random"`, `"sequential"` or `"block"`; see `Sampler`.
        seed: Chooses the order, and the `rng` of transforms.
        sampler: A `Sampler` or `PrioritizedSampler`, or any iterable of index arrays or of pairs
            `(indices, extras)`, instead of batch_size, mode, tail, window, stride, partitions, rank
            and world_size. The arrays of the dict `extras` join the batch. With an iterable, `seed`
            still seeds transforms.
        epochs: How many epochs one iteration has; iterating again goes on with the next ones.
            Endless if None.
        tail: What happens if an epoch does not fill its last step: `"wrap"`, `"drop"`, `"pad"`,
            `"keep"` or `"error"`; see `Sampler`. With `"pad"` a batch has a `mask`.
        window: Rows per sample; see `Sampler`.
        stride: Rows between the starts of windows, or rows per block; see `Sampler`. Without it,
            the blocks of `mode="block"` are those of the source, such as the row groups of a
            published table.
        partitions: With `mode="block"`, the parts into which the blocks of each epoch are divided
            so that ranks read different blocks; see `Sampler`.
        rank: The number of this process; `RANK` from the environment, or 0, if None.
        world_size: How many processes share the stream; `WORLD_SIZE` from the environment, or
            1, if None.
        workers: Threads that gather and transform. With 0 the consumer's thread does it.
        prefetch: Batches prepared ahead; of small ones at least as many as workers make at
            once.
        transform: `transform(batch)` or `transform(batch, rng)`, called by the workers.
        transform_workers: Processes that run the transform, instead of threads.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> data = {"image": np.zeros((100, 8, 8), np.uint8), "label": np.arange(100)}
        >>> with relive.DataLoader(data, batch_size=32, tail="drop") as loader:
        ...     shapes = [batch["image"].shape for batch in loader.epoch()]
        >>> shapes
        [(32, 8, 8), (32, 8, 8), (32, 8, 8)]
    """

    def __init__(
        self,
        *sources: SourceLike | Mapping[str, SourceLike],
        batch_size: int = 256,
        mode: str = "shuffle",
        seed: int = 0,
        sampler: SamplerLike | None = None,
        epochs: int | None = None,
        tail: str = "wrap",
        window: int | None = None,
        stride: int | None = None,
        partitions: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        workers: int = 2,
        prefetch: int = 4,
        transform: Callable[..., Any] | None = None,
        transform_workers: int = 0,
    ) -> None:
        self._sources = as_inputs(sources)
        self._taken = snapshots(self._sources)
        self._inputs = self._taken
        length = common_length(self._taken)
        self._custom: Order | None = None
        self._has_sampler = sampler is not None
        self._has_blocks = sampler is None and mode == "block" and stride is None
        if sampler is None:
            own, world = shard(rank, world_size)
            sampler = Sampler(
                length,
                batch_size,
                mode,
                seed=seed,
                window=window,
                stride=stride,
                rank=own,
                world_size=world,
                tail=tail,
                blocks=common_bounds(self._taken) if self._has_blocks else None,
                partitions=partitions,
            )
        elif rank is not None or world_size is not None:
            raise InvalidError(
                "`rank` and `world_size` cannot be passed together with `sampler`",
                hint="pass rank= and world_size= to the Sampler",
            )
        elif isinstance(sampler, Sampler):
            check_shared(sampler.world_size)
        if isinstance(sampler, Sampler):
            if sampler.length != length:
                raise InvalidError(
                    f"the sampler has length={sampler.length}, but the source has {length} rows"
                )
            self._sampler = sampler
        else:
            self._custom = order_of(
                sampler, self._names(), length, [entry.source for entry in self._taken]
            )
            if isinstance(sampler, PrioritizedSampler):
                seed = sampler.seed
            self._sampler = Sampler(length, 1, seed=seed)
        self._epochs = None if epochs is None else as_int("epochs", epochs, at_least=1)
        self._workers = as_int("workers", workers, at_most=_MAX_AHEAD)
        self._prefetch = as_int("prefetch", prefetch, at_least=1, at_most=_MAX_AHEAD)
        self._transform = None if transform is None else Transform(transform, self._sampler.seed)
        self._transform_workers = as_int(
            "transform_workers", transform_workers, at_most=_MAX_PROCESSES
        )
        self._check()
        # After the last batch that was returned.
        self._cursor: Any = self._sampler.cursor if self._custom is None else self._custom.start
        # The epoch before which other rows must be taken: those of now are all for a state only.
        self._until: int | None = None
        self._iteration = 0  # with `epochs=`, the number of the current iteration
        self._iterator: Callable[[], _Iteration | None] | None = None
        self._used = False  # since the iteration began
        self._ended = False
        # Where the last stream ended that had other rows than the sampler, and its sources.
        self._ended_at: tuple[Any, list[Source]] | None = None
        self._ends = 0  # how often in a row, without a batch
        self._stream: BatchStream | None = None
        self._stop: Callable[[], None] | None = None
        self._process = _Process.id
        self._taking: int | None = None  # the thread that is inside `__next__`
        self._locks: dict[int, tuple[threading.Lock, threading.RLock]] = {}

    # -- iteration ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Continue an endless stream; with `epochs=`, return an iterator of one iteration.

        While that iterator is used, this returns it again. After its end, or when it was dropped
        after some batches, this begins the next iteration. After a state was loaded, the
        iteration in which it was saved continues. A custom sampler is iterated again, unless it is
        an iterator.
        """
        if not self._restarts:
            return self
        iterator = None if self._iterator is None else self._iterator()
        is_dropped = self._used and self._iterator is not None and iterator is None
        if self._ended or self._is_over or is_dropped:
            self._begin_next()
            iterator = None
        if iterator is None:
            iterator = _Iteration(self)
            self._iterator = weakref.ref(iterator)
        return iterator

    def __next__(self) -> Any:  # noqa: C901 - a call more per batch would show
        """Return the next batch. If a signal handler raises meanwhile, the next call returns it."""
        if self._ended:
            raise StopIteration
        thread = threading.get_ident()
        if self._taking == thread:  # a signal handler raised during the last call
            self._pause()
        while True:
            stream = self._stream
            if stream is None or self._process != _Process.id:
                stream = self._started()
            self._used = True
            self._taking = thread
            if self._custom is not None:
                self._custom.returned = self._cursor
            try:
                batch = stream.next()
                after = stream.cursor
            except BaseException as error:
                if isinstance(error, ClosedError) and self._ended:  # another thread was last
                    raise StopIteration from None
                self._pause()
                if isinstance(error, StopIteration):
                    text = "a transform or source raised StopIteration"
                    raise RuntimeError(text) from error  # noqa: TRY004 - its type is not the problem
                raise
            if batch is not None:
                break
            if self._custom is not None and self._custom.ends_with_its_rows:
                self._pause()
                self._check_progress()
                continue  # the next stream has the rows of now
            if self._until is None or self._until == self._last_epoch:
                self._ended = True
                self._pause()
                raise StopIteration
            self._follow()  # the rows of a state have ended
        # Signal handlers run after calls, so none runs from here on, and the batch arrives.
        # Else another thread was faster. `max` would be a call.
        if after > self._cursor:  # noqa: PLR1730
            self._cursor = after
        self._taking = None
        return batch

    def epoch(self) -> Iterator[Any]:
        """Iterate over the rest of the current epoch.

        An epoch has the rows that the sources have when it starts. With `tail="wrap"`, a batch
        belongs to the epoch in which it starts.
        """
        sampler = self._known()
        if self._is_over:
            self._begin_next()
        elif sampler.is_at_start(self._now()):
            self._follow()
        samples = self._sampler.samples_per_epoch
        end = (self.position // samples + 1) * samples
        # A loop, since signal handlers may run after a call of `next` and lose its batch.
        for batch in _Iteration(self):
            yield batch
            if self.position >= end:
                return

    def __len__(self) -> int:
        """Count the batches of one iteration with `epochs=`."""
        if self._custom is not None:
            return length_of(self._custom)
        steps = self._sampler.native(self._epochs).total_steps
        if steps is None:
            raise InvalidTypeError(
                "an endless loader has no length",
                hint="use steps_per_epoch, or pass epochs=",
            )
        return steps

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch; with `tail="wrap"`, those that start in the first one."""
        return self._known().steps_per_epoch

    # -- position ----------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The position in the global order, in samples of all ranks.

        An epoch counts as many as it has with the current number of rows.
        """
        self._known()
        return int(self._now()[0])

    @property
    def epoch_number(self) -> int:
        """The epoch of the next batch, from 0."""
        return self.position // self._sampler.samples_per_epoch

    def seek(self, step: int) -> None:
        """Move to the position after `step` batches from the start."""
        step = as_int("step", step)
        self._known()
        if self._until is not None:
            self._follow()
        if self._epochs is None:
            core = self._sampler.native()
            core.seek(step)
            self._move(core.cursor, 0)
            return
        iteration, step = divmod(step, len(self))
        position, *counts = self._start_of(self._sampler, iteration)
        core = self._sampler.native(self._epochs)
        core.seek(step)
        self._move(tuple(map(add, (position, *counts), core.cursor)), iteration)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was returned, not the last prefetched."""
        if self._custom is None:
            state = self._sampler.state_at(self._now())
            if self._epochs is not None:
                state |= {"iteration": self._iteration, "epochs": self._epochs}
            return state
        self._check_process()
        return self._custom.state(self._now())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; batch size, world size and workers may have changed since."""
        if self._custom is None:
            self._load(state)
            return
        self._check_process()
        self._pause()  # no thread draws from the sampler
        self._move(self._custom.load(state), 0)

    def _load(self, state: Mapping[str, Any]) -> None:
        taken = snapshots(self._sources)
        inputs, sampler = self._cut(taken)
        until = None
        length = state.get("length") if isinstance(state, Mapping) else None
        sampler = sampler.resuming(state)
        changes = any(
            new.source is not live.source for new, live in zip(taken, self._sources, strict=True)
        )
        if changes and not self._has_sampler and isinstance(length, int) and length > 0:
            before = sampler.resized(length)
            cursor = before.cursor_of(state)
            if before.is_at_start(cursor):
                cursor = _moved(cursor, before, sampler)
            elif length > sampler.length:
                raise InvalidError(
                    f"cannot resume: the state was saved with {length} rows, "
                    f"but the source has {sampler.length}",
                    hint="start the loader anew, or restore the rows",
                )
            elif length < sampler.length:
                # The epoch of the state ends with its rows; the next one has all.
                inputs, sampler = pick_rows(taken, range(length)), before
                until = before.epoch_of(cursor) + 1
        else:
            cursor = sampler.cursor_of(state)
        iteration, ended = 0, False
        if self._epochs is not None:
            epoch = sampler.epoch_of(cursor)
            iteration = epoch // self._epochs
            if state.get("epochs") == self._epochs and "iteration" in state:
                iteration = as_int("iteration", state["iteration"])
                ended = epoch >= (iteration + 1) * self._epochs
        self._pause()
        self._taken, self._inputs, self._sampler, self._until = taken, inputs, sampler, until
        self._cursor, self._iteration, self._ended = cursor, iteration, ended
        self._used, self._iterator = False, None

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Stop all threads and processes. Batches stay valid; iterating starts them again."""
        self._pause()

    def __enter__(self) -> Self:
        """Use the loader in a `with` block, which closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the loader."""
        self.close()

    def __repr__(self) -> str:
        """Return the sources and the order, on one line."""
        names = [group or name for entry in self._inputs for group, name in entry.names.values()]
        order = f"batches of {self._sampler.batch_size}"
        if self._custom is not None:
            order = f"batches of a {type(self._custom.sampler).__name__}"
        return (
            f"{type(self).__name__}({common_length(self._inputs)} rows: "
            f"{', '.join(dict.fromkeys(names))}; "
            f"{order}, {self._workers} workers)"
        )

    def __reduce__(self) -> NoReturn:
        """Raise: threads and their queues cannot be copied."""
        raise InvalidTypeError(
            "a loader cannot be pickled or copied",
            hint="pickle its state_dict() and make a loader from it",
        )

    # -- making the stream -------------------------------------------------------------------

    def _allocator(self) -> Callable[[int], npt.NDArray[np.uint8]] | None:
        """Return a function that allocates memory for batches; None for that of the core."""
        return None

    def _finish(self, stream: BatchStream) -> BatchStream:
        """Return a stream that converts batches; adapters override this."""
        return stream

    @property
    def _restarts(self) -> bool:
        if self._custom is not None:
            return self._custom.restarts
        return self._epochs is not None

    def _known(self) -> Sampler:
        """Return the sampler; raise if it is custom, which has no epochs and positions."""
        if self._custom is not None:
            raise InvalidError(
                "a loader with a custom sampler has no epochs or positions",
                hint="iterate over the loader, or use relive.Sampler",
            )
        return self._sampler

    @property
    def _changing(self) -> threading.Lock:
        """A lock for changes of the stream, because any thread may call close()."""
        return self._own_locks[0]

    @property
    def _starting(self) -> threading.RLock:
        """A lock for the making of a stream, which calls functions of the user."""
        return self._own_locks[1]

    @property
    def _own_locks(self) -> tuple[threading.Lock, threading.RLock]:
        """The locks of this process: a thread that held them during a fork never releases them."""
        return self._locks.setdefault(_Process.id, (threading.Lock(), threading.RLock()))

    def _now(self) -> Any:
        return self._cursor

    @property
    def _last_epoch(self) -> int | None:
        """The epoch before which the current iteration ends; None if it is endless."""
        return None if self._epochs is None else (self._iteration + 1) * self._epochs

    @property
    def _is_over(self) -> bool:
        """Whether the current iteration has no batch left."""
        last = self._last_epoch
        return last is not None and self._sampler.epoch_of(self._cursor) >= last

    def _started(self) -> BatchStream:
        self._check_process()
        with self._starting:
            if self._stream is not None:
                return self._stream
            stream, starts = self._open()
            return uninterrupted(lambda: self._adopt(stream, starts))

    def _check_process(self) -> None:
        """Raise if the threads of the loader are those of the parent process."""
        if self._stream is not None and self._process != _Process.id:
            raise ClosedError(
                "this loader was started before the process was forked, and its threads do not "
                "exist in this process",
                hint="create the loader in the process that uses it",
            )

    def _check_progress(self) -> None:
        """Raise if the streams of the same rows end again and again without a batch.

        One may, if another thread changes the rows of the sampler meanwhile.
        """
        cursor, sources = self._cursor, [entry.source for entry in self._taken]
        before, self._ended_at = self._ended_at, (cursor, sources)
        is_same = before is not None and before[0] == cursor and _are_same(before[1], sources)
        self._ends = self._ends + 1 if is_same else 0
        if self._ends >= _MAX_ENDS:
            self._ended_at = None
            raise InvalidError(
                "the sampler draws rows that the source of the loader does not have",
                hint="pass the source of the sampler to the loader",
            )

    def _open(self) -> tuple[BatchStream, list[Callable[[], None]]]:
        """Make a stream and do not start it. This calls functions of the user."""
        order: Any = self._custom
        if self._custom is None:
            ends = [epoch for epoch in (self._until, self._last_epoch) if epoch is not None]
            order = self._sampler.native(min(ends, default=None))
            order.cursor = self._cursor
        else:
            self._taken = self._inputs = snapshots(self._sources)
            length = common_length(self._taken)
            rows = self._custom.rows_of(length, [entry.source for entry in self._taken])
            if not isinstance(rows, range) or len(rows) != length:
                self._inputs = pick_rows(self._taken, rows)
        stream, starts = open_stream(
            self._inputs,
            order,
            cursor=self._cursor,
            masked=self._sampler.tail == "pad",
            workers=self._workers,
            prefetch=self._prefetch,
            transform=self._transform,
            transform_workers=self._transform_workers,
            allocate=self._allocator(),
        )
        return self._finish(stream), starts

    def _adopt(self, stream: BatchStream, starts: list[Callable[[], None]]) -> BatchStream:
        """Start a stream, and use it."""
        with self._changing:  # a thread that calls close() waits for the start
            if self._stream is not None:  # a signal handler that used this loader was faster
                stream.close()
                return self._stream
            try:
                for start in starts:
                    start()
            except BaseException:
                stream.close()
                raise
            self._stream = stream
            self._process = _Process.id
            # Threads must end with the loader, even without close(), and also if what the user
            # passed to the loader refers to it, which the stream does.
            self._stop = weakref.finalize(self, _close_in, _Process.id, closer_of(stream))
        return stream

    def _pause(self) -> None:
        """Stop the stream; the next batch comes from a new one."""
        with self._changing:  # another thread may be about to start it
            stream = self._stream
        if stream is not None and self._process == _Process.id:
            uninterrupted(lambda: self._stop_stream(stream))
        self._taking = None

    def _stop_stream(self, stream: BatchStream) -> None:
        """Stop a stream, unless another call did."""
        with self._changing:
            stop = self._stop
            if self._stream is not stream or stop is None:
                return
            self._stream = None
        stop()

    def _move(self, cursor: Any, iteration: int) -> None:
        """Continue at a position of an iteration."""
        self._pause()
        # Without calls in between, so that no signal handler sees a half of it.
        self._cursor, self._iteration = cursor, iteration
        self._used, self._ended, self._iterator = False, False, None

    def _begin_next(self) -> None:
        """Move to the start of the next iteration, with the rows of now."""
        if self._custom is not None:
            self._pause()  # no thread draws from the sampler
            self._move(self._custom.restart(), 0)
            return
        taken = snapshots(self._sources)
        inputs, sampler = self._cut(taken)
        iteration = self._iteration + 1
        cursor = self._start_of(sampler, iteration)
        self._pause()
        self._taken, self._inputs, self._sampler, self._until = taken, inputs, sampler, None
        self._cursor, self._iteration = cursor, iteration
        self._used, self._ended, self._iterator = False, False, None

    def _follow(self) -> None:
        """Use the rows that the sources have now, at the start of an epoch."""
        taken = snapshots(self._sources)
        inputs, sampler = self._cut(taken)
        is_same = all(new.source is old.source for new, old in zip(taken, self._taken, strict=True))
        if is_same and sampler is self._sampler and self._until is None:
            return
        cursor = self._cursor
        if sampler is not self._sampler:
            cursor = _moved(cursor, self._sampler, sampler)
        self._pause()
        self._taken, self._inputs, self._sampler, self._until = taken, inputs, sampler, None
        self._cursor = cursor

    def _cut(self, taken: list[Input]) -> tuple[list[Input], Sampler]:
        """Return the rows to use, and a sampler of them."""
        length, known = common_length(taken), self._sampler.length
        if length == known:
            return taken, self._sampler
        if not self._has_sampler:
            blocks = common_bounds(taken) if self._has_blocks else None
            return taken, self._sampler.resized(length, blocks)
        if length < known:
            raise InvalidError(
                f"the sampler has length={known}, but the source has only {length} rows",
                hint="make a loader with another sampler",
            )
        return pick_rows(taken, range(known)), self._sampler

    def _start_of(self, sampler: Sampler, iteration: int) -> Cursor:
        """Return where an iteration with `epochs=` begins."""
        epochs = iteration * (self._epochs or 0)
        core = sampler.native()
        if sampler.tail == "wrap":
            return epochs * core.samples_per_epoch, 0, 0
        core.seek(epochs * core.steps_per_epoch)
        return core.cursor

    def _names(self) -> set[str]:
        """Return the names that the sources have in a batch."""
        return {group or name for entry in self._inputs for group, name in entry.names.values()}

    def _check(self) -> None:
        if self._custom is not None and self._epochs is not None:
            raise InvalidError(
                "`epochs` cannot be used with a custom sampler", hint="use relive.Sampler"
            )
        self._sampler.native(self._epochs)  # checks the epochs
        if self._transform_workers and self._transform is None:
            raise InvalidError("`transform_workers` needs a `transform`")
        names = self._names()
        if self._sampler.tail == "pad" and "mask" in names:
            raise InvalidError(
                'tail="pad" adds a `mask` to batches, but a source has a field of that name',
                hint="name the source: DataLoader({'obs': source})",
            )


class _Iteration:
    """An iterator over the batches of a loader until it ends."""

    __slots__ = ("__weakref__", "_loader")

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._loader.__next__()  # no signal handler runs after it, unlike after `next`
        except BaseException:
            # A traceback may keep this object alive.
            self._loader._iterator = _dropped  # noqa: SLF001 - in this module
            raise


def _dropped() -> None:
    """Stand for the weak reference to an iterator that is gone."""


def _moved(cursor: Cursor, before: Sampler, after: Sampler) -> Cursor:
    """Return the start of the epoch of a cursor in a sampler of another length."""
    if before.length == after.length:
        return cursor
    _, omitted, repeated = cursor
    return before.epoch_of(cursor) * after.samples_per_epoch, omitted, repeated


def _are_same(sources: list[Source], others: list[Source]) -> bool:
    return all(source is other for source, other in zip(sources, others, strict=True))


def _close_in(process: int, close: Callable[[], None]) -> None:
    # In a forked child the threads belong to the parent.
    if process == _Process.id:
        close()
