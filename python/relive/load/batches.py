"""How batches are made: rows are gathered, transformed, put in order and converted."""

import math
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import type_name
from relive.errors import ClosedError, InvalidError, InvalidTypeError
from relive.load.priority import PrioritizedOrder
from relive.load.sampler import Draw, draw_native
from relive.load.transform import Transform, TransformProcesses
from relive.model.ragged import Ragged
from relive.model.select import Subset
from relive.model.source import IndexArray, Rows, Source
from relive.store.arrays import ArrayLike, ArraySource

if TYPE_CHECKING:
    from relive.load.custom import Order

SourceLike: TypeAlias = Source | ArrayLike
"""A source, or anything that `ArraySource` takes."""

_POSITIONAL: Final = ("data", "label")
_CLOSE_S: Final = 5.0
"""How long `close` waits for a transform or `gather` that is still running."""
_RELEASE_S: Final = 1.0
_POLL_S: Final = 0.05
"""How often a consumer that waits lets Python handle signals. One that arrives just before the
thread sleeps does not wake it."""


Forms: TypeAlias = dict[str, tuple[Any, ...]]


@dataclass(slots=True, frozen=True)
class Input:
    """A source, and the names of its fields in a batch."""

    source: Source
    names: dict[str, tuple[str | None, str]]
    """Per field its name in a batch, after the name of a nested dict or None."""
    forms: Forms
    """Dtype and shape of each field when the loader was made."""


def as_inputs(sources: tuple[SourceLike | Mapping[str, SourceLike], ...]) -> list[Input]:
    """Return the sources of a loader with the names that their fields have in a batch.

    The fields of a single source keep their names. Two sources are named `data` and `label`,
    and a dict has its keys: the name of the only field of a source, or of a dict of its fields.
    """
    if not sources:
        raise InvalidError(
            "a DataLoader must have at least one source", hint="DataLoader(source, batch_size=256)"
        )
    if len(sources) > len(_POSITIONAL):
        raise InvalidError(
            f"a DataLoader takes at most two sources by position, got {len(sources)}",
            hint="pass one dict: DataLoader({'image': a, 'state': b, 'action': c})",
        )
    named: dict[Any, Any] = dict(zip(_POSITIONAL, sources, strict=False))
    if len(sources) == 1:
        (only,) = sources
        if not isinstance(only, Mapping):
            source = _as_source("source", only)
            return [_input(source, {field: (None, field) for field in source.fields})]
        named = dict(only)
    if not named:
        raise InvalidError("a DataLoader must have at least one source, got an empty dict")
    return [_named(name, value) for name, value in named.items()]


def snapshots(inputs: list[Input]) -> list[Input]:
    """Return snapshots of the sources, which must still have the same fields."""
    return [_with(entry, entry.source.snapshot()) for entry in inputs]


def pick_rows(inputs: list[Input], rows: Rows) -> list[Input]:
    """Return these rows of the sources, in that order."""
    return [_with(entry, Subset(entry.source, rows)) for entry in inputs]


def _with(entry: Input, source: Source) -> Input:
    if source is not entry.source and _forms(source) != entry.forms:
        raise InvalidError(
            f"the fields of the source `{_label(entry)}` have changed since the loader was made: "
            f"they were {', '.join(entry.forms)}, and are {', '.join(source.fields)}",
            hint="make a new loader, and load the state_dict() of this one into it",
        )
    return Input(source, entry.names, entry.forms)


def _forms(source: Source) -> Forms:
    """Return dtype and shape of each field."""
    return {name: (field.dtype, field.shape, field.ragged) for name, field in source.fields.items()}


def common_length(inputs: list[Input]) -> int:
    """Return the number of rows, which must be the same for all sources."""
    lengths = {_label(entry): len(entry.source) for entry in inputs}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{label!r} has {length}" for label, length in lengths.items())
        raise InvalidError(f"all sources must have the same number of rows: {text}")
    length = next(iter(lengths.values()))
    if length == 0:
        raise InvalidError("cannot create a DataLoader: the source has no rows")
    return length


