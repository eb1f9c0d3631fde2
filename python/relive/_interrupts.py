"""Ctrl-C: work that is completed before `KeyboardInterrupt` is raised."""

import _thread
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_POLL_S: Final = 0.05
T = TypeVar("T")


def uninterrupted(
    work: Callable[[], T], on_interrupt: Callable[[BaseException], None] | None = None
) -> T:
    """Complete `work`, and then raise what signal handlers raised in the meantime.

    Signal handlers run on the main thread. When this is called there, another thread does the
    work while the main thread waits. `on_interrupt` is called at once with the first exception
    that a handler raised.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    task = _Task(work)
    interrupt: BaseException | None = None
    while True:
        try:
            while not task.is_done:
                if interrupt is not None and on_interrupt is not None:
                    callback, on_interrupt = on_interrupt, None
                    callback(interrupt)
                task.wait()
            break
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error if interrupt is None else interrupt
    failure = task.failure
    try:
        if interrupt is not None:
            if failure is not None:
                for note in (str(failure), *getattr(failure, "__notes__", [])):
                    interrupt.add_note(note)
            raise interrupt from failure
        if failure is not None:
            raise failure
        return task.result[0]
    finally:
        del failure, interrupt, task  # each refers to this stack frame, which refers to it


class _Task(Generic[T]):
    """Work that runs once, on a thread that the interpreter waits for when it exits."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: list[Callable[[], T]] = [work]
        self._claim = threading.Lock()
        self._is_started = False
        self.is_done = False
        # Released when the work is done. An `Event` would raise an error if a signal handler
        # interrupts its `wait`.
        self._end = threading.Lock()
        self._end.acquire()
        self.result: list[T] = []
        self.failure: BaseException | None = None

    def wait(self) -> None:
        """Start the work on the first call, and wait until it is done. May be called again."""
        if not self._is_started:
            try:
                # `Thread.start` that a signal handler interrupts leaves a thread that is listed
                # forever, so another thread calls it.
                _thread.start_new_thread(self._start, ())
            except RuntimeError:  # no more threads, or the interpreter is exiting
                self._run()
            self._is_started = True
        # A signal that arrives just before a wait does not end it: its handler runs after this.
        while not self.is_done:
            self._end.acquire(timeout=_POLL_S)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="relive", daemon=False).start()
        except RuntimeError:  # no more threads
            self._run()

    def _run(self) -> None:
        # A start that was interrupted is tried again, although the thread may exist already.
        if not self._claim.acquire(blocking=False):
            return
        try:
            # Taken out, so that this thread keeps nothing alive that the work refers to.
            self.result.append(self._work.pop()())
        except BaseException as error:  # noqa: BLE001 - raised on the main thread
            self.failure = error
        finally:
            self.is_done = True
            self._end.release()
