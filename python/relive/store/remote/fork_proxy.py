"""Makes requests in a helper process for a forked process, which cannot make them itself.

obstore has threads that a fork does not copy, and a forked process that calls it waits forever.
Data loaders fork. So each forked process starts a fresh interpreter once and talks to it through
pipes. The helper ends when its pipe is closed, however its owner ended.
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
from relive.store.remote.client import ObjectClient

# The number of files whose connections the helper process keeps open.
OPEN_FILES: Final = 64

_MAIN: Final = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer);"
    " from relive.store.remote.fork_proxy import serve; serve()"
)


def call(uri: str, options: Mapping[str, Any], method: str, *arguments: object) -> Any:
    """Call `method` of the client for `uri` in the helper process of this process."""
    global _helper  # noqa: PLW0603 - one for each process
    with _lock:
        if _helper is None or not _helper.is_alive:
            _helper = _HelperProcess()
        helper = _helper
    return helper.call((pickle.dumps((uri, dict(options))), method, arguments))


class _HelperProcess:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # In its own session, because Ctrl-C in the terminal must not stop it.
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and our own code
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._owner = os.getpid()
        atexit.register(self.close)
        self._send(sys.path)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def call(self, task: tuple[bytes, str, tuple[object, ...]]) -> Any:
        """Return the result of a call in the helper process, or raise its error."""
        with self._lock:
            try:
                self._send(task)
                assert self._process.stdout is not None  # noqa: S101 - it is a pipe
                found = pickle.load(self._process.stdout)  # noqa: S301 - from our own process
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._process.kill()
                raise WorkerError(
                    "the helper process that reads remote files ended unexpectedly"
                ) from error
            except BaseException:
                # After an interrupt, the next response would be the one to this call.
                self._process.kill()
                raise
        if isinstance(found, ReliveError):
            raise found
        return found

    def close(self) -> None:
        """End the process and wait for it."""
        if os.getpid() == self._owner and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _send(self, task: object) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        pickle.dump(task, self._process.stdin)
        self._process.stdin.flush()


_helper: _HelperProcess | None = None
_lock = threading.Lock()


def _after_fork() -> None:
    global _helper, _lock
    # The parent's object is kept alive, because only the parent may wait for its process.
    _inherited.append(_helper)
    _helper, _lock = None, threading.Lock()


_inherited: list[_HelperProcess | None] = []
os.register_at_fork(after_in_child=_after_fork)


@lru_cache(maxsize=OPEN_FILES)
def _client(location: bytes) -> ObjectClient:
    return ObjectClient(*pickle.loads(location))  # noqa: S301 - from the process that started us


def serve() -> None:
    """Answer the calls from standard input until it ends."""
    calls, responses = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            location, method, arguments = pickle.load(calls)  # noqa: S301 - from our owner
        except EOFError:
            return
        found: object
        try:
            found = getattr(_client(location), method)(*arguments)
        except ReliveError as error:
            found = error.with_traceback(None)
        pickle.dump(found, responses, protocol=pickle.HIGHEST_PROTOCOL)
        responses.flush()
