"""The queue between recording and the disk, and the thread that empties it."""

import contextlib
import threading
import time
import warnings
from dataclasses import dataclass
from typing import Final

from relive._native import Step
from relive.errors import LockedError, ReliveError, StorageError
from relive.replay.writing.steps import End
from relive.replay.writing.writer import RunWriter
from relive.store.queue import BoundedQueue

_MAX_ITEMS: Final = 1 << 40
_MIN_ITEMS: Final = 4
_GATHER_S: Final = 0.1
"""Steps wait this long for more: many at once take little more time than one. Whenever this thread
needs the GIL, an environment that has it waits for some 0.2 ms."""
_GATHER_ITEMS: Final = 512
_GATHER_BYTES: Final = 32 << 20
_WRITE_ITEMS: Final = 1024
"""As many are written at once: their memory is used for the next ones."""
_COMMIT_AT: Final = 0.5
"""Steps are committed after this part of `flush_s`, so that the commit ends within it."""

_RETRY_S: Final = 0.05
"""SQLite waits for a lock itself, but not in all cases."""


def _warn_of_lock(run_id: str, error: LockedError) -> None:
    with contextlib.suppress(RuntimeWarning):  # a filter makes an error of it, on this thread
        warnings.warn(
            f"run {run_id!r} waits: {error.message}; steps are kept in the queue until it is full. "
            "End the transaction of the other process, a database browser for example",
            RuntimeWarning,
            stacklevel=2,
        )


@dataclass(slots=True)
class _Flush:
    """Everything before it is committed when it is done."""

    sync: bool


class SinkThread:
    """Writes and commits the items of a queue, on a thread of its own.

    Args:
        writer: Where the items go.
        queue_bytes: How many bytes of items may wait.
        flush_s: Items are committed at most this long after they were put, in seconds.
        flush_steps: And after at most this many steps.
        sync_episodes: Whether the end of an episode is synced to the disk.
    """

    def __init__(
        self,
        writer: RunWriter,
        *,
        queue_bytes: int,
        flush_s: float,
        flush_steps: int,
        sync_episodes: bool,
    ) -> None:
        self._writer = writer
        self.queue: BoundedQueue[Step | End | _Flush] = BoundedQueue(
            f"run {writer.run_id!r}", _MAX_ITEMS, queue_bytes, min_items=_MIN_ITEMS
        )
        self._commit_s = flush_s * _COMMIT_AT
        self._gather_s = min(_GATHER_S, self._commit_s / 2)
        self._gather_bytes = min(_GATHER_BYTES, queue_bytes // 4)  # never until it is full
        self._flush_steps = flush_steps
        # Locked unless there is a reason not to wait for more items. Ctrl-C can leave the lock
        # inside a `threading.Event` locked.
        self._urgent = threading.Lock()
        self._urgent.acquire()
        self._sync_episodes = sync_episodes
        self.committed = writer.run.steps
        """Steps that were committed so far, of all recorders of the run."""
        self._thread = threading.Thread(
            target=self._run, name=f"relive-replay-{writer.run_id}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def flush(self, *, sync: bool) -> None:
        """Wait until everything so far is committed.

        If another process has the database locked, that is a `LockedError` after a while, and all
        is committed later.
        """
        self.queue.check()
        self.queue.put(_Flush(sync))
        self.drain()

    def drain(self) -> None:
        """Wait until everything so far is written, which need not be committed."""
        self._hurry()
        self.queue.drain()
        self.queue.check()

    def stop(self, *, discard: bool = False) -> None:
        """End the thread: after everything is written, or at once."""
        self.queue.close(discard=discard)
        self._hurry()
        if self._thread.ident is not None:  # it was started
            self._thread.join()

    def _run(self) -> None:
        try:
            self._write_all()
        except ReliveError as error:
            self.queue.fail(error)
        except OSError as error:
            self.queue.fail(StorageError(str(error)))
        except Exception as error:  # noqa: BLE001 - raised by the next call of the recorder
            self.queue.fail(ReliveError(f"the run cannot be written: {error!r}"))

    def _write_all(self) -> None:
        writer = self._writer
        while (items := self._get_many()) is not None:
            batch: list[Step | End] = []
            room = self._flush_steps - writer.pending_steps
            sync = False
            for item in items:
                if isinstance(item, _Flush):
                    is_due = True
                    sync |= item.sync
                else:
                    batch.append(item)
                    if isinstance(item, End) or item.end is not None:
                        sync |= self._sync_episodes
                    is_due = len(batch) >= room
                if is_due:
                    self._write(batch)
                    self._commit(sync=sync)
                    batch, room, sync = [], self._flush_steps, False
            self._write(batch)
            if sync or self._time_left() == 0.0:
                self._commit(sync=sync)
            self.queue.done(len(items))
            items.clear()  # frees the memory of all but one before the next ones are waited for
            batch.clear()
        # The queue was closed, or its items were discarded: what is written is committed by the
        # thread that ends the recording.

    def _get_many(self) -> list[Step | End | _Flush] | None:
        """Wait for items, and a little longer if they are few."""
        items = self.queue.get_many(_WRITE_ITEMS, self._time_left())
        if items and len(items) < _GATHER_ITEMS and self.queue.nbytes < self._gather_bytes:
            self._urgent.acquire(timeout=self._gather_s)
            items = self.queue.get_many(_WRITE_ITEMS, 0.0)
        return items

    def _hurry(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is unlocked already
            self._urgent.release()

    def _write(self, batch: list[Step | End]) -> None:
        if batch:
            self._writer.write(batch)

    def _commit(self, *, sync: bool) -> None:
        is_warned = False
        while True:
            is_last_try = self.queue.is_closed
            try:
                self._writer.commit(sync=sync)
            except LockedError as error:
                # Nothing is lost: what was written waits in the writer, and the queue has the rest.
                if is_last_try:
                    raise
                self.queue.delay(error)
                if not is_warned:
                    _warn_of_lock(self._writer.run_id, error)
                    is_warned = True
                time.sleep(_RETRY_S)
            else:
                break
        self.committed = self._writer.run.steps

    def _time_left(self) -> float | None:
        """Return how many seconds the next commit may wait; None without anything to commit."""
        oldest = self._writer.oldest
        if oldest is None:
            return None
        return max(0.0, oldest + self._commit_s - time.monotonic())
