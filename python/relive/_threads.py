"""Threads that work for a whole process."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from relive._forks import call_after_fork

P = ParamSpec("P")
R = TypeVar("R")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


class SharedThreads:
    """As many threads as the process has cores, for work that would gain nothing by more.

    A forked process starts threads of its own.

    Args:
        name: The first part of the names of the threads.
        most: How many threads there are at most.
    """

    def __init__(self, name: str, most: int | None = None) -> None:
        self._name = name
        self._most = most
        self.after_fork()
        call_after_fork(self)

    def after_fork(self) -> None:
        """Forget the threads of the parent process."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a call on a thread; while the interpreter exits, on this one."""
        try:
            return self._started().submit(call, *args, **kwargs)
        except RuntimeError:  # no more threads
            done: Future[R] = Future()
            try:
                done.set_result(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                done.set_exception(error)
            return done

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                count = cores() if self._most is None else min(self._most, cores())
                self._executor = ThreadPoolExecutor(count, self._name)
            return self._executor
