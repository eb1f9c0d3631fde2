"""What the entries of packs amount to, and which runs match."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive import _native
from relive.errors import InvalidError, InvalidTypeError
from relive.model.source import IndexArray, Rows
from relive.store.pack.files import Part

__all__ = ["COLUMNS", "Columns", "PackStats", "pack_stats", "read_columns"]

COLUMNS: Final = ("engine", "highest_tile", "max_score", "steps")
"""What is known of every run without decoding it."""


class PackStats:
    """The entries of a pack in numbers; lengths are the steps of its runs."""

    count: int
    """Entries."""
    total_steps: int
    min_len: int
    max_len: int
    mean_len: float
    p50_len: int
    p90_len: int
    p99_len: int
    highest_tile_hist: dict[int, int]
    """Runs by their highest tile."""
    engine_counts: dict[str, int]
    """Runs by engine; those without one are not counted."""
    kind_counts: dict[str, int]
    """Entries by kind."""
    payload_bytes: int
    """Bytes of all payloads, decoded."""
    stored_bytes: int
    """Bytes of all payloads as they are stored."""
    padding_bytes: int
    """Zeros behind the entries."""

    def __init__(
        self, *, _count: Callable[[], dict[str, Any]] | None = None, **numbers: Any
    ) -> None:
        self.__dict__.update(numbers)
        self._count = _count

    def __getattr__(self, name: str) -> Any:
        """Count what was not counted yet, when it is first asked for."""
        if name not in _NAMES or self._count is None:
            raise AttributeError(name)
        self.__dict__.update(self._count())
        return self.__dict__[name]

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: numbers of an immutable pack do not change."""
        if name != "_count":
            raise AttributeError(f"{name} of a pack cannot be set")
        self.__dict__[name] = value

    def as_dict(self) -> dict[str, Any]:
        """Give all numbers under their names."""
        return {name: getattr(self, name) for name in _NAMES}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackStats) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PackStats(count={self.count}, total_steps={self.total_steps})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the numbers, and not where they come from."""
        return _restore, (self.as_dict(),)


def _restore(numbers: dict[str, Any]) -> PackStats:
    return PackStats(**numbers)


_NAMES: Final = tuple(PackStats.__annotations__)


@dataclass(frozen=True, slots=True)
class Columns:
    """What is known of each entry without decoding it; zeros where it is no run."""

    is_run: npt.NDArray[np.bool_]
    steps: npt.NDArray[np.uint32]
    highest_tile: npt.NDArray[np.uint32]
    max_score: npt.NDArray[np.uint64]
    engine: npt.NDArray[np.int64]
    """A position in `engines`, or -1."""
    engines: tuple[str, ...]

    def keys(self, name: str) -> npt.NDArray[Any] | list[str | None]:
        """Give a column as keys to group by."""
        if name != "engine":
            column: npt.NDArray[Any] = getattr(self, name)
            return column
        return [None if number < 0 else self.engines[number] for number in self.engine]

    def matching(
        self,
        ranges: Mapping[str, tuple[int | None, int | None] | None],
        engine: str | Sequence[str] | None,
    ) -> IndexArray:
        """Give the positions of the runs that lie in all ranges and have one of the engines."""
        fit = self.is_run.copy()
        for name, bounds in ranges.items():
            if bounds is None:
                continue
            low, high = _bounds(name, bounds)
            column = getattr(self, name)
            fit &= (column >= low) if low is not None else True
            fit &= (column < high) if high is not None else True
        if engine is not None:
            names = [engine] if isinstance(engine, str) or not _listed(engine) else list(engine)
            if not all(isinstance(name, str) for name in names):
                raise InvalidTypeError(f"engine is a name or a list of names, not {engine!r}")
            known = {name: number for number, name in enumerate(self.engines)}
            fit &= np.isin(self.engine, [known[name] for name in names if name in known])
        return np.flatnonzero(fit).astype(np.int64)


def read_columns(parts: Sequence[Part], rows: Rows | None) -> Columns:
    """Give the columns of all entries, or of those at `rows`."""
    engines: dict[str, int] = {}
    found: list[tuple[npt.NDArray[Any], ...]] = []
    for part in parts:
        native = part.native.run_columns()
        # One number more, so that the largest, which is none, finds -1 there.
        numbers = [engines.setdefault(name, len(engines)) for name in native["engines"]]
        lookup = np.array([*numbers, -1], dtype=np.int64)
        kinds = part.native.kind_ids()
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


def pack_stats(parts: Sequence[Part], places: tuple[IndexArray, IndexArray] | None) -> PackStats:
    """Give the numbers of all entries, or of those at `places`.

    A pack that has its lengths summed up, and no columns of runs, is read only when somebody
    asks for what the sum does not say.
    """

    def count() -> dict[str, Any]:
        return _native.pack_stats([part.native for part in parts], *(places or (None, None)))

    native = parts[0].native
    summed = native.summary() if places is None and len(parts) == 1 else None
    if summed is None or any(tag == "RUNS" for tag, _, _ in native.describe()["sections"]):
        return PackStats(**count())
    return PackStats(**summed, **native.layout(), _count=count)


def _listed(value: object) -> bool:
    return isinstance(value, Iterable)


def _bounds(name: str, bounds: object) -> tuple[int | None, int | None]:
    pair = tuple(bounds) if isinstance(bounds, tuple | list | range) else ()
    if len(pair) != 2 or not all(  # noqa: PLR2004 - a pair
        end is None or (isinstance(end, int | np.integer) and not isinstance(end, bool))
        for end in pair
    ):
        raise InvalidError(
            f"{name} is a pair of bounds, from (included) and to (excluded), not {bounds!r}",
            hint=f"{name}=(100, 200), or (100, None) without an end",
        )
    low, high = pair
    return low, high
