"""Iterators over decoded entries, which are decoded ahead on a background thread."""

from collections.abc import Callable, Iterator
from typing import Any, Self, TypeAlias

from relive._arguments import check_choice
from relive.model.source import IndexArray
from relive.store.prefetch import Prefetch

Decode: TypeAlias = Callable[[IndexArray, int], list[Any]]
"""Returns the value or the `DecodeFailure` of each position, decoded on so many threads."""


class DecodeFailure:
    """Stands for an entry that cannot be decoded."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def skips_errors(errors: str) -> bool:
    """Return whether `errors` is "skip" and not "raise"."""
    check_choice("errors", errors, ("raise", "skip"))
    return errors == "skip"


class _Decoded:
    """Groups of entries; one group is decoded while the caller has the one before."""

    def __init__(
        self, decode: Decode, groups: Iterator[IndexArray], workers: int, *, skip: bool
    ) -> None:
        self._groups = Prefetch(
            lambda positions: decode(positions, workers), groups, name="relive-decode"
        )
        self._skip = skip
        self.skipped = 0
        """How many entries that cannot be decoded were left out so far."""

    def __iter__(self) -> Self:
        return self

    def close(self) -> None:
        """Stop decoding ahead."""
        self._groups.close(wait=False)

    def _refuse(self, failure: DecodeFailure) -> None:
        """Count an entry that cannot be decoded, or raise its error and end the iteration."""
        if not self._skip:
            self.close()
            raise failure.error
        self.skipped += 1


class Batches(_Decoded):
    """An iterator over lists of decoded entries; made by `PackReader.iter_batches`.

    Example:
        >>> import relive
        >>> with relive.PackWriter("a.pack") as writer:
        ...     positions = writer.extend([b"a", b"b", b"c"])
        >>> list(relive.PackReader.open("a.pack").iter_batches(2))
        [[b'a', b'b'], [b'c']]
    """

    def __next__(self) -> list[Any]:
        """Return the next list. An entry that cannot be decoded raises, or is left out."""
        for items in self._groups:
            good = []
            for item in items:
                if isinstance(item, DecodeFailure):
                    self._refuse(item)
                else:
                    good.append(item)
            if good:
                return good
        raise StopIteration


class Entries(_Decoded):
    """An iterator over decoded entries; made by `PackReader.iter_indices`.

    Example:
        >>> import relive
        >>> with relive.PackWriter("a.pack") as writer:
        ...     positions = writer.extend([b"a", b"b", b"c"])
        >>> entries = relive.PackReader.open("a.pack").iter_indices([2, 0], errors="skip")
        >>> list(entries), entries.skipped
        ([b'c', b'a'], 0)
    """

    def __init__(
        self, decode: Decode, positions: IndexArray, workers: int, *, skip: bool, group: int
    ) -> None:
        starts = range(0, len(positions), group)
        groups = (positions[start : start + group] for start in starts)
        super().__init__(decode, groups, workers, skip=skip)
        self._current: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        """Return the next entry. One that cannot be decoded raises, or is left out."""
        while True:
            for item in self._current:
                if not isinstance(item, DecodeFailure):
                    return item
                self._refuse(item)
            self._current = iter(next(self._groups))

    def close(self) -> None:
        """Stop decoding ahead."""
        self._current = iter(())
        super().close()
