"""Runs an encoder on a thread of its own, and detects that it has stopped for good.

libsvtav1 rarely stops while all cores are busy: all its threads wait for each other, and the call
that encodes a frame never returns. Such a call cannot be ended, only left behind.
"""

import contextlib
import queue
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Final

_TASKS: Final = Path("/proc/self/task")
# The threads of an encoder that do not run between two looks have stopped.
_LOOK_EVERY_S: Final = 1.0
# Where threads cannot be looked at, an encoder that takes longer for one frame has stopped.
_LIMIT_S: Final = 60.0
# Where they can: one of the threads may belong to another library, and never stop.
_LONG_LIMIT_S: Final = 600.0
_END: Final = object()


class EncoderStoppedError(Exception):
    """An encoder does not return. It must not be used any more, nor be freed."""


class WatchedContext:
    """A codec context of PyAV whose calls are watched. Used by one thread at a time.

    Args:
        context: The opened encoder.
        threads: Its threads, by the numbers that the system gives them.
    """

    def __init__(self, context: Any, threads: set[int]) -> None:
        self._pictures: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._expected = 0  # more than one after Ctrl-C
        self._thread = threading.Thread(
            target=_encode_all,
            args=(context, self._pictures, self._results),
            name="relive-encoder",
            daemon=True,
        )
        self._thread.start()
        self._threads = {*threads, self._thread.native_id or 0} if _TASKS.is_dir() else None
        weakref.finalize(self, self._pictures.put, _END).atexit = False

    def encode(self, picture: Any) -> list[Any]:
        """Return the packets that the encoder returns for a picture, or for None at the end."""
        self._pictures.put(picture)
        self._expected += 1
        packets: list[Any] = []
        while self._expected:
            result = self._wait()
            self._expected -= 1
            if isinstance(result, BaseException):
                raise result
            packets += result
        return packets

    def close(self) -> None:
        """End the thread, which frees the encoder. One that has stopped is left behind."""
        self._pictures.put(_END)
        self._thread.join(_LOOK_EVERY_S)

    def _wait(self) -> Any:
        began = time.monotonic()
        before = None
        while True:
            with contextlib.suppress(queue.Empty):
                return self._results.get(timeout=_LOOK_EVERY_S)
            try:
                runs = None if self._threads is None else _runs(self._threads)
            except (OSError, LookupError, ValueError):  # the system does not tell
                runs = self._threads = None
            limit_s = _LIMIT_S if self._threads is None else _LONG_LIMIT_S
            if (runs is not None and runs == before) or time.monotonic() - began > limit_s:
                raise EncoderStoppedError
            before = runs


def system_threads() -> set[int]:
    """Return the threads of this process, those of libraries too; none where they are unknown."""
    return {int(path.name) for path in _TASKS.iterdir()} if _TASKS.is_dir() else set()


def _runs(threads: set[int]) -> int | None:
    """Return how often threads were given a core; None if one has a core or waits for one."""
    runs = 0
    for thread in threads:
        try:
            lines = (_TASKS / str(thread) / "status").read_bytes().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        status = dict(line.split(b":", 1) for line in lines if b":" in line)
        if not status[b"State"].strip().startswith(b"S"):
            return None
        runs += int(status[b"voluntary_ctxt_switches"])
        runs += int(status[b"nonvoluntary_ctxt_switches"])
    return runs


def _encode_all(
    context: Any, pictures: "queue.SimpleQueue[Any]", results: "queue.SimpleQueue[Any]"
) -> None:
    while (picture := pictures.get()) is not _END:
        try:
            result = context.encode(picture)
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            result = error
        del picture
        results.put(result)
        del result