def common_bounds(inputs: list[Input]) -> IndexArray | None:
    """Return the blocks of the first source that is read in blocks; None if there is none."""
    found = (entry.source.block_bounds() for entry in inputs)
    return next((bounds for bounds in found if bounds is not None), None)


def _named(name: object, value: Any) -> Input:
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"the name of a source must be a string, got {name!r}")
    source = _as_source(name, value)
    if len(source.fields) == 1:
        (field,) = source.fields
        return _input(source, {field: (None, name)})
    return _input(source, {field: (name, field) for field in source.fields})


def _input(source: Source, names: dict[str, tuple[str | None, str]]) -> Input:
    return Input(source, names, _forms(source))


def _as_source(name: str, value: Any) -> Source:
    if isinstance(value, Source):
        return value
    if isinstance(value, np.ndarray | Ragged | str | os.PathLike | Mapping) or any(
        hasattr(value, name) for name in ("__array__", "__array_interface__")
    ):
        return ArraySource(value)
    raise InvalidTypeError(
        f"`{name}` must be an array, a dict of arrays, the path of a .npy file or a relive.Source, "
        f"got {type_name(type(value))}"
    )


def _label(entry: Input) -> str:
    group, name = next(iter(entry.names.values()))
    return group or name


class BatchStream(Protocol):
    """Batches in order, made ahead of the consumer."""

    @property
    def cursor(self) -> Any:
        """The position after the last batch that was returned."""

    def next(self) -> Any:
        """Return the next batch; None at the end."""

    def close(self) -> None:
        """Stop all threads and processes and wait for them."""


def closer_of(stream: BatchStream) -> Callable[[], None]:
    """Return what closes a stream, without a reference to what the user passed to the loader.

    A stream of the core refers to nothing of the user.
    """
    closer: Callable[[], None] = getattr(stream, "closer", stream.close)
    return closer


def open_stream(
    inputs: list[Input],
    order: "_native.Sampler | Order",
    *,
    cursor: Any,
    masked: bool,
    workers: int,
    prefetch: int,
    transform: Transform | None,
    transform_workers: int,
    allocate: Callable[[int], npt.NDArray[np.uint8]] | None,
) -> tuple[BatchStream, list[Callable[[], None]]]:
    """Return a stream of batches, and functions that start its threads and processes.

    The core gathers if it can read all sources and knows the order; otherwise threads call
    `gather` of the sources. A transform runs on further threads, or in processes.

    At most `prefetch` batches are drawn by priority ahead of the consumer. So there are no more
    workers than that, and threads that transform such batches draw and gather them too: two
    queues would be twice as long.
    """
    counter = order if isinstance(order, _native.Sampler) else None
    options: dict[str, Any] = {}
    if isinstance(order, PrioritizedOrder):
        workers, transform_workers = min(workers, prefetch), min(transform_workers, prefetch)
        if transform is None:
            counter = order.positions(cursor)
            options = order.options()
    draws: Iterator[Draw]
    starts: list[Callable[[], None]] = []
    release: list[Callable[[], None]] = []
    tables = [entry.source.native_table() for entry in inputs]
    native = [table for table in tables if table is not None]
    if counter is not None and len(native) == len(tables):
        gathered = _native.Prefetch(
            native,
            [name for entry in inputs for name in entry.names.values()],
            sampler=counter,
            workers=workers,
            depth=prefetch,
            make_ragged=Ragged,
            allocate=allocate,
            **options,
        )
        if transform is None:
            numbered = order.numbered() if isinstance(order, PrioritizedOrder) else None
            return (gathered if numbered is None else ConvertedBatches(gathered, numbered)), starts
        draws = _gathered_draws(gathered)
        release.append(gathered.close)
    elif isinstance(order, _native.Sampler):
        draws = draw_native(order, masked=masked)
    else:
        draws = order.draws(cursor, common_length(inputs))

    processes = None
    if transform is not None and transform_workers:
        processes = TransformProcesses(transform, transform_workers)
        starts.append(processes.start)
        release.append(processes.close)
        workers = transform_workers

    def work(draw: Draw, worker: int) -> Any:
        batch = _gather(inputs, draw) if draw.batch is None else draw.batch
        if processes is not None:
            return processes(batch, draw.first, worker)
        return batch if transform is None else transform(batch, draw.first)

    if workers == 0:
        return InlineBatches(draws, work, cursor=cursor, release=release), starts
    batches = OrderedBatches(
        draws, work, workers=workers, depth=prefetch, cursor=cursor, release=release
    )
    starts.append(batches.start)
    return batches, starts


