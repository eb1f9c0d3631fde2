"""How a writer ends: closed, aborted or left unfinished, in the same way for every writer."""

import atexit
import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal, NoReturn, Self

from relive._interrupts import uninterrupted
from relive.errors import ClosedError, InvalidTypeError, ReliveError

State = Literal["open", "closed", "aborted", "left", "inherited"]
End = Literal["close", "leave"]

_STATES: Final[dict[str, str]] = {
    "closed": "is closed",
    "aborted": "was aborted",
    "left": "was left unfinished",
    "inherited": "was opened in the parent process, and a forked process cannot write to it",
}
_OPEN: Final["weakref.WeakSet[WriterLifecycle]"] = weakref.WeakSet()


class WriterLifecycle(ABC):
    """A writer that ends in one of three ways: `close`, `abort` or `leave`. Thread-safe.

    Leaving `with` closes it, or does what `on_error` and `on_interrupt` say. A writer that is
    open when the interpreter exits is left. In a forked child every call is a `ClosedError`.
    Ctrl-C during `close`, `abort` or `leave` is raised after the call is complete. A subclass
    implements the three ends and calls `__init__` when there is something to end.
    """

    on_error: ClassVar[End] = "leave"
    """What an exception in the `with` block does."""
    on_interrupt: ClassVar[End] = "close"
    """What Ctrl-C in the `with` block does."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._state: State = "open"
        _OPEN.add(self)

    def close(self) -> None:
        """Commit: everything written is complete and on the disk when this returns.

        If it cannot be committed, it is left unfinished and nothing is lost.
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

    def _become_inherited(self) -> None:
        self._mutex = threading.RLock()  # another thread may have held it
        if self._state == "open":
            self._state = "inherited"


def _leave_all() -> None:
    interrupts: list[BaseException] = []
    for writer in list(_OPEN):
        if writer._state != "open":  # noqa: SLF001 - the same module
            continue
        try:
            writer.leave()
        except (ReliveError, OSError):
            pass
        except BaseException as error:  # noqa: BLE001 - Ctrl-C; the other writers are left first
            interrupts.append(error)
    if interrupts:
        raise interrupts[0]


def _inherit_all() -> None:
    for writer in list(_OPEN):
        writer._become_inherited()  # noqa: SLF001 - the same module


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_inherit_all)
