"""Row groups that were read, kept for the next reader within one bound for the process."""

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final

import numpy.typing as npt

__all__ = ["GROUPS", "GroupCache"]

_LIMIT_BYTES: Final = 64 << 20


class GroupCache:
    """Arrays by key, of which the one that was asked for longest ago goes first; thread-safe.

    The latest stays even where it is larger than the bound: its rows are asked for one by one.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.clear()

    @property
    def held_bytes(self) -> int:
        """The bytes of all arrays that are kept."""
        return self._held

    def get(self, key: Hashable) -> npt.NDArray[Any] | None:
        """Give the array of a key, if it is still here."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, array: npt.NDArray[Any], nbytes: int) -> None:
        """Keep an array that takes `nbytes` for as long as there is room for it."""
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = array, nbytes
            self._held += nbytes
            while self._held > self._limit and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self._held -= freed

    def clear(self) -> None:
        """Keep nothing; also where another thread was inside at a fork."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[npt.NDArray[Any], int]] = OrderedDict()
        self._held = 0


GROUPS: Final = GroupCache(_LIMIT_BYTES)
os.register_at_fork(after_in_child=GROUPS.clear)