def _gathered_draws(batches: "_native.Prefetch") -> Iterator[Draw]:
    while (batch := batches.next()) is not None:
        yield Draw(batches.first, batches.cursor, batch=batch)


def _gather(inputs: list[Input], draw: Draw) -> dict[str, Any]:
    assert draw.rows is not None  # noqa: S101 - a draw has rows or a batch
    batch: dict[str, Any] = {}
    for entry in inputs:
        found = entry.source.gather(draw.rows)
        for field, (group, name) in entry.names.items():
            target = batch if group is None else batch.setdefault(group, {})
            target[name] = _checked(entry.source, field, found, draw.rows.shape)
    if draw.mask is not None:
        batch["mask"] = draw.mask
    for name, values in (draw.extras or {}).items():
        if name in batch:
            raise InvalidError(
                f"the sampler returned the extra {name!r}, but a source has a field of that name",
                hint="name the source: DataLoader({'step': source})",
            )
        batch[name] = values
    return batch


def _checked(source: Source, field: str, found: object, shape: tuple[int, ...]) -> Any:
    """Return a field of what a source gathered, after checking the number of rows."""
    kind = type(source).__name__
    if not isinstance(found, Mapping):
        raise InvalidError(f"{kind}.gather must return a dict, got {type_name(type(found))}")
    if field not in found:
        raise InvalidError(
            f"{kind}.gather did not return the field {field!r}",
            hint=f"it returned {', '.join(map(repr, found)) or 'no fields'}",
        )
    values = found[field]
    rows: tuple[int, ...] = getattr(values, "shape", ())[: len(shape)]
    if isinstance(values, Ragged):
        rows, shape = (len(values),), (math.prod(shape),)
    if rows != shape:
        raise InvalidError(
            f"{kind}.gather returned {field!r} with the leading dimensions {rows}, "
            f"but the indices have the shape {shape}"
        )
    return values


class _Slot:
    """One batch in the queue, being made or ready."""

    __slots__ = ("done", "draw", "error", "result")

    def __init__(self, draw: Draw | None, error: BaseException | None = None) -> None:
        self.draw = draw
        self.result: Any = None
        self.error = error
        self.done = error is not None


class _Signal:
    """Wakes a thread that waits. Signal handlers may raise in any of its methods."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def send(self) -> None:
        """Let one `wait` return, the current or the next one. Called by one thread at a time."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> None:
        """Wait for `send`, or for a time. It may have been sent for something that is over."""
        self._lock.acquire(timeout=timeout_s)


