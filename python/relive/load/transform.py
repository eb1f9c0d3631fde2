"""Transforms of batches, on threads or in processes that share memory.

A batch is pickled with its arrays out of band: the bytes of the arrays go into a block of shared
memory, the rest, which is small, through a pipe. The result comes back in a block as well, and
its arrays are used without another copy. A block is reused when the last array in it is gone.
"""

import contextlib
import inspect
import mmap
import multiprocessing
import multiprocessing.process
import os
import pickle
import signal
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError, UnsupportedError, WorkerError

_Handle: TypeAlias = tuple[int, int, int]
"""The process, file descriptor and size of a block."""

_ALIGN: Final = 64
_EXIT_S: Final = 5.0
_GRACE_S: Final = 2.0
"""How long `close` waits for a process before it kills it."""
_MAX_LENT: Final = 128
"""How many blocks consumers may hold: each takes two file descriptors, which are limited."""


class Transform:
    """Calls `function(batch)`, or `function(batch, rng=rng)` where it has that parameter.

    `rng` depends only on the seed and on the global position of the first sample of the batch:
    it is the same for any number of workers, and different on each rank.
    """

    def __init__(self, function: Callable[..., Any], seed: int) -> None:
        if not callable(function):
            raise InvalidTypeError(f"`transform` must be callable, got {function!r}")
        self.function = function
        self.seed = seed
        self._rng_kind = _rng_kind(function)

    def __call__(self, batch: Any, first: int) -> Any:
        """Transform the batch whose first sample has the global position `first`."""
        if self._rng_kind is None:
            result = self.function(batch)
        else:
            rng = np.random.default_rng((self.seed, first))
            positional = self._rng_kind is inspect.Parameter.POSITIONAL_ONLY
            result = self.function(batch, rng) if positional else self.function(batch, rng=rng)
        if result is None:
            raise InvalidTypeError(
                "the transform returned None instead of a batch",
                hint="return the batch, even if it was changed in place",
            )
        return result


def _rng_kind(function: Callable[..., Any]) -> Any:
    """Return the kind of the parameter `rng` of a function; None if it has none."""
    try:
        found = inspect.signature(function).parameters.get("rng")
    except (TypeError, ValueError):  # built-in functions without a signature
        return None
    return None if found is None else found.kind


class RemoteTraceback(Exception):  # noqa: N818 - shown as the cause of the error it explains
    """The traceback of an error in the worker process."""

    def __str__(self) -> str:
        """Return the traceback as text."""
        return f"\n{self.args[0]}"


class TransformProcesses:
    """`count` processes that run a transform; one thread at a time calls worker `n`."""

    def __init__(self, transform: Transform, count: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise UnsupportedError(
                "`transform_workers` is supported only on Linux",
                hint="use threads: transform_workers=0",
            )
        try:
            self._work = pickle.dumps(transform)
        except Exception as error:
            raise InvalidError(
                f"the transform cannot be sent to another process: {error}",
                hint="define it at the top level of a module, or use threads: transform_workers=0",
            ) from error
        self._count = count
        self._blocks = _Blocks()
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def start(self) -> None:
        """Start the processes."""
        context = multiprocessing.get_context("spawn")
        for number in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, self._work),
                name=f"relive-transform-{number}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        _RUNNING.add(self)

    def __call__(self, batch: Any, first: int, worker: int) -> Any:
        """Transform a batch in process `worker`."""
        pipe = self._pipes[worker]
        try:
            return self._exchange(pipe, batch, first)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            process = self._processes[worker]
            process.join(_EXIT_S)
            raise WorkerError(
                f"a transform process ended with exit code {process.exitcode}",
                hint="check whether it ran out of memory; a script that starts processes needs "
                "`if __name__ == '__main__':` around its code",
            ) from error

    def _exchange(self, pipe: Connection, batch: Any, first: int) -> Any:
        data, buffers = _dump(batch)
        sent = self._blocks.take(_shared_bytes(buffers))
        spans = _store(buffers, sent.memory)
        given = self._blocks.take(len(sent.memory))
        pipe.send((first, data, sent.handle, spans, given.handle))
        answer = pipe.recv()
        while answer[0] == "room":
            self._blocks.put(given)
            given = self._blocks.take(answer[1])
            pipe.send(given.handle)
            answer = pipe.recv()
        # The block is not reused if the transform has kept an array of its input.
        if not answer[-1]:
            self._blocks.put(sent)
        if answer[0] == "error":
            self._blocks.put(given)
            _, error, text, _ = answer
            raise pickle.loads(error) from RemoteTraceback(text)  # noqa: S301
        _, data, spans, _ = answer
        return pickle.loads(data, buffers=_views(spans, self._blocks.lend(given)))  # noqa: S301

    def close(self) -> None:
        """Stop the processes; one that does not end in time is killed."""
        _RUNNING.discard(self)
        for pipe in self._pipes:
            with contextlib.suppress(OSError, ValueError):
                pipe.send(None)
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        # A thread may read from a pipe until its process has ended, so pipes close last.
        for pipe in self._pipes:
            pipe.close()
        self._blocks.close()

    def release_in_child(self) -> None:
        """Release in a forked child what belongs to the parent.

        An open pipe would keep the processes alive after the parent, and multiprocessing would
        stop them when the child exits.
        """
        for pipe in self._pipes:
            pipe.close()
        getattr(multiprocessing.process, "_children", set()).difference_update(self._processes)


