"""A process that makes requests for one that was forked and cannot make them itself.

obstore has threads behind it that a fork does not copy, and a forked process that calls it
waits for ever. Data loaders fork. So each forked process starts a fresh interpreter once, and
talks to it through pipes; it ends when its pipe does, however its owner ended.
"""

import atexit
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from relive.errors import ReliveError, WorkerError
from relive.store.remote.client import Fetcher

__all__ = ["call", "serve"]

# Files whose connections a courier keeps open.
OPEN_FILES: Final = 64

_MAIN: Final = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer);"
    " from relive.store.remote.fork_proxy import serve; serve()"
)


def call(uri: str, options: Mapping[str, Any], method: str, *arguments: object) -> Any:
    """Do `method` of the fetcher of `uri` in this process's courier."""
    global _courier  # noqa: PLW0603 - one for each process
    with _lock:
        if _courier is None or not _courier.alive:
            _courier = _Courier()
        courier = _courier
    return courier.call((pickle.dumps((uri, dict(options))), method, arguments))


class _Courier:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A session of its own: an interrupt at the terminal is for those who compute.
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and our own line
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._owner = os.getpid()
        atexit.register(self.close)
        self._send(sys.path)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def call(self, order: tuple[bytes, str, tuple[object, ...]]) -> Any:
        """Give what the order brings back; its error is raised here."""
        with self._lock:
            try:
                self._send(order)
                assert self._process.stdout is not None  # noqa: S101 - it is a pipe
                found = pickle.load(self._process.stdout)  # noqa: S301 - from our own process
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._process.kill()
                raise WorkerError(
                    "the process that reads remote files for this one has ended"
                ) from error
            except BaseException:
                # Interrupted half way: what comes next would be the answer to this order.
                self._process.kill()
                raise
        if isinstance(found, ReliveError):
            raise found
        return found

    def close(self) -> None:
        """Let it end, and wait for that."""
        if os.getpid() == self._owner and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _send(self, order: object) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        pickle.dump(order, self._process.stdin)
        self._process.stdin.flush()


_courier: _Courier | None = None
_lock = threading.Lock()


def _after_fork() -> None:
    global _courier, _lock
    # The parent's is kept from being collected: its end is for the parent to see.
    _inherited.append(_courier)
    _courier, _lock = None, threading.Lock()


_inherited: list[_Courier | None] = []
os.register_at_fork(after_in_child=_after_fork)


@lru_cache(maxsize=OPEN_FILES)
def _fetcher(place: bytes) -> Fetcher:
    return Fetcher(*pickle.loads(place))  # noqa: S301 - from the process that started us


def serve() -> None:
    """Follow orders from standard input until it ends."""
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            place, method, arguments = pickle.load(orders)  # noqa: S301 - from our owner
        except EOFError:
            return
        found: object
        try:
            found = getattr(_fetcher(place), method)(*arguments)
        except ReliveError as error:
            found = error.with_traceback(None)
        pickle.dump(found, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
