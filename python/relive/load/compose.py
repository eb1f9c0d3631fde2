"""Sources made of other sources: all lazy, all resumable, native where their parts are."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt

from relive import _native
from relive.errors import InvalidError, InvalidTypeError
from relive.load.sharding import natural
from relive.model.indices import IndexArray, Indices, as_indices
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.source import Batch, Row, Source, check_out, pick_fields

if TYPE_CHECKING:
    from relive._native import Table

__all__ = ["Concat", "Map", "Mix"]

_MIX_SLOTS: Final = 1000
"""Weights are kept to a thousandth: a round of a mix has so many places."""


class _Joined(Source):
    """Rows that each lie in one of several parts with the same fields."""

    def __init__(self, parts: Sequence[Source]) -> None:
        if not parts:
            raise InvalidError(f"{type(self).__name__} needs at least one source")
        for part in parts:
            if not isinstance(part, Source):
                raise InvalidTypeError(f"a {type(part).__name__} is not a source")
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
        if self._native is None:
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

    def _join(self, tables: list["Table"]) -> "Table":
        raise NotImplementedError

    def _find(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Give the number of the part and the place in it of each row."""
        raise NotImplementedError


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
        self._seed = natural("seed", seed)
        self._counts = _deal(shares)
        used = self._counts > 0
        if not lengths[used].all():
            raise InvalidError("an empty source cannot have a share in a mix")
        self._slots = np.random.default_rng(self._seed).permutation(
            np.repeat(np.arange(len(self._parts)), self._counts)
        )
        self._ranks = np.zeros(len(self._slots), dtype=np.int64)
        for number in range(len(self._parts)):
            (at,) = np.nonzero(self._slots == number)
            self._ranks[at] = np.arange(len(at))
        if length is None:
            # A source of n rows with c places per round needs n / c rounds.
            rounds = -(-lengths[used] // self._counts[used])
            length = int(rounds.max()) * len(self._slots)
        self._length = natural("length", length)
        self._lengths = lengths

    @property
    def weights(self) -> tuple[float, ...]:
        """The proportions as they are kept: multiples of a thousandth."""
        return tuple(float(count) / len(self._slots) for count in self._counts)

    def __len__(self) -> int:
        """Count the rows."""
        return self._length

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the sources and the recipe."""
        return _restore_mix, (self._parts, self.weights, self._length, self._seed)

    def _join(self, tables: list["Table"]) -> "Table":
        return _native.Table.mix(tables, self._slots.tolist(), self._length)

    def _find(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        rounds, slots = np.divmod(rows, len(self._slots))
        which = self._slots[slots]
        turns = rounds * self._counts[which] + self._ranks[slots]
        return which, turns % self._lengths[which]


class Map(Source):
    """A source whose batches go through a function when they are read.

    Args:
        source: Where rows come from.
        function: `function(batch) -> batch` on dicts of arrays with a first dimension, which
            it must keep; or, with `per_row`, `function(row) -> row` on dicts of single values.
        fields: What the function gives; by default found out by running it on the first row.
        per_row: Call the function on one row at a time.
    """

    def __init__(
        self,
        source: Source,
        function: Callable[[Any], Mapping[str, Any]],
        *,
        fields: Mapping[str, Field] | None = None,
        per_row: bool = False,
    ) -> None:
        if not isinstance(source, Source):
            raise InvalidTypeError(f"a {type(source).__name__} is not a source")
        if not callable(function):
            raise InvalidTypeError(f"function must be callable, not {function!r}")
        self._source = source
        self._function = function
        self._fields = None if fields is None else dict(fields)
        self._per_row = per_row

    @property
    def source(self) -> Source:
        """Where rows come from."""
        return self._source

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the function gives."""
        if self._fields is None:
            if len(self._source) == 0:
                raise InvalidError(
                    "the source is empty, so what the function gives cannot be found out",
                    hint="pass fields=",
                )
            first = self._apply(np.zeros(1, dtype=np.int64))
            self._fields = {name: _field_of(values) for name, values in first.items()}
        return self._fields

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._source)

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read rows and apply the function to them; see `Source.gather`."""
        rows = as_indices(indices, len(self))
        picked = pick_fields(self.fields, fields)
        given = check_out(out, picked, rows.shape)
        if rows.size == 0:
            return {name: given.get(name, _empty(field, rows.shape)) for name, field in picked.items()}
        mapped = self._apply(rows.ravel())
        result: Batch = {}
        for name, field in picked.items():
            values = _checked(name, field, mapped, rows.size)
            if isinstance(values, np.ndarray):
                values = values.reshape(rows.shape + field.shape)
                target = given.get(name)
                if target is not None:
                    target[...] = values
                    values = target
            result[name] = values
        return result

    def _apply(self, rows: IndexArray) -> dict[str, npt.NDArray[Any] | Ragged]:
        batch = self._source.gather(rows)
        if not self._per_row:
            return {name: _array(value) for name, value in _dict(self._function(batch)).items()}
        done = [
            _dict(self._function(cast("Row", {name: v[k] for name, v in batch.items()})))
            for k in range(len(rows))
        ]
        return {name: np.stack([np.asarray(row[name]) for row in done]) for name in done[0]}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the source and the function."""
        return _restore_map, (self._source, self._function, self._fields, self._per_row)