_RUNNING: "weakref.WeakSet[TransformProcesses]" = weakref.WeakSet()


def _release_all() -> None:
    for processes in list(_RUNNING):
        processes.release_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)


class _Block:
    """Memory that another process can map by its handle."""

    __slots__ = ("__weakref__", "handle", "memory")

    def __init__(self, nbytes: int) -> None:
        descriptor = os.memfd_create("relive-batch")
        os.ftruncate(descriptor, nbytes)
        self.memory = mmap.mmap(descriptor, nbytes)
        self.handle = (os.getpid(), descriptor, nbytes)
        weakref.finalize(self, os.close, descriptor)


class _Blocks:
    """Blocks for reuse, last in, first out."""

    def __init__(self) -> None:
        self._free: list[_Block] = []
        self._lent: set[_Block] = set()
        self._open = True

    def take(self, nbytes: int) -> _Block:
        # Single calls on a list or set are atomic, so threads need no lock.
        for _ in range(len(self._free)):
            with contextlib.suppress(IndexError):
                block = self._free.pop()
                if len(block.memory) >= nbytes:
                    return block
                # Batches have similar sizes, so a block that is too small is not kept.
        size = max(mmap.PAGESIZE, 1 << (max(nbytes, 1) - 1).bit_length())
        return _Block(size)

    def put(self, block: _Block) -> None:
        if self._open:
            self._free.append(block)

    def lend(self, block: _Block) -> npt.NDArray[np.uint8]:
        """Return the memory as an array; the block is reused when its last view is gone."""
        array = np.frombuffer(block.memory, np.uint8)
        if len(self._lent) >= _MAX_LENT:
            copy = array.copy()
            self.put(block)
            return copy
        self._lent.add(block)
        weakref.finalize(array, self._take_back, block).atexit = False
        return array

    def _take_back(self, block: _Block) -> None:
        self._lent.discard(block)
        self.put(block)

    def close(self) -> None:
        self._open = False
        self._free.clear()


def _dump(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return data, buffers


def _shared_bytes(buffers: Sequence[pickle.PickleBuffer]) -> int:
    return sum(-(-buffer.raw().nbytes // _ALIGN) * _ALIGN for buffer in buffers)


def _store(buffers: Sequence[pickle.PickleBuffer], memory: mmap.mmap) -> list[tuple[int, int]]:
    target = np.frombuffer(memory, np.uint8)
    spans = []
    start = 0
    for buffer in buffers:
        raw = np.frombuffer(buffer.raw(), np.uint8)
        target[start : start + len(raw)] = raw
        spans.append((start, len(raw)))
        start += -(-len(raw) // _ALIGN) * _ALIGN
    return spans


def _views(
    spans: Sequence[tuple[int, int]], root: npt.NDArray[np.uint8]
) -> list[npt.NDArray[np.uint8]]:
    return [root[start : start + length] for start, length in spans]


def _serve(pipe: Connection, work: bytes) -> None:
    """Run in the worker process: transform batches until the pipe closes."""
    mapped: dict[_Handle, mmap.mmap] = {}
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        # Ctrl-C goes to every process of the terminal, but only the parent handles it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        transform: Callable[[Any, int], Any] = pickle.loads(work)  # noqa: S301
        while (task := pipe.recv()) is not None:
            answer, root = _answer(pipe, transform, task, mapped)
            kept = root is not None and root() is not None
            if kept:
                _, *block = task[2]
                for key in [key for key in mapped if list(key[1:]) == block]:
                    del mapped[key]
            pipe.send((*answer, kept))


def _answer(
    pipe: Connection,
    transform: Callable[[Any, int], Any],
    task: tuple[Any, ...],
    mapped: dict[_Handle, mmap.mmap],
) -> tuple[tuple[Any, ...], "weakref.ref[npt.NDArray[np.uint8]] | None"]:
    """Return the answer to a task, and a reference that exists as long as the input is used."""
    first, data, sent, spans, given = task
    alive = None
    try:
        root = np.frombuffer(_map(sent, mapped), np.uint8)
        alive = weakref.ref(root)
        batch = pickle.loads(data, buffers=_views(spans, root))  # noqa: S301
        data, buffers = _dump(transform(batch, first))
        needed = _shared_bytes(buffers)
        if needed > given[2]:
            pipe.send(("room", needed))
            given = pipe.recv()
        return ("done", data, _store(buffers, _map(given, mapped))), alive
    except Exception as error:  # noqa: BLE001 - the consumer raises it
        return ("error", _pickled(error), traceback.format_exc()), alive


def _map(handle: _Handle, mapped: dict[_Handle, mmap.mmap]) -> mmap.mmap:
    """Map a block of the parent process."""
    process, descriptor, nbytes = handle
    own = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    try:
        inode = os.fstat(own).st_ino
        key = (inode, descriptor, nbytes)
        if key not in mapped:
            mapped[key] = mmap.mmap(own, nbytes)
        return mapped[key]
    finally:
        os.close(own)


def _pickled(error: Exception) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301
    except Exception:  # noqa: BLE001 - its class may raise anything
        return pickle.dumps(WorkerError(f"{type(error).__name__}: {error}"))
    return data
