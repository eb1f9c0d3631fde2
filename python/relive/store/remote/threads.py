"""The threads of a process that make requests, and whether the process was forked."""

import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Enough requests to use a connection with high latency, and few enough for most servers.
CONCURRENT: Final = 64

_T = TypeVar("_T")
_R = TypeVar("_R")


class _Process:
    """The state of one process: its request threads, and whether it can use obstore."""

    def __init__(self, *, forked: bool) -> None:
        self.forked = forked
        self.lock = threading.Lock()
        self.pool: ThreadPoolExecutor | None = None


_process = _Process(forked=False)


def is_forked() -> bool:
    """Return whether this process was forked after obstore was loaded, and cannot use it."""
    return _process.forked


def request_pool() -> "ThreadPoolExecutor":
    """Return the threads of this process for requests. A task must not wait for another one."""
    from concurrent.futures import ThreadPoolExecutor

    with _process.lock:
        if _process.pool is None:
            _process.pool = ThreadPoolExecutor(CONCURRENT, "relive-fetch")
        return _process.pool


def at_once(
    work: Callable[[_T], _R], items: Iterable[_T], *, on_error: Callable[[], object] | None = None
) -> list[_R]:
    """Return `work(item)` of each item in order, computed on the request threads.

    After an error, items that have not begun are left out. Those that have are awaited, or, with
    `on_error`, that is called to stop them. A single item is then computed on a thread as well,
    because Ctrl-C does not interrupt a request; without `on_error`, on the calling thread.
    """
    items = list(items)
    if len(items) <= 1 and on_error is None:
        return [work(item) for item in items]
    pool = request_pool()
    calls = [pool.submit(work, item) for item in items]
    try:
        return [call.result() for call in calls]
    except BaseException:
        for call in calls:
            call.cancel()
        if on_error is not None:
            on_error()
        else:
            for call in calls:
                if not call.cancelled():
                    call.exception()
        raise


def _after_fork() -> None:
    global _process  # noqa: PLW0603 - one for each process
    _process = _Process(forked="obstore" in sys.modules)


os.register_at_fork(after_in_child=_after_fork)
