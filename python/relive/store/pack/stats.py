"""Counts of the entries of packs, and the columns by which runs are selected."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive import _native
from relive.errors import InvalidError, InvalidTypeError
from relive.model.source import IndexArray, Rows
from relive.store.pack.files import PackFile

COLUMNS: Final = ("steps", "highest_tile", "max_score", "engine")
"""What is stored for every run and can be read without decoding it."""


class PackStats:
    """Counts of the entries of a pack; made by `PackReader.stats`. A length is a run's steps.

    Example:
        >>> import relive
        >>> with relive.PackWriter("a.pack") as writer:
        ...     position = writer.append(b"payload")
        >>> relive.PackReader.open("a.pack").stats
        PackStats(count=1, total_steps=0)
    """

    count: int
    """The number of entries."""
    total_steps: int
    min_len: int
    max_len: int
    mean_len: float
    p50_len: int
    p90_len: int
    p99_len: int
    highest_tile_hist: dict[int, int]
    """The number of runs by their highest tile."""
    engine_counts: dict[str, int]
    """The number of runs by engine; runs without an engine are not counted."""
    kind_counts: dict[str, int]
    """The number of entries by kind."""
    payload_bytes: int
    """Bytes of all payloads, decompressed."""
    stored_bytes: int
    """Bytes of all payloads as stored."""
    padding_bytes: int
    """Zeros that align entries."""

    def __init__(
        self, *, _count: Callable[[], dict[str, Any]] | None = None, **numbers: Any
    ) -> None:
        self.__dict__.update(numbers)
        self._count = _count

    def __getattr__(self, name: str) -> Any:
        """Compute the missing counts when one of them is first read."""
        if name not in _NAMES or self._count is None:
            raise AttributeError(name)
        self.__dict__.update(self._count())
        return self.__dict__[name]

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse, because a pack is immutable."""
        if name != "_count":
            raise AttributeError(f"cannot set `{name}`: PackStats is read-only")
        self.__dict__[name] = value

    def as_dict(self) -> dict[str, Any]:
        """Return all counts by name."""
        return {name: getattr(self, name) for name in _NAMES}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackStats) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PackStats(count={self.count}, total_steps={self.total_steps})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the counts."""
        return _restore, (self.as_dict(),)


def _restore(numbers: dict[str, Any]) -> PackStats:
    return PackStats(**numbers)


_NAMES: Final = tuple(PackStats.__annotations__)


@dataclass(frozen=True, slots=True)
class Columns:
    """What can be read of each entry without decoding it; zeros for entries that are not runs."""

    is_run: npt.NDArray[np.bool_]
    steps: npt.NDArray[np.uint32]
    highest_tile: npt.NDArray[np.uint32]
    max_score: npt.NDArray[np.uint64]
    engine: npt.NDArray[np.int64]
    """A position in `engines`, or -1."""
    engines: tuple[str, ...]

    def keys(self, name: str) -> npt.NDArray[Any] | list[str | None]:
        """Return a column as keys to group by."""
        if name != "engine":
            column: npt.NDArray[Any] = getattr(self, name)
            return column
        return [None if number < 0 else self.engines[number] for number in self.engine]

    def matching(
        self,
        ranges: Mapping[str, tuple[int | None, int | None] | None],
        engine: str | Sequence[str] | None,
    ) -> IndexArray:
        """Return the positions of the runs that are in all ranges and have one of the engines."""
        fit = self.is_run.copy()
        for name, bounds in ranges.items():
            if bounds is None:
                continue
            low, high = _bounds(name, bounds)
            column = getattr(self, name)
            fit &= (column >= low) if low is not None else True
            fit &= (column < high) if high is not None else True
        if engine is not None:
            single = isinstance(engine, str) or not isinstance(engine, Iterable)
            names: list[Any] = [engine] if single else list(engine)
            if not all(isinstance(name, str) for name in names):
                raise InvalidTypeError(
                    f"`engine` must be a name or a list of names, got {engine!r}"
                )
            known = {name: number for number, name in enumerate(self.engines)}
            fit &= np.isin(self.engine, [known[name] for name in names if name in known])
        return np.flatnonzero(fit).astype(np.int64)


def read_columns(files: Sequence[PackFile], rows: Rows | None) -> Columns:
    """Return the columns of all entries, or of those at `rows`."""
    engines: dict[str, int] = {}
    found: list[tuple[npt.NDArray[Any], ...]] = []
    for file in files:
        native = file.native.run_columns()
        # The core marks a missing engine with the largest number; the last item maps it to -1.
        numbers = [engines.setdefault(name, len(engines)) for name in native["engines"]]
        lookup = np.array([*numbers, -1], dtype=np.int64)
        kinds = file.native.kind_ids()
        found.append(
            (
                np.isin(kinds, (1, 2)),
                native["steps"],
                native["highest_tile"],
                native["max_score"],
                lookup[np.minimum(native["engine"], len(numbers))],
            )
        )
    joined = [np.concatenate(column) for column in zip(*found, strict=True)]
    if rows is not None:
        joined = [column[np.asarray(rows, dtype=np.int64)] for column in joined]
    is_run, steps, highest_tile, max_score, engine = joined
    return Columns(is_run, steps, highest_tile, max_score, engine, tuple(engines))


def pack_stats(
    files: Sequence[PackFile], locations: tuple[IndexArray, IndexArray] | None
) -> PackStats:
    """Return the counts of all entries, or of those at `locations`.

    Where a pack stores a summary of its lengths but no columns of runs, the other counts are
    computed when one of them is first read.
    """

    def count() -> dict[str, Any]:
        return _native.pack_stats([file.native for file in files], *(locations or (None, None)))

    native = files[0].native
    summed = native.summary() if locations is None and len(files) == 1 else None
    if summed is None or any(tag == "RUNS" for tag, _, _ in native.describe()["sections"]):
        return PackStats(**count())
    return PackStats(**summed, **native.layout(), _count=count)


def _bounds(name: str, bounds: object) -> tuple[int | None, int | None]:
    pair = tuple(bounds) if isinstance(bounds, tuple | list | range) else ()
    if len(pair) != 2 or not all(  # noqa: PLR2004 - a pair
        end is None or (isinstance(end, int | np.integer) and not isinstance(end, bool))
        for end in pair
    ):
        raise InvalidError(
            f"`{name}` must be a pair of integers or None, got {bounds!r}",
            hint=f"{name}=(100, 200) selects 100 to 199; None means no limit",
        )
    low, high = pair
    return low, high