class _ThreadControl:
    """What the threads of a stream hold while they wait, and what ends them.

    It does not refer to anything of the user. A thread that held the transform or the sampler
    while it waits would keep them, and if they refer to the loader also that, forever.
    """

    def __init__(self, release: Sequence[Callable[[], None]] = ()) -> None:
        self.lock = threading.Lock()
        self.drawing = threading.Lock()
        self.ready = _Signal()  # a batch is ready, or there are no more
        self.room = _Signal()  # the queue has room, or is closed
        self.is_closed = False
        self.threads: list[threading.Thread] = []
        self._release = release

    def close(self) -> None:
        """Stop the threads and wait for them."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            self.ready.send()
            self.room.send()
        if threading.current_thread() in self.threads:
            # The garbage collector called this on a worker, which cannot wait for itself.
            threading.Thread(target=self._end, name="relive-batches-end", daemon=True).start()
        else:
            self._end()

    def _end(self) -> None:
        self._join(time.monotonic() + _CLOSE_S)
        for release in self._release:
            release()
        if self._release:  # threads that waited for a released resource can end
            self._join(time.monotonic() + _RELEASE_S)
        if any(thread.is_alive() for thread in self.threads):
            warnings.warn(
                f"a transform or gather did not return within {_CLOSE_S:.0f} s of close(); "
                "its thread ends when it returns",
                RuntimeWarning,
                stacklevel=3,
            )

    def _join(self, deadline: float) -> None:
        for thread in self.threads:
            if thread.ident is not None:  # it was started
                thread.join(max(0.0, deadline - time.monotonic()))


class InlineBatches:
    """Batches made by `work(draw, 0)` on the consumer's thread when they are asked for."""

    def __init__(
        self,
        draws: Iterator[Draw],
        work: Callable[[Draw, int], Any],
        *,
        cursor: Any,
        release: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.cursor = cursor
        self._draws = draws
        self._work = work
        self._control = _ThreadControl(release)

    @property
    def closer(self) -> Callable[[], None]:
        """What releases the resources that the batches are made from."""
        return self._control.close

    def next(self) -> Any:
        """Return the next batch; None at the end."""
        if self._control.is_closed:
            raise ClosedError("this loader is closed")
        draw = next(self._draws, None)
        if draw is None:
            return None
        result = self._work(draw, 0)
        self.cursor = draw.after
        return result

    def close(self) -> None:
        """Release what the batches were made from."""
        self._control.close()


class OrderedBatches:
    """Batches made by `work(draw, worker)` on several threads, in the order of `draws`.

    One thread at a time takes from `draws`. An error in either is raised in the position of
    its batch, with its own traceback. The threads are daemons, and `close` waits for them a
    limited time: a transform that never returns must not block the end of the program. While a
    thread waits it does not refer to this object.

    `next` may be called on the main thread, where a signal handler can raise between any two
    steps. A `threading.Condition` would then keep its lock or release it twice; locks of the
    interpreter, used with `with`, do not.
    """

    def __init__(
        self,
        draws: Iterator[Draw],
        work: Callable[[Draw, int], Any],
        *,
        workers: int,
        depth: int,
        cursor: Any,
        release: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.cursor = cursor
        self._draws = draws
        self._work = work
        self._depth = max(depth, workers)
        self._control = _ThreadControl(release)
        self._slots: deque[_Slot] = deque()
        self._ended = False
        self._workers = workers

    @property
    def closer(self) -> Callable[[], None]:
        """What stops the threads."""
        return self._control.close

    def start(self) -> None:
        """Start the threads."""
        self._control.threads = [
            threading.Thread(
                target=_serve,
                args=(self._control, weakref.ref(self), number),
                name=f"relive-batches-{number}",
                daemon=True,
            )
            for number in range(self._workers)
        ]
        for thread in self._control.threads:
            thread.start()

    def next(self) -> Any:
        """Return the next batch; None at the end."""
        while (slot := self._take()) is None:
            self._control.ready.wait(_POLL_S)
        if slot.error is not None:
            raise slot.error
        if slot.draw is not None:
            self.cursor = slot.draw.after
        return slot.result

    def close(self) -> None:
        """Stop the threads and wait for them."""
        self._control.close()
        self._slots.clear()

    def has_room(self) -> bool:
        """Return whether the queue has space for another batch."""
        return len(self._slots) < self._depth

    def claim(self) -> _Slot | None:
        """Take the next draw; None at the end. Called by one thread at a time."""
        if self._control.is_closed or self._ended:
            return None
        try:
            draw = next(self._draws, None)
            slot = None if draw is None else _Slot(draw)
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            slot = _Slot(None, error)
        with self._control.lock:
            self._ended = slot is None or slot.error is not None
            if slot is not None:
                self._slots.append(slot)
            self._wake_consumer()
        return slot

    def fill(self, slot: _Slot, worker: int) -> None:
        """Make the batch of a slot that has a draw."""
        try:
            slot.result = self._work(slot.draw, worker)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            slot.error = error
        with self._control.lock:
            slot.done = True
            self._wake_consumer()

    def _take(self) -> _Slot | None:
        """Return the next slot, an empty one at the end; None if it is not ready."""
        control = self._control
        with control.lock:
            if not self._has_next():
                return None
            slot = self._slots.popleft() if self._slots else _Slot(None)
            control.room.send()
            self._wake_consumer()  # there may be several
            if control.is_closed:
                raise ClosedError("this loader is closed")
            return slot

    def _has_next(self) -> bool:
        """Return whether a consumer has nothing to wait for; the lock is held."""
        return self._control.is_closed or (self._slots[0].done if self._slots else self._ended)

    def _wake_consumer(self) -> None:
        if self._has_next():
            self._control.ready.send()


def _serve(control: _ThreadControl, find: "weakref.ref[OrderedBatches]", worker: int) -> None:
    """Make batches until there are no more, or they are dropped."""
    while True:
        with control.drawing:
            while not _has_room(control, find):
                control.room.wait()
            batches = find()
            slot = None if batches is None else batches.claim()
        if batches is None or slot is None or slot.draw is None:
            return
        batches.fill(slot, worker)
        del batches, slot  # not kept while this waits


def _has_room(control: _ThreadControl, find: "weakref.ref[OrderedBatches]") -> bool:
    """Return whether a thread has nothing to wait for."""
    batches = find()
    return control.is_closed or batches is None or batches.has_room()


class ConvertedBatches:
    """A stream whose batches are passed through a function when they are returned."""

    def __init__(self, stream: BatchStream, function: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._function = function

    @property
    def cursor(self) -> Any:
        """The position after the last batch that was returned."""
        return self._stream.cursor

    def next(self) -> Any:
        """Return the next batch; None at the end."""
        batch = self._stream.next()
        return None if batch is None else self._function(batch)

    @property
    def closer(self) -> Callable[[], None]:
        """What closes the stream."""
        return closer_of(self._stream)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


def convert(value: Any, leaf: Callable[[Any, str], Any], name: str = "batch") -> Any:
    """Replace every array in nested dicts, lists, tuples and namedtuples by `leaf(array, name)`.

    A `Ragged` becomes a dict of its `values` and `offsets`. Any other value is passed to `leaf`
    as well.
    """
    if isinstance(value, np.ndarray):
        return leaf(value, name)
    if isinstance(value, Mapping):
        items = list(value.items())
        made = {key: convert(inner, leaf, str(key)) for key, inner in items}
        # The mapping of a framework without arrays, such as a TensorDict, keeps its type.
        same = not isinstance(value, dict) and all(made[key] is inner for key, inner in items)
        return value if same else made
    if isinstance(value, Ragged):
        if value.shapes is not None:
            raise InvalidTypeError(
                f"{name!r} has rows with several variable dimensions, "
                "which cannot be converted to one array",
                hint=f"pad it in a transform: batch[{name!r}].pad()",
            )
        return {"values": leaf(value.values, name), "offsets": leaf(value.offsets, name)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        made_of = zip(value._fields, value, strict=True)
        return type(value)(*(convert(inner, leaf, field) for field, inner in made_of))
    if type(value) in (list, tuple):
        return type(value)(convert(inner, leaf, name) for inner in value)
    return leaf(value, name)
