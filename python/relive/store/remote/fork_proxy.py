"""Makes requests in a helper process for a forked process, which cannot make them itself.

obstore has threads that a fork does not copy, and a forked process that calls it waits forever.
Data loaders fork. So each forked process starts a fresh interpreter once and talks to it through
pipes, one call at a time; a call has all ranges of a batch. Reads ahead of time yield to others,
and are split into several calls. The helper ends when its pipe is closed, however its owner ended.

Credentials are not sent: the helper finds and renews them by itself, from the same environment.
"""

import atexit
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import IO, Any, Final, Literal, TypeAlias

import numpy as np

from relive.errors import ReliveError, WorkerError
from relive.store.config import cloud_environment
from relive.store.remote.priority import Turns, is_ahead
from relive.store.remote.ranges import Piece

Kind: TypeAlias = Literal["object", "root"]
"""Whether an address is that of one object or of a root."""

Task: TypeAlias = tuple[Kind, bytes, str, tuple[object, ...], object]
"""What a client is for, its address and options, a method, arguments, and a new environment."""

# What is read ahead in one call: another read waits at most for so much.
AHEAD_BYTES: Final = 16 << 20
# The number of files whose connections the helper process keeps open.
OPEN_FILES: Final = 64

_MAIN: Final = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer);"
    " from relive.store.remote.fork_proxy import serve; serve()"
)


def call(
    kind: Kind, address: str, options: Mapping[str, Any], method: str, *arguments: object
) -> Any:
    """Call `method` of the client for `address` in the helper process of this process.

    `pickle.PickleBuffer`s in the result become writable buffers, without a copy of their bytes.
    """
    global _helper  # noqa: PLW0603 - one for each process
    with _lock:
        if _helper is None or not _helper.is_alive:
            _helper = _HelperProcess()
        helper = _helper
    return helper.call(kind, pickle.dumps((address, dict(options))), method, arguments)


def fetch(address: str, options: Mapping[str, Any], pieces: Sequence[Piece]) -> list[Any]:
    """Return the bytes of ranges of a root's objects, in one call unless they are read ahead."""
    found: list[Any] = []
    while len(found) < len(pieces):
        left = pieces[len(found) :]
        part = next(_parts(left)) if is_ahead() else left
        found += call("root", address, options, "fetch_all", part)
    return found


def _parts(pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
    """Yield the pieces in parts of at least one and at most `AHEAD_BYTES`."""
    first = size = 0
    for number, piece in enumerate(pieces):
        size += piece.stop - piece.start
        if size > AHEAD_BYTES and number > first:
            yield pieces[first:number]
            first, size = number, piece.stop - piece.start
    yield pieces[first:]


class _HelperProcess:
    def __init__(self) -> None:
        self._turns = Turns()
        self._environment = cloud_environment()
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

    def call(self, kind: Kind, location: bytes, method: str, arguments: tuple[object, ...]) -> Any:
        """Return the result of a call in the helper process, or raise its error."""
        with self._turns.turn():
            environment = cloud_environment()
            changed = None if environment == self._environment else environment
            task: Task = kind, location, method, arguments, changed
            try:
                self._send(task)
                self._environment = environment
                assert self._process.stdout is not None  # noqa: S101 - it is a pipe
                found = _receive(self._process.stdout)
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
def _client(kind: Kind, location: bytes, environment: object) -> object:
    del environment  # a client is valid for one
    address, options = pickle.loads(location)  # noqa: S301 - from the process that started us
    if kind == "object":
        from relive.store.remote.client import ObjectClient

        return ObjectClient(address, options)
    from relive.store.remote.root_client import RootClient

    return RootClient(address, options)


def serve() -> None:
    """Answer the calls from standard input until it ends."""
    calls, responses = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            task: Task = pickle.load(calls)  # noqa: S301 - from our owner
        except EOFError:
            return
        kind, location, method, arguments, environment = task
        if environment is not None:
            _set_environment(environment)
        found: object
        try:
            found = getattr(_client(kind, location, cloud_environment()), method)(*arguments)
        except ReliveError as error:
            found = error.with_traceback(None)
        _respond(found, responses)


def _set_environment(environment: Any) -> None:
    """Let the variables that configure clouds be those of the owner."""
    for name, _ in cloud_environment():
        del os.environ[name]
    os.environ.update(environment)


def _respond(found: object, stream: IO[bytes]) -> None:
    # Large data follows the pickle, so that neither side copies it.
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(found, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    pickle.dump((data, [view.nbytes for view in views]), stream)
    stream.writelines(views)
    stream.flush()


def _receive(stream: IO[bytes]) -> object:
    data, sizes = pickle.load(stream)  # noqa: S301 - from our own process
    buffers = []
    for size in sizes:
        buffers.append(buffer := np.empty(size, np.uint8))
        view, at = buffer.data, 0
        while at < size:
            count = stream.readinto(view[at:])  # type: ignore[attr-defined]
            if not count:
                raise EOFError
            at += count
    return pickle.loads(data, buffers=buffers)  # noqa: S301 - from our own process
