"""A tape whose background threads have not written what was appended, as on a busy machine."""

from typing import Any

from relive._native import TapeWriter


class LazyTape:
    """Takes the place of a `TapeWriter`: rows are in its file once it is flushed or closed."""

    unsynced = 0

    def __init__(self, *args: Any) -> None:
        self._tape = TapeWriter(*args)
        self._waiting: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @property
    def rows(self) -> int:
        return self._tape.rows + len(self._waiting)

    @property
    def last_ts(self) -> int | None:
        return self._waiting[-1][0] if self._waiting else self._tape.last_ts

    def append(self, *row: Any) -> None:
        LazyTape.unsynced += 1
        self._waiting.append(row)

    def flush(self) -> None:
        while self._waiting:
            self._tape.append(*self._waiting.pop(0))
        self._tape.flush()

    def sync(self) -> None:
        self.flush()
        self._tape.sync()
        LazyTape.unsynced = 0

    def abort(self) -> None:
        self._waiting.clear()
        self._tape.abort()

    def close(self) -> None:
        if self._waiting:
            self.flush()
        self._tape.close()
