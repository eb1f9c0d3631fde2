"""`RangedFile`: what a reader needs of a file that it cannot memory-map."""

from collections.abc import Sequence
from typing import Protocol


class RangedFile(Protocol):
    """A file of fixed content whose bytes are read by range. Thread-safe and picklable."""

    @property
    def name(self) -> str:
        """The name of the file in messages: its URI without secrets."""
        ...

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        ...

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each `(start, stop)`, in the order requested, in one round trip.

        Each has exactly the length requested. It is an error if the file is gone, was changed
        or cannot be reached.
        """
        ...
