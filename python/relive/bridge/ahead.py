"""Reading on a thread of its own, so that it goes on while what was read is written."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any, Final, Generic, TypeVar

__all__ = ["ahead"]

Item = TypeVar("Item")
_POLL_S: Final = 0.1


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Reader(Generic[Item]):
    """Takes items on a thread; one is ready while the next is made."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._iterator: Any = iter(items)
        self._ready: queue.Queue[Item | _End] = queue.Queue(maxsize=1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="relive-convert", daemon=True)
        self._thread.start()

    def get(self) -> Item | _End:
        return self._ready.get()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        error = None
        try:
            for item in self._iterator:
                if not self._put(item):
                    break
            close = getattr(self._iterator, "close", None)
            if close is not None:
                close()
        except BaseException as caught:  # noqa: BLE001 - it belongs to whoever asks for items
            error = caught
        self._put(_End(error))

    def _put(self, item: Item | _End) -> bool:
        while not self._stopped.is_set():
            try:
                self._ready.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False


def ahead(items: Iterable[Item]) -> Generator[Item]:
    """Give the items in order, while a thread makes the next one; at most two are held.

    What fails is raised in its place. The thread has ended when the generator is closed.
    """
    reader = _Reader(items)
    try:
        while not isinstance(item := reader.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        reader.close()
