"""Ctrl-C: work that is completed before `KeyboardInterrupt` is raised."""

import _thread
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from relive._native import wait_through_signals

T = TypeVar("T")


def uninterrupted(
    work: Callable[[], T], on_interrupt: Callable[[BaseException], None] | None = None
) -> T:
    """Complete `work`, and then raise what signal handlers raised in the meantime.

    Signal handlers run on the main thread. When this is called there, another thread does the
    work while the main thread waits. `on_interrupt` is called at once with the first exception
    that a handler raised.
    """
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return work()  # while the interpreter is finalizing, no other thread runs
    task = _Task(work)
    # `Thread.start` that a signal handler interrupts leaves a thread that is listed forever, so
    # another thread calls it.
    start = partial(_thread.start_new_thread, task.start, ())
    interrupt = wait_through_signals(start, task.run, task.end, on_interrupt)
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
        self.end = threading.Lock()  # released when the work is done
        self.end.acquire()
        self.result: list[T] = []
        self.failure: BaseException | None = None

    def start(self) -> None:
        try:
            threading.Thread(target=self.run, name="relive", daemon=False).start()
        except RuntimeError:  # no more threads, or the interpreter is exiting
            self.run()

    def run(self) -> None:
        try:
            # Taken out, so that this thread keeps nothing alive that the work refers to.
            self.result.append(self._work.pop()())
        except BaseException as error:  # noqa: BLE001 - raised on the main thread
            self.failure = error
        finally:
            self.end.release()
