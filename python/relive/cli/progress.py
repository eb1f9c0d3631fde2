"""A progress bar for long work, shown only to people."""

import shutil
import sys
import time
from typing import Final, Self

_BAR: Final = 24
_EVERY_S: Final = 0.1


class Progress:
    """Shows on stderr how much of `total` is done, if that is a terminal; else does nothing.

    Call it with the number done so far. The line is gone when the block ends.
    """

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._visible = sys.stderr.isatty()
        self._started = time.monotonic()
        self._drawn = 0.0
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show that `done` of the total are done; `total` replaces what it was before."""
        self._total = self._total if total is None else total
        now = time.monotonic()
        if not self._visible or now - self._drawn < _EVERY_S:
            return
        self._drawn = now
        self._draw(self._line(done, now - self._started))

    def out_of(self, done: int, total: int | None) -> None:
        """Show that `done` of a total that was not known before are done."""
        self(done, total)

    def clear(self) -> None:
        """Take the line away, so that something else can be said."""
        if self._width:
            self._draw("")
            self._width = 0

    def _line(self, done: int, seconds: float) -> str:
        share = min(1.0, done / self._total) if self._total else 1.0
        bar = ("#" * int(share * _BAR)).ljust(_BAR, ".")
        line = f"{self._label} [{bar}] {share:4.0%}  {done} of {self._total}"
        if done and share < 1:
            left = seconds * (1 - share) / share
            line += f"  {int(left // 60)}:{int(left % 60):02} left"
        return line

    def _draw(self, line: str) -> None:
        line = line[: shutil.get_terminal_size().columns - 1]
        ending = "\r" if not line else ""
        sys.stderr.write(f"\r{line.ljust(self._width)}{ending}")
        sys.stderr.flush()
        self._width = len(line)
