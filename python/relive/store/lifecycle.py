"""How a writer ends: closed, aborted or left unfinished, in the same way for every writer."""

import _thread
import atexit
import contextlib
import os
import sys
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, ClassVar, Final, Literal, NoReturn, Self

from relive._interrupts import uninterrupted
from relive.errors import ClosedError, InvalidTypeError, LockedError, ReliveError

State = Literal["open", "closed", "aborted", "left", "inherited"]
End = Literal["close", "leave"]

_STATES: Final[dict[str, str]] = {
    "closed": "is closed",
    "aborted": "was aborted",
    "left": "was left unfinished",
    "inherited": "was opened in the parent process, and a forked process cannot write to it",
}
_OPEN: Final["weakref.WeakSet[WriterLifecycle]"] = weakref.WeakSet()
_COLLECTED: Final["set[WriterLifecycle]"] = set()
"""Writers that were found in cycles, until they are left."""
_RESEND_S: Final = 0.05


class WriterLifecycle(ABC):
    """A writer that ends in one of three ways: `close`, `abort` or `leave`. Thread-safe.

    Leaving `with` closes it, or does what `on_error` and `on_interrupt` say. A writer that is
    dropped while it is open, or is open when the interpreter exits, is left, with a
    `ResourceWarning`: before the next statement if its last reference goes, on a thread if the
    garbage collector finds it in a cycle. Writers that are open when a worker process of
    multiprocessing ends are synced. In a forked child every call is a `ClosedError`. Ctrl-C during
    `close`, `abort` or `leave` is raised after the call is complete. A subclass implements the
    three ends and calls `__init__` when there is something to end.

    Args:
        is_part: Whether it belongs to another writer, which ends it.
    """

    on_error: ClassVar[End] = "leave"
    """What an exception in the `with` block does."""
    on_interrupt: ClassVar[End] = "close"
    """What Ctrl-C in the `with` block does."""

    _state: State = "closed"  # until `__init__` there is nothing to end

    def __init__(self, *, is_part: bool = False) -> None:
        self._mutex = threading.RLock()
        self._is_part = is_part
        self._kept: list[object] = []
        """What the collector must not finalize before the writer has ended, such as locks."""
        self._in_cycle = weakref.finalize(self, _release, self._kept)
        self._in_cycle.atexit = False
        _OPEN.add(self)
        _register_worker()
        self._state = "open"

    def __del__(self) -> None:
        """Leave a writer that was dropped while it was open."""
        if self._state != "open" or self._is_part or sys.is_finalizing():
            return
        # For an object in a cycle, the collector calls the finalizers of weak references before
        # `__del__`. It runs at any moment, in a thread that may hold any lock, and must not wait.
        if self._in_cycle.detach() is None:
            _COLLECTED.add(self)
            with contextlib.suppress(RuntimeError):  # no more threads: left when the program exits
                _thread.start_new_thread(_start_leaving, (self,))
            self._warn_unclosed()
            return
        try:
            self._leave_if_open()
        except KeyboardInterrupt:
            # What `__del__` raises is ignored, so the signal is sent again after it.
            threading.Timer(_RESEND_S, _thread.interrupt_main).start()
        finally:
            self._warn_unclosed()

    def close(self) -> None:
        """Commit: everything written is complete and on the disk when this returns.

        If it cannot be committed, it is left unfinished and nothing is lost. A second call after
        one that committed does nothing.
        """
        self._run_to_the_end(self._close)

    def abort(self) -> None:
        """Remove everything that was written. A second call does nothing."""
        self._run_to_the_end(self._abort)

    def leave(self) -> None:
        """Stop writing and keep everything, unfinished; `relive recover` finishes it."""
        self._run_to_the_end(self._leave)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._state == "open":
            self._run_to_the_end(lambda: self._end_block(error))

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        raise InvalidTypeError(
            f"the writer of `{self._destination()}` cannot be pickled",
            hint="open a writer in each process",
        )

    def _end_block(self, error: BaseException | None) -> None:
        """End the `with` block that raised `error`."""
        if error is None:
            self.close()
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        if (self.on_interrupt if interrupted else self.on_error) == "close":
            self.close()
            return
        # The error of the block matters more than an error of the disk now.
        with contextlib.suppress(ReliveError):
            self.leave()
        self._add_note(error)

    def _close(self) -> None:
        with self._mutex:
            if self._state == "closed":
                return
            self._check_open()
            self._state = "left"
            try:
                self._finish()
            except BaseException as error:
                self._add_note(error)
                raise
            self._state = "closed"

    def _abort(self) -> None:
        with self._mutex:
            if self._state == "aborted":
                return
            if self._state != "left":
                self._check_open()
            self._state = "left"  # if it cannot be removed, `abort` can be called again
            self._remove()
            self._state = "aborted"

    def _leave(self) -> None:
        with self._mutex:
            self._check_open()
            self._state = "left"
            self._keep_unfinished()

    def _leave_if_open(self) -> None:
        """Leave it, or wait until another thread has ended it."""

        def leave() -> None:
            with self._mutex:
                if self._state == "open":
                    self._leave()

        self._when_unlocked(partial(self._run_to_the_end, leave))

    def _sync_if_open(self) -> None:
        self._when_unlocked(self.sync)

    def _when_unlocked(self, end: Callable[[], None]) -> None:
        """Call `end` again while another process has locked what it needs.

        A program has no reference to a writer that it dropped, to call it again. Ctrl-C ends the
        wait.
        """
        while True:
            try:
                end()
            except LockedError:
                if self._state != "open":
                    raise
            else:
                break

    def _run_to_the_end(self, work: Callable[[], None]) -> None:
        """Complete `work` before an exception of a signal handler is raised."""
        if self._is_held_here():  # called by a signal handler that interrupted another call
            work()
        else:
            uninterrupted(work, self._interrupted)

    def _interrupted(self, error: BaseException) -> None:  # noqa: B027 - most writers ignore it
        """Handle an exception that a signal handler raised while the writer is ending."""

    def _is_held_here(self) -> bool:
        """Check whether this thread is inside another call of this writer."""
        lock: Any = self._mutex
        return bool(lock._is_owned())  # noqa: SLF001 - as `threading.Condition` does

    @abstractmethod
    def sync(self) -> None:
        """Make everything written so far survive a power cut."""

    @abstractmethod
    def _finish(self) -> None:
        """Commit everything, or raise and leave it unfinished."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove everything that was written."""

    @abstractmethod
    def _keep_unfinished(self) -> None:
        """Put everything written on the disk, and release files and threads."""

    @abstractmethod
    def _destination(self) -> str:
        """Return the path that is written to, for messages."""

    def _add_note(self, error: BaseException) -> None:
        """Add to an error how to finish what it left unfinished."""
        path = self._destination()
        error.add_note(f"`{path}` is unfinished, run `relive recover {path}` to finish it")

    def _check_open(self) -> None:
        if self._state != "open":
            raise ClosedError(f"`{self._destination()}` {_STATES[self._state]}")

    def _warn_unclosed(self) -> None:
        warn_unclosed(self._destination(), stacklevel=4)

    def _become_inherited(self) -> None:
        self._mutex = threading.RLock()  # another thread may have held it
        if self._state == "open":
            self._state = "inherited"


