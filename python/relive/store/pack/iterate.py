"""Entries one after the other, decoded while the caller works on those before."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeAlias

from relive.errors import ClosedError, InvalidError
from relive.model.indices import IndexArray

__all__ = ["Batches", "Entries", "Failed", "check_errors"]

Decode: TypeAlias = Callable[[IndexArray, int], list[Any]]
"""Gives for each row what it is, or how reading it failed; on so many threads."""


class Failed:
    """Stands in the place of an entry that could not be read."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def check_errors(errors: str) -> bool:
    """Whether bad entries are skipped."""
    if errors not in {"raise", "skip"}:
        raise InvalidError(f"errors is 'raise' or 'skip', not {errors!r}")
    return errors == "skip"


class _Ahead:
    """Groups of rows, each decoded while the one before is in the caller's hands.

    One thread of Python waits for the native ones; it ends with the iterator. A forked child
    has no such thread.
    """

    def __init__(self, decode: Decode, groups: Iterator[IndexArray], workers: int) -> None:
        self._decode = decode
        self._groups = groups
        self._workers = workers
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._next: Future[list[Any]] | None = None

    def next_group(self) -> list[Any] | None:
        if self._process != os.getpid():
            raise ClosedError(
                "this iterator belongs to the process that forked", hint="make another one here"
            )
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="relive-decode")
            self._begin()
        ready = self._next
        if ready is None:
            self.close()
            return None
        items = ready.result()
        self._begin()
        return items

    def _begin(self) -> None:
        rows = next(self._groups, None)
        if self._pool is None or rows is None:
            self._next = None
        else:
            self._next = self._pool.submit(self._decode, rows, self._workers)

    def close(self) -> None:
        self._groups = iter(())
        self._next = None
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown(wait=False, cancel_futures=True)


class Batches:
    """An iterator over lists of decoded entries."""

    def __init__(
        self,
        decode: Decode,
        groups: Iterator[IndexArray],
        workers: int,
        skip: bool,  # noqa: FBT001 - made by the reader alone
    ) -> None:
        self._ahead = _Ahead(decode, groups, workers)
        self._skip = skip
        self.skipped = 0
        """How many bad entries were left out so far."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Any]:
        """Give the next list; a bad entry is raised, and ends the iteration."""
        while True:
            items = self._ahead.next_group()
            if items is None:
                raise StopIteration
            good = [item for item in items if not isinstance(item, Failed)]
            if len(good) < len(items) and not self._skip:
                self.close()
                raise next(item.error for item in items if isinstance(item, Failed))
            self.skipped += len(items) - len(good)
            if good:
                return good

    def close(self) -> None:
        """Stop decoding ahead."""
        self._ahead.close()

    def __del__(self) -> None:
        self._ahead.close()


class Entries:
    """An iterator over decoded entries."""

    def __init__(
        self,
        decode: Decode,
        rows: IndexArray,
        workers: int,
        skip: bool,  # noqa: FBT001 - made by the reader alone
        group: int,
    ) -> None:
        # One group is in the caller's hands and one is on its way.
        groups = (rows[start : start + group] for start in range(0, len(rows), group))
        self._ahead = _Ahead(decode, groups, workers)
        self._skip = skip
        self._here: Iterator[Any] = iter(())
        self.skipped = 0
        """How many bad entries were left out so far."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Give the next entry; a bad one is raised, and ends the iteration."""
        while True:
            for item in self._here:
                if not isinstance(item, Failed):
                    return item
                if not self._skip:
                    self.close()
                    raise item.error
                self.skipped += 1
            items = self._ahead.next_group()
            if items is None:
                raise StopIteration
            self._here = iter(items)

    def close(self) -> None:
        """Stop decoding ahead."""
        self._here = iter(())
        self._ahead.close()

    def __del__(self) -> None:
        self._ahead.close()
