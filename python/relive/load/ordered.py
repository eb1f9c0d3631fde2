"""Work on batches by several threads, handed out in the order in which it was drawn."""

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from relive.errors import ClosedError
from relive.load.draws import Ticket

__all__ = ["InlineBatches", "OrderedBatches"]

_PATIENCE_S: Final = 5.0
"""How long `close` waits for code of the user's that is still running."""
_GRACE_S: Final = 1.0


class InlineBatches:
    """Batches made by `work(ticket, 0)` on the consumer's own thread, when it asks for them."""

    def __init__(
        self,
        draw: Callable[[], Ticket | None],
        work: Callable[[Ticket, int], Any],
        *,
        cursor: Any,
        release: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.cursor = cursor
        self._draw = draw
        self._work = work
        self._release = release
        self._closed = False

    def next(self) -> Any:
        """Give the next batch; None at the end."""
        if self._closed:
            raise ClosedError("this loader is closed")
        ticket = self._draw()
        if ticket is None:
            return None
        result = self._work(ticket, 0)
        self.cursor = ticket.after
        return result

    def close(self) -> None:
        """Let go of what the batches were made from."""
        self._closed = True
        for release in self._release:
            release()


class _Slot:
    __slots__ = ("done", "error", "result", "ticket")

    def __init__(self, error: BaseException | None = None) -> None:
        self.ticket: Ticket | None = None
        self.result: Any = None
        self.error = error
        self.done = error is not None


class OrderedBatches:
    """Batches made by `work(ticket, worker)` out of the tickets that `draw` gives, in order.

    `draw` gives None at the end, and is called by one thread at a time. An error in either
    reaches the consumer in the batch's place, with its own traceback.
    """

    def __init__(
        self,
        draw: Callable[[], Ticket | None],
        work: Callable[[Ticket, int], Any],
        *,
        workers: int,
        depth: int,
        cursor: Any,
        release: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.cursor = cursor
        self._draw = draw
        self._work = work
        self._depth = max(depth, workers)
        self._release = release
        self._drawing = threading.Lock()
        self._changed = threading.Condition()
        self._slots: deque[_Slot] = deque()
        self._ended = False
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(n,), name=f"relive-batches-{n}", daemon=True)
            for n in range(max(1, workers))
        ]
        for thread in self._threads:
            thread.start()

    def next(self) -> Any:
        """Give the next batch; None at the end."""
        with self._changed:
            while not (self._slots and self._slots[0].done):
                if self._closed:
                    raise ClosedError("this loader is closed")
                if self._ended and not self._slots:
                    return None
                self._changed.wait()
            slot = self._slots.popleft()
            self._changed.notify_all()
        if slot.error is not None:
            raise slot.error
        if slot.ticket is not None:
            self.cursor = slot.ticket.after
        return slot.result

    def close(self) -> None:
        """Stop the threads and wait for them."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            # The garbage collector runs this, maybe where one of the locks is held: to wait
            # here would be to wait for ourselves.
            threading.Thread(target=self._end, name="relive-batches-end", daemon=True).start()
        else:
            self._end()

    def _end(self) -> None:
        self._join(time.monotonic() + _PATIENCE_S)
        for release in self._release:
            release()
        if self._release:  # some may have waited for what is now gone
            self._join(time.monotonic() + _GRACE_S)
        if any(thread.is_alive() for thread in self._threads):
            warnings.warn(
                f"a transform or gather did not return within {_PATIENCE_S:.0f} s of close(); "
                "its thread ends when it does",
                RuntimeWarning,
                stacklevel=3,
            )
        self._slots.clear()

    def _join(self, deadline: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self, worker: int) -> None:
        while (slot := self._claim()) is not None:
            if slot.ticket is not None:
                try:
                    slot.result = self._work(slot.ticket, worker)
                except BaseException as error:  # noqa: BLE001 - it belongs to the consumer
                    slot.error = error
            with self._changed:
                slot.done = True
                self._changed.notify_all()

    def _claim(self) -> _Slot | None:
        """Draw the next ticket once there is room for its batch; None when there is no more."""
        with self._drawing:
            with self._changed:
                while len(self._slots) >= self._depth and not self._closed:
                    self._changed.wait()
                if self._closed or self._ended:
                    return None
            slot = _Slot()
            try:
                slot.ticket = self._draw()
            except BaseException as error:  # noqa: BLE001 - it belongs to the consumer
                slot = _Slot(error=error)
            with self._changed:
                self._ended = slot.ticket is None
                if slot.ticket is not None or slot.error is not None:
                    self._slots.append(slot)
                self._changed.notify_all()
            return slot if slot.ticket is not None else None
