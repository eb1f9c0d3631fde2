"""Files by name: what a reader asks of a file that it cannot map."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["RangedFile"]


class RangedFile(Protocol):
    """A file of fixed content that gives any ranges of its bytes. Thread-safe and picklable."""

    @property
    def name(self) -> str:
        """What the file is called in messages: its URI without secrets."""
        ...

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        ...

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Give the bytes of each `(start, stop)`, in the order asked, in one round trip.

        Each has exactly the length that was asked for. Anything else is an error: the file is
        gone, has changed, or could not be reached.
        """
        ...
