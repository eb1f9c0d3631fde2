"""Work that Ctrl-C does not cut in two."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["undisturbed"]

T = TypeVar("T")


def undisturbed(work: Callable[[], T], told: Callable[[BaseException], None] | None = None) -> T:
    """Do all of `work`, and only then raise what the handlers of signals raised meanwhile.

    Handlers run on the main thread: called there, the work is done on another one while this
    waits. `told` is called at once with the first thing that a handler raised.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    task = _Task(work)
    interrupt: BaseException | None = None
    is_told = told is None
    while True:
        try:
            while not task.over.is_set():
                if interrupt is not None and told is not None and not is_told:
                    is_told = True
                    told(interrupt)
                task.wait()
            break
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error if interrupt is None else interrupt
    failure = task.failure
    try:
        if interrupt is not None:
            for note in [] if failure is None else [str(failure), *_notes(failure)]:
                interrupt.add_note(note)
            raise interrupt from failure
        if failure is not None:
            raise failure
        return task.result[0]
    finally:
        del failure, interrupt, task  # each would hold this frame, and that holds them


class _Task(Generic[T]):
    """Work that is done once, on a thread that the end of the interpreter waits for."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._claim = threading.Lock()
        self._is_begun = False
        self.over = threading.Event()
        self.result: list[T] = []
        self.failure: BaseException | None = None

    def wait(self) -> None:
        """Wait for the end of it, which begins with the first call. May be called again."""
        if not self._is_begun:
            try:
                threading.Thread(target=self._run, name="relive", daemon=False).start()
            except RuntimeError:  # there cannot be one more, or the interpreter ends
                self._run()
            self._is_begun = True
        self.over.wait()

    def _run(self) -> None:
        # A start that was interrupted may have come about, and is tried again.
        if not self._claim.acquire(blocking=False):
            return
        try:
            self.result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised on the other thread
            self.failure = error
        finally:
            self.over.set()


def _notes(error: BaseException) -> list[str]:
    notes: list[str] = getattr(error, "__notes__", [])
    return notes