def _restore_mix(
    parts: tuple[Source, ...], weights: tuple[float, ...], length: int, seed: int
) -> Mix:
    return Mix(*parts, weights=weights, length=length, seed=seed)


def _restore_map(
    source: Source,
    function: Callable[[Any], Mapping[str, Any]],
    fields: Mapping[str, Field] | None,
    per_row: bool,  # noqa: FBT001 - called by pickle alone
) -> Map:
    return Map(source, function, fields=fields, per_row=per_row)


def _common_fields(parts: Sequence[Source]) -> Mapping[str, Field]:
    first = parts[0].fields
    for number, part in enumerate(parts[1:], start=1):
        if dict(part.fields) != dict(first):
            raise InvalidError(
                f"source {number} has other fields than source 0: "
                f"{dict(part.fields)} and {dict(first)}",
                hint="Map() can give both the same ones",
            )
    return first


def _shares(weights: Sequence[float] | None, lengths: IndexArray) -> npt.NDArray[np.float64]:
    shares = np.asarray(lengths if weights is None else weights, dtype=np.float64)
    if shares.shape != lengths.shape:
        raise InvalidError(f"{len(lengths)} sources need as many weights, not {weights!r}")
    if not np.isfinite(shares).all() or (shares < 0).any() or shares.sum() <= 0:
        raise InvalidError(f"weights must not be negative, and not all zero: {weights!r}")
    normal: npt.NDArray[np.float64] = shares / shares.sum()
    return normal


def _deal(shares: npt.NDArray[np.float64]) -> IndexArray:
    """Deal the places of a round out by largest remainder; a share above zero gets a place."""
    exact = shares * _MIX_SLOTS
    counts = np.where(shares > 0, np.maximum(1, np.floor(exact)), 0).astype(np.int64)
    for number in np.argsort(np.floor(exact) - exact, kind="stable")[: _MIX_SLOTS - counts.sum()]:
        counts[number] += 1
    return np.asarray(counts // np.gcd.reduce(counts), dtype=np.int64)


def _interleave(field: Field, pieces: Sequence[tuple[IndexArray, Batch]], name: str) -> Ragged:
    """Put ragged rows from several parts in the order asked."""
    if not pieces:
        return Ragged(np.empty((0, *field.shape), field.array_dtype), np.zeros(1, dtype=np.int64))
    joined = Ragged.concat([cast("Ragged", piece[name]) for _, piece in pieces])
    order = np.concatenate([at for at, _ in pieces])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return joined.take(back)


def _dict(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidTypeError(f"the function must give a dict, and gave {type(value).__name__}")
    return value


def _array(value: object) -> npt.NDArray[Any] | Ragged:
    return value if isinstance(value, Ragged) else np.asarray(value)


def _field_of(values: npt.NDArray[Any] | Ragged) -> Field:
    if isinstance(values, Ragged):
        return Field(values.dtype, values.inner, ragged=True)
    return Field(values.dtype, values.shape[1:])


def _empty(field: Field, shape: tuple[int, ...]) -> npt.NDArray[Any] | Ragged:
    if field.ragged:
        return Ragged(np.empty((0, *field.shape), field.array_dtype), np.zeros(1, dtype=np.int64))
    return np.empty(shape + field.shape, field.array_dtype)


def _checked(
    name: str, field: Field, mapped: Mapping[str, npt.NDArray[Any] | Ragged], count: int
) -> npt.NDArray[Any] | Ragged:
    values = mapped.get(name)
    if values is None:
        raise InvalidError(f"the function gave no {name!r} this time, and gave one for other rows")
    if len(values) != count or _field_of(values) != Field(field.dtype, field.shape, ragged=field.ragged):
        raise InvalidError(
            f"the function gave {name!r} as {len(values)} rows of {_field_of(values)}, "
            f"and should give {count} of {field}"
        )
    return values
