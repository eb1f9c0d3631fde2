"""Sources made of other sources: all lazy, all resumable, native where their parts are."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.source import (
    Batch,
    IndexArray,
    Indices,
    Source,
    as_indices,
    check_out,
    check_source,
    pick_fields,
)

if TYPE_CHECKING:
    from relive._native import Table

__all__ = ["Concat", "Mix"]

_MIX_SLOTS: Final = 65_536
"""Most places in a round of a mix: weights are exact, or kept to one in so many."""
_SHORT_ROUND: Final = 1000
_EXACT: Final = 1e-9
_TOLERANCE: Final = 0.1
"""How far off its weight a source's share may be."""


class _Joined(Source):
    """Rows that each lie in one of several parts with the same fields."""

    def __init__(self, parts: Sequence[Source]) -> None:
        if not parts:
            raise InvalidError(f"{type(self).__name__} needs at least one source")
        for part in parts:
            check_source(part)
        self._parts = tuple(parts)
        self._fields = _common_fields(self._parts)
        self._native: Table | None = None

    @property
    def parts(self) -> tuple[Source, ...]:
        """The sources that this one is made of."""
        return self._parts

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields that all parts have."""
        return self._fields

    def native_table(self) -> "Table | None":
        """Give all parts as one table of the core, when each of them is one."""
        # The core joins columns by position.
        ordered = all(list(part.fields) == list(self._fields) for part in self._parts)
        if self._native is None and ordered:
            tables = [part.native_table() for part in self._parts]
            native = [table for table in tables if table is not None]
            if len(native) == len(tables):
                self._native = self._join(native)
        return self._native

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read each part's rows in one go and put them in the order asked."""
        rows = as_indices(indices, len(self))
        picked = pick_fields(self._fields, fields)
        given = check_out(out, picked, rows.shape)
        which, places = self._find(rows.ravel())
        result: Batch = {}
        pieces: list[tuple[IndexArray, Batch]] = []
        for number, part in enumerate(self._parts):
            (at,) = np.nonzero(which == number)
            if len(at):
                pieces.append((at, part.gather(places[at], list(picked))))
        for name, field in picked.items():
            if field.ragged:
                result[name] = _interleave(field, pieces, name)
                continue
            target = given.get(name)
            if target is None:
                target = np.empty(rows.shape + field.shape, field.array_dtype)
            flat = target.reshape((rows.size, *field.shape))
            for at, piece in pieces:
                flat[at] = piece[name]
            result[name] = target
        return result

    @abstractmethod
    def _join(self, tables: list["Table"]) -> "Table":
        """Give one table of the core that has the rows of all parts."""

    @abstractmethod
    def _find(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Give the number of the part and the place in it of each row."""


class Concat(_Joined):
    """All rows of all sources, one source after the other."""

    def __init__(self, *sources: Source) -> None:
        super().__init__(sources)
        self._starts = np.cumsum([0, *map(len, self._parts)], dtype=np.int64)

    def __len__(self) -> int:
        """Count the rows."""
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the sources."""
        return type(self), self._parts

    def _join(self, tables: list["Table"]) -> "Table":
        return _native.Table.concat(tables)

    def _find(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        which = np.searchsorted(self._starts, rows, side="right") - 1
        return which, rows - self._starts[which]


class Mix(_Joined):
    """Rows of several sources in fixed proportions, evenly spread.

    Row `i` of a mix is always the same row of the same source, so a mix can be shuffled,
    split and resumed like any source. A source whose share is more than it has starts over.

    Args:
        sources: What to mix; all need the same fields.
        weights: Their proportions, by default their lengths.
        length: Rows of the mix; by default as many as it takes to see every row of every
            source with a share at least once.
        seed: Chooses the order of sources within a round.
    """

    def __init__(
        self,
        *sources: Source,
        weights: Sequence[float] | None = None,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sources)
        lengths = np.array([len(part) for part in self._parts], dtype=np.int64)
        shares = _shares(weights, lengths)
        self._seed = as_int("seed", seed)
        self._given = tuple(float(w) for w in (lengths if weights is None else weights))
        self._counts = _deal(shares)
        used = self._counts > 0
        if not lengths[used].all():
            raise InvalidError("an empty source cannot have a share in a mix")
        self._slots = _spread(self._counts, self._seed)
        self._ranks = np.zeros(len(self._slots), dtype=np.int64)
        needed = 0
        for number in np.flatnonzero(used):
            (at,) = np.nonzero(self._slots == number)
            self._ranks[at] = np.arange(len(at))
            rounds, rank = divmod(int(lengths[number]) - 1, len(at))
            needed = max(needed, rounds * len(self._slots) + int(at[rank]) + 1)
        self._length = as_int("length", needed if length is None else length)
        self._lengths = lengths

    @property
    def weights(self) -> tuple[float, ...]:
        """The proportions as they are kept."""
        return tuple(float(count) / len(self._slots) for count in self._counts)

    def __len__(self) -> int:
        """Count the rows."""
        return self._length

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the sources and the recipe."""
        return _restore_mix, (self._parts, self._given, self._length, self._seed)

    def _join(self, tables: list["Table"]) -> "Table":
        return _native.Table.mix(tables, self._slots.tolist(), self._length)

    def _find(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        rounds, slots = np.divmod(rows, len(self._slots))
        which = self._slots[slots]
        turns = rounds * self._counts[which] + self._ranks[slots]
        return which, turns % self._lengths[which]


def _restore_mix(
    parts: tuple[Source, ...], weights: tuple[float, ...], length: int, seed: int
) -> Mix:
    return Mix(*parts, weights=weights, length=length, seed=seed)


def _common_fields(parts: Sequence[Source]) -> Mapping[str, Field]:
    first = parts[0].fields
    for number, part in enumerate(parts[1:], start=1):
        if _read_as(part.fields) != _read_as(first):
            raise InvalidError(
                f"source {number} has other fields than source 0: "
                f"{dict(part.fields)} and {dict(first)}",
                hint="Map() can give both the same ones",
            )
    return first


def _read_as(fields: Mapping[str, Field]) -> dict[str, object]:
    """Give what matters of fields once they are read: how they are stored does not."""
    return {name: (field.dtype, field.shape, field.ragged) for name, field in fields.items()}


def _shares(weights: Sequence[float] | None, lengths: IndexArray) -> npt.NDArray[np.float64]:
    shares = _numbers(lengths if weights is None else weights)
    if shares.shape != lengths.shape:
        raise InvalidError(f"{len(lengths)} sources need as many weights, not {weights!r}")
    if not np.isfinite(shares).all() or (shares < 0).any() or shares.sum() <= 0:
        raise InvalidError(f"weights must not be negative, and not all zero: {weights!r}")
    normal: npt.NDArray[np.float64] = shares / shares.sum()
    return normal


def _numbers(weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    trouble = f"weights must be numbers, not {weights!r}"
    try:
        given = np.asarray(weights)
        # NumPy would read numbers out of text, and None as not a number.
        if given.dtype.kind not in "iufO" or None in given.ravel().tolist():
            raise InvalidTypeError(trouble)
        return given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(trouble) from error


def _deal(shares: npt.NDArray[np.float64]) -> IndexArray:
    """Give the places that each source has in a round.

    The smallest round in which all shares are whole, if there is one; otherwise one near the
    largest in which the smallest share is, dealt out by largest remainder. A share that cannot
    be kept is an error: its source would be seen far more often, or less, than was asked.
    """
    places = np.arange(1, _MIX_SLOTS + 1)
    for share in np.unique(shares[shares > 0]):
        exact = share * places
        whole = np.rint(exact)
        places = places[(np.abs(exact - whole) < _EXACT) & (whole > 0)]
    if len(places):
        return np.asarray(np.rint(shares * places[0]), dtype=np.int64)
    smallest = shares[shares > 0].min()
    room = _MIX_SLOTS
    if smallest * room >= 1:
        room = int(np.rint(np.floor(smallest * room) / smallest))
    exact = shares * room
    counts = np.floor(exact).astype(np.int64)
    for number in np.argsort(counts - exact, kind="stable")[: room - int(counts.sum())]:
        counts[number] += 1
    off = np.abs(counts / counts.sum() - shares) > _TOLERANCE * shares
    if off.any():
        number = int(np.argmax(off))
        raise InvalidError(
            f"source {number} has a share of {shares[number]:.3g}, "
            f"which a mix of {_MIX_SLOTS} places cannot keep",
            hint="give weights= that differ less; Concat takes every row once",
        )
    return np.asarray(counts // np.gcd.reduce(counts), dtype=np.int64)


def _spread(counts: IndexArray, seed: int) -> IndexArray:
    """Give the source of every place in a round.

    A short round is in any order. In a long one the places of a source lie at random in equal
    parts of it, one in each, so that proportions hold in every stretch and not only in all.
    """
    rng = np.random.default_rng(seed)
    places = np.repeat(np.arange(len(counts)), counts)
    if len(places) <= _SHORT_ROUND:
        return rng.permutation(places)
    spots = np.concatenate([(np.arange(n) + rng.random(n)) / max(n, 1) for n in counts])
    return places[np.argsort(spots, kind="stable")]


def _interleave(field: Field, pieces: Sequence[tuple[IndexArray, Batch]], name: str) -> Ragged:
    """Put ragged rows from several parts in the order asked."""
    if not pieces:
        return Ragged(np.empty((0, *field.shape), field.array_dtype), np.zeros(1, dtype=np.int64))
    joined = Ragged.concat([cast("Ragged", piece[name]) for _, piece in pieces])
    order = np.concatenate([at for at, _ in pieces])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return joined.take(back)
