"""The life of what is being recorded: open, then finished, aborted or left unfinished."""

import atexit
import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Literal, Self

from relive.errors import ClosedError, ReliveError

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
    closed.
    """

    def __init__(self) -> None:
        self._alone = threading.RLock()
        self._state: State = "open"
        _OPEN.add(self)

    def close(self) -> None:
        """Finish it: it is whole, and on the disk, when this returns.

        When it cannot be finished, it is left unfinished and nothing is lost.
        """
        with self._alone:
            self._check_open()
            self._state = "left"
            self._finish()
            self._state = "finished"

    def abort(self) -> None:
        """Remove everything that was written. May be called again."""
        with self._alone:
            if self._state == "aborted":
                return
            if self._state != "left":
                self._check_open()
            self._state = "aborted"
            self._remove()

    def leave(self) -> None:
        """Write no more and leave it unfinished, with all that was recorded."""
        with self._alone:
            self._check_open()
            self._state = "left"
            self._let_go()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state != "open":
            return
        if error is None or isinstance(error, KeyboardInterrupt):
            self.close()
            return
        # What the block raised matters more than what the disk says now.
        with contextlib.suppress(ReliveError):
            self.leave()
        error.add_note(self._left_note())

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

    def _left_note(self) -> str:
        return f"what was recorded is unfinished: `relive recover {self._where()}` finishes it"

    def _check_open(self) -> None:
        if self._state != "open":
            raise ClosedError(f"`{self._where()}` {_ENDS[self._state]}")

    def _become_foreign(self) -> None:
        self._alone = threading.RLock()  # another thread may have held it
        if self._state == "open":
            self._state = "foreign"


def _leave_all() -> None:
    for life in list(_OPEN):
        with contextlib.suppress(ReliveError, OSError):
            life.leave()


def _forget_all() -> None:
    for life in list(_OPEN):
        life._become_foreign()  # noqa: SLF001 - it is this module's own


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_forget_all)