def warn_unclosed(path: str, *, stacklevel: int = 2) -> None:
    """Warn of a writer that was dropped while it was open."""
    warnings.warn(
        f"the writer of `{path}` was not closed; use `with`, or call close()",
        ResourceWarning,
        stacklevel=stacklevel,
    )


def _release(kept: list[object]) -> None:
    """Refer to what a writer keeps, until the writer is freed or found in a cycle."""


def _start_leaving(writer: WriterLifecycle) -> None:
    # `Thread.start` takes locks that the thread in which the collector runs may hold.
    with contextlib.suppress(RuntimeError):
        work = partial(_leave_collected, writer)
        threading.Thread(target=work, name="relive-leave", daemon=True).start()


def _leave_collected(writer: WriterLifecycle) -> None:
    try:
        writer._leave_if_open()  # noqa: SLF001 - the same module
    finally:
        _COLLECTED.discard(writer)


def _leave_all() -> None:
    """Leave all writers, and wait for those that are being left."""
    _end_all(methodcaller("_leave_if_open"))


def _sync_all() -> None:
    # Threads of a worker process may go on with their writers until it ends.
    _end_all(methodcaller("_sync_if_open"))


def _end_all(end: Callable[[WriterLifecycle], None]) -> None:
    """Call `end` with every open writer, and then raise the first error."""
    calls: list[Callable[[], None]] = []
    for writer in list(_OPEN):
        if writer._state == "open" and not writer._is_part:  # noqa: SLF001 - the same module
            calls += [partial(end, writer), writer._warn_unclosed]  # noqa: SLF001
    failures = [error for call in calls if (error := _failure_of(call)) is not None]
    while _COLLECTED:
        with contextlib.suppress(KeyError):  # its thread has left the last one meanwhile
            writer = _COLLECTED.pop()
            error = _failure_of(writer._leave_if_open)  # noqa: SLF001 - the same module
            failures += [] if error is None else [error]
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"also: {type(other).__name__}: {other}")
        raise failures[0]


def _failure_of(call: Callable[[], None]) -> BaseException | None:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - Ctrl-C too; the other writers are ended first
        return error
    return None


def _register_worker() -> None:
    """Let a worker process, which runs no handlers of atexit, sync its writers at its end."""
    global _worker  # noqa: PLW0603 - a process registers once
    found = sys.modules.get("multiprocessing.process")
    if found is None or found.parent_process() is None or _worker == os.getpid():
        return
    import multiprocessing.util

    _worker = os.getpid()
    multiprocessing.util.Finalize(None, _sync_all, exitpriority=1)


def _inherit_all() -> None:
    for writer in (*_OPEN, *_COLLECTED):
        writer._become_inherited()  # noqa: SLF001 - the same module
    _COLLECTED.clear()


_worker: int | None = None
atexit.register(_leave_all)
os.register_at_fork(after_in_child=_inherit_all)
