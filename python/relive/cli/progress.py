"""A progress bar for long work."""

import shutil
import sys
import time
from typing import Final, Self

_BAR: Final = 24
_EVERY_S: Final = 0.1


class Progress:
    """Shows on stderr how much is done if that is a terminal, and nothing otherwise.

    Call it with how much is done and, where it was not known before, how much there is in all.
    The bar is removed at the end of the `with` block.
    """

    def __init__(self, label: str, total: int | None = None) -> None:
        self.first: int | None = None
        """The first number that it was called with."""
        self.done = 0
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
        """Show that `done` of `total` is done."""
        self.done = done
        self.first = done if self.first is None else self.first
        self._total = self._total if total is None else total
        now = time.monotonic()
        if self._visible and now - self._drawn >= _EVERY_S:
            self._drawn = now
            self._draw(self._line(now - self._started))

    def clear(self) -> None:
        """Remove the bar, so that something else can be printed."""
        if self._width:
            self._draw("")
            self._width = 0

    def _line(self, seconds: float) -> str:
        if self._total is None:
            return f"{self._label} {self.done}"
        share = min(1.0, self.done / self._total) if self._total else 1.0
        bar = ("#" * int(share * _BAR)).ljust(_BAR, ".")
        line = f"{self._label} [{bar}] {share:4.0%}  {self.done} of {self._total}"
        if self.done and share < 1:
            left = seconds * (1 - share) / share
            line += f"  {int(left // 60)}:{int(left % 60):02} left"
        return line

    def _draw(self, line: str) -> None:
        line = line[: shutil.get_terminal_size().columns - 1]
        ending = "\r" if not line else ""
        sys.stderr.write(f"\r{line.ljust(self._width)}{ending}")
        sys.stderr.flush()
        self._width = len(line)
