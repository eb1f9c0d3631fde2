"""The life of what is being recorded: open, then finished, aborted or left unfinished."""

import atexit
import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self

from relive._interrupts import undisturbed
from relive.errors import ClosedError, InvalidTypeError, ReliveError

__all__ = ["Life"]

State = Literal["open", "finished", "aborted", "left", "foreign"]

_ENDS: Final[dict[str, str]] = {
    "finished": "is finished",
    "aborted": "was aborted",
    "left": "was left unfinished",
    "foreign": "is recorded by the process that this one was forked from",
}
_OPEN: Final["weakref.WeakSet[Life]"] = weakref.WeakSet()


class Life(ABC):
    """Something that is written until it is closed, aborted or left. Thread-safe.

    What was not closed when the interpreter ends is left unfinished. A forked child has it
    closed. Ctrl-C does not cut its end in two: it is raised behind it.
    """

    def __init__(self) -> None:
        self._alone = threading.RLock()
        self._state: State = "open"
        _OPEN.add(self)

    def close(self) -> None:
        """Finish it: it is whole, and on the disk, when this returns.

        When it cannot be finished, it is left unfinished and nothing is lost.
        """
        self._whole(self._close)

    def abort(self) -> None:
        """Remove everything that was written. May be called again."""
        self._whole(self._abort)

    def leave(self) -> None:
        """Write no more and leave it unfinished, with all that was recorded."""
        self._whole(self._leave)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state == "open":
            self._whole(lambda: self._end_block(error))

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        raise InvalidTypeError(
            f"`{self._where()}` is recorded by this process, and cannot be pickled",
            hint="a LocalDatasetWriter can, and begins an episode wherever it is",
        )

    def _end_block(self, error: BaseException | None) -> None:
        """End what a `with` block recorded that raised `error`."""
        if error is None or isinstance(error, KeyboardInterrupt):
            self.close()
            return
        # What the block raised matters more than what the disk says now.
        with contextlib.suppress(ReliveError):
            self.leave()
        self._add_note(error)

    def _close(self) -> None:
        with self._alone:
            self._check_open()
            self._state = "left"
            try:
                self._finish()
            except BaseException as error:
                self._add_note(error)
                raise
            self._state = "finished"

    def _abort(self) -> None:
        with self._alone:
            if self._state == "aborted":
                return
            if self._state != "left":
                self._check_open()
            self._state = "aborted"
            self._remove()

    def _leave(self) -> None:
        with self._alone:
            self._check_open()
            self._state = "left"
            self._let_go()

    def _whole(self, work: Callable[[], None]) -> None:
        """Do what Ctrl-C must not cut in two."""
        if self._is_held_here():  # the handler of a signal calls it, in the midst of a call
            work()
        else:
            undisturbed(work, self._interrupted)

    def _interrupted(self, error: BaseException) -> None:  # noqa: B027 - few want to know
        """Be told what the handler of a signal raised while the end is being made."""

    def _is_held_here(self) -> bool:
        """Whether this thread is in the midst of another call."""
        lock: Any = self._alone
        return bool(lock._is_owned())  # noqa: SLF001 - as `threading.Condition` asks it

    @abstractmethod
    def _finish(self) -> None:
        """Make it whole, or raise and have it left unfinished."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove all of it."""

    @abstractmethod
    def _let_go(self) -> None:
        """Let go of everything, with all that was recorded on the disk."""

    @abstractmethod
    def _where(self) -> str:
        """Where it is, for messages."""

    def _add_note(self, error: BaseException) -> None:
        """Have an error say what becomes of what it left unfinished."""
        error.add_note(
            f"what was recorded is unfinished: `relive recover {self._where()}` finishes it"
        )

    def _check_open(self) -> None:
        if self._state != "open":
            raise ClosedError(f"`{self._where()}` {_ENDS[self._state]}")

    def _become_foreign(self) -> None:
        self._alone = threading.RLock()  # another thread may have held it
        if self._state == "open":
            self._state = "foreign"


def _leave_all() -> None:
    interrupts: list[BaseException] = []
    for life in list(_OPEN):
        try:
            life.leave()
        except (ReliveError, OSError):
            pass
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, and the others are left first
            interrupts.append(error)
    if interrupts:
        raise interrupts[0]


def _forget_all() -> None:
    for life in list(_OPEN):
        life._become_foreign()  # noqa: SLF001 - it is this module's own


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_forget_all)
