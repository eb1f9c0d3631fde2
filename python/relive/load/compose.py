"""Sources made of other sources: `Concat`, `Mix` and `Map`."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, cast

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import INT64_MAX, as_int, type_name
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.source import (
    KEYS_PER_RUN,
    Batch,
    IndexArray,
    Indices,
    Row,
    RowKeys,
    Source,
    as_indices,
    check_out,
    check_source,
    over_snapshot,
    pick_fields,
)

if TYPE_CHECKING:
    from relive._native import Table

_MAX_CYCLE: Final = 65_536
"""The longest cycle of a mix, in rows; weights are exact, or accurate to one in so many."""
_SHORT_CYCLE: Final = 1000
_EXACT: Final = 1e-9
_TOLERANCE: Final = 0.1
"""The largest relative error of the share of a source."""


class _Joined(Source):
    """Rows of several sources with the same fields."""

    def __init__(self, parts: Sequence[Source]) -> None:
        if not parts:
            raise InvalidError(f"{type(self).__name__} needs at least one source")
        for part in parts:
            check_source(part)
        self._parts = tuple(parts)
        self._fields = _common_fields(self._parts)
        self._native: Table | None = None
        self._snapshot: _Joined | None = None
        self._number(0)

    def _number(self, first_run: int) -> None:
        """Number the sources, from the run `first_run` on, so that no two have the same keys.

        A source is numbered by its position, not by how many rows are before it: it may grow.
        """
        runs = [part.run_count if isinstance(part, _Joined) else 1 for part in self._parts]
        self._runs = np.cumsum([first_run, *runs], dtype=np.int64)
        self._numbered = tuple(
            part.numbered_from(int(run) * KEYS_PER_RUN)
            for part, run in zip(self._parts, self._runs, strict=False)
        )

    @property
    def run_count(self) -> int:
        """How many runs there are; a source without transitions counts as one, too."""
        return int(self._runs[-1] - self._runs[0])

    @property
    def parts(self) -> tuple[Source, ...]:
        """The sources that this one is made of."""
        return self._parts

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields, which are those of every source."""
        return self._fields

    def native_table(self) -> "Table | None":
        """Return all sources as one table of the Rust core, if each of them has one."""
        # The core matches columns by position.
        ordered = all(list(part.fields) == list(self._fields) for part in self._parts)
        if self._native is None and ordered:
            tables = [part.native_table() for part in self._numbered]
            native = [table for table in tables if table is not None]
            if len(native) == len(tables):
                self._native = self._join(native)
        return self._native

    def snapshot(self) -> Source:
        """Return the same of snapshots of the sources."""
        parts = tuple(part.snapshot() for part in self._parts)
        if _are_same(parts, self._parts):
            return self
        if self._snapshot is None or not _are_same(parts, self._snapshot.parts):
            self._snapshot = self._of(parts)
        return self._snapshot

    def numbered_from(self, start: int) -> Source:
        """Return the rows of now with keys from `start` on, also in the field that has them."""
        made = self._of(self._numbered)
        made._number(start // KEYS_PER_RUN)  # noqa: SLF001 - of this class
        return made

    def origin_of(self, index: npt.ArrayLike) -> tuple[IndexArray, IndexArray]:
        """Return the source of each transition among `parts`, and its `index` there.

        Args:
            index: The field `index` of batches, of any shape.
        """
        keys = as_indices(index, INT64_MAX, check=False)
        runs = keys // KEYS_PER_RUN
        if len(bad := keys[(runs < self._runs[0]) | (runs >= self._runs[-1])]):
            raise OutOfRangeError(
                f"index {bad[0]} is out of range for {len(self._parts)} sources",
                hint="pass the field `index` of batches of this source",
            )
        parts = np.searchsorted(self._runs, runs, side="right") - 1
        for number in np.unique(parts).tolist():
            part = self._parts[number]
            if not isinstance(part, _Joined) and part.row_keys() is None:
                raise InvalidError(
                    f"source {number} has no transitions, so its rows have no `index`",
                    hint="origin_of() is for the transitions of several runs",
                )
        return parts, keys - self._runs[parts] * KEYS_PER_RUN

    @abstractmethod
    def _of(self, parts: Sequence[Source]) -> Self:
        """Return the same of other sources."""

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the rows of each source at once and return them in the order requested."""
        rows = as_indices(indices, len(self))
        picked = pick_fields(self._fields, fields)
        given = check_out(out, picked, rows.shape)
        which, local = self._find(rows.ravel())
        result: Batch = {}
        found: list[tuple[IndexArray, Batch]] = []
        for number, part in enumerate(self._numbered):
            (at,) = np.nonzero(which == number)
            if len(at):
                found.append((at, part.gather(local[at], list(picked))))
        for name, field in picked.items():
            if field.ragged:
                result[name] = _interleave(field, found, name)
                continue
            target = given.get(name)
            if target is None:
                target = np.empty(rows.shape + field.shape, field.array_dtype)
            flat = target.reshape((rows.size, *field.shape))
            for at, batch in found:
                flat[at] = batch[name]
            result[name] = target
        return result

    @abstractmethod
    def _join(self, tables: list["Table"]) -> "Table":
        """Return one table of the core with the rows of all sources."""

    @abstractmethod
    def _find(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Return the number of the source, and the row in it, of each row."""


class Concat(_Joined):
    """All rows of all sources, one source after the other.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> from relive.load import Concat
        >>> both = Concat(relive.ArraySource(np.arange(3)), relive.ArraySource(np.arange(10, 12)))
        >>> both.gather([0, 4])["data"].tolist()
        [0, 11]

    Of the transitions of several runs, `index` is that of the run plus `2**40` times its position
    among them, so that it means the same step however the runs grow. `origin_of` returns both.
    """

    def __init__(self, *sources: Source) -> None:
        super().__init__(sources)
        self._starts = np.cumsum([0, *map(len, self._numbered)], dtype=np.int64)

    def __len__(self) -> int:
        """Count the rows."""
        return int(self._starts[-1])

    def block_bounds(self) -> IndexArray | None:
        """Return the blocks of all sources; None if one has none."""
        joined = [np.zeros(1, dtype=np.int64)]
        for start, part in zip(self._starts, self._parts, strict=False):
            bounds = part.block_bounds()
            if bounds is None:
                return None
            joined.append(bounds[1:] + start)
        return np.concatenate(joined)

    def row_keys(self) -> tuple[RowKeys, ...] | None:
        """Return the keys of all sources, which must have some or none."""
        found = [part.row_keys() for part in self._numbered]
        keys = [each for each in found if each is not None]
        if keys and len(keys) < len(found):
            raise InvalidError(
                "a PrioritizedSampler cannot draw from a Concat of transitions and other sources",
                hint="use a sampler for each of them",
            )
        return tuple(each for part in keys for each in part) if keys else None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the sources."""
        return type(self), self._parts

    def _of(self, parts: Sequence[Source]) -> Self:
        return over_snapshot(self, Concat, *parts)

    def _join(self, tables: list["Table"]) -> "Table":
        return _native.Table.concat(tables)

    def _find(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        which = np.searchsorted(self._starts, rows, side="right") - 1
        return which, rows - self._starts[which]


class Mix(_Joined):
    """Rows of several sources in fixed proportions, evenly spread.

    Row `i` of a mix is always the same row of the same source, so a mix can be shuffled,
    split and resumed like any source. A source that has fewer rows than its share starts again
    from its first row.

    Args:
        sources: The sources to mix; all must have the same fields.
        weights: Their proportions; by default their lengths.
        length: The number of rows; by default the fewest that contain every row of every
            source with a weight above zero.
        seed: Chooses the order of sources.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> from relive.load import Mix
        >>> real, simulated = (relive.ArraySource(np.full(100, value)) for value in (0, 1))
        >>> mix = Mix(real, simulated, weights=[1, 3])
        >>> mix.gather(range(100))["data"].mean()
        np.float64(0.75)
    """

    def __init__(
        self,
        *sources: Source,
        weights: Sequence[float] | None = None,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sources)
        self._arguments: dict[str, Any] = {"weights": weights, "length": length, "seed": seed}
        lengths = np.array([len(part) for part in self._numbered], dtype=np.int64)
        shares = _shares(weights, lengths)
        self._seed = as_int("seed", seed)
        self._given = tuple(float(w) for w in (lengths if weights is None else weights))
        self._counts = _cycle_counts(shares)
        used = self._counts > 0
        if not lengths[used].all():
            empty = int(np.argmax(used & (lengths == 0)))
            raise InvalidError(f"source {empty} has no rows, so its weight must be 0")
        self._cycle = _cycle_order(self._counts, self._seed)
        self._ranks = np.zeros(len(self._cycle), dtype=np.int64)
        needed = 0
        for number in np.flatnonzero(used):
            (at,) = np.nonzero(self._cycle == number)
            self._ranks[at] = np.arange(len(at))
            cycles, rank = divmod(int(lengths[number]) - 1, len(at))
            needed = max(needed, cycles * len(self._cycle) + int(at[rank]) + 1)
        self._length = as_int("length", needed if length is None else length)
        self._lengths = lengths

    @property
    def weights(self) -> tuple[float, ...]:
        """The actual proportions, which sum to 1."""
        return tuple(float(count) / len(self._cycle) for count in self._counts)

    def __len__(self) -> int:
        """Count the rows."""
        return self._length

    def row_keys(self) -> tuple[RowKeys, ...] | None:
        """Return None, as positions are the numbers of the rows; raise if sources have keys."""
        if any(part.row_keys() is not None for part in self._numbered):
            raise InvalidError(
                "a PrioritizedSampler cannot draw from a Mix of transitions, which repeats rows",
                hint="use relive.load.Concat",
            )
        return None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments."""
        make = partial(Mix, weights=self._given, length=self._length, seed=self._seed)
        return make, self._parts

    def _of(self, parts: Sequence[Source]) -> Self:
        return over_snapshot(self, Mix, *parts, **self._arguments)

    def _join(self, tables: list["Table"]) -> "Table":
        return _native.Table.mix(tables, self._cycle.tolist(), self._length)

    def _find(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        cycles, slots = np.divmod(rows, len(self._cycle))
        which = self._cycle[slots]
        turns = cycles * self._counts[which] + self._ranks[slots]
        return which, turns % self._lengths[which]


class Map(Source):
    """A source whose batches are passed through a function when they are read.

    Args:
        source: The source of rows.
        function: `function(batch) -> batch` on dicts of arrays with one value per row; or, with
            `per_row`, `function(row) -> row` on dicts of single values.
        fields: The fields of the result; by default found by calling the function on the first
            row. A field whose rows vary in size does so in the result under the same name.
        per_row: Call the function on one row at a time.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> from relive.load import Map
        >>> images = relive.ArraySource(np.full((10, 4, 4), 255, np.uint8))
        >>> scaled = Map(images, lambda batch: {"x": batch["data"] / 255})
        >>> scaled
        Map(10 rows: x float64 (4, 4))
    """

    def __init__(
        self,
        source: Source,
        function: Callable[[Any], Mapping[str, Any]],
        *,
        fields: Mapping[str, Field] | None = None,
        per_row: bool = False,
    ) -> None:
        check_source(source)
        if not callable(function):
            raise InvalidTypeError(f"`function` must be callable, got {function!r}")
        self._source = source
        self._function = function
        self._fields = None if fields is None else dict(fields)
        self._per_row = per_row
        self._snapshot: Map | None = None

    @property
    def source(self) -> Source:
        """The source of rows."""
        return self._source

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of the result."""
        if self._fields is None:
            if len(self._source) == 0:
                raise InvalidError(
                    "cannot infer the fields that the function passed to Map returns: "
                    "the source has no rows",
                    hint="pass fields=",
                )
            first = self._apply(np.zeros(1, dtype=np.int64))
            self._fields = {name: self._field(name, values) for name, values in first.items()}
        return self._fields

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._source)

    def block_bounds(self) -> IndexArray | None:
        """Return the blocks of the source."""
        return self._source.block_bounds()

    def snapshot(self) -> Source:
        """Return the same of a snapshot of the source."""
        source = self._source.snapshot()
        if source is self._source:
            return self
        if self._snapshot is None or self._snapshot.source is not source:
            options = {"fields": self._fields, "per_row": self._per_row}
            self._snapshot = over_snapshot(self, Map, source, self._function, **options)
        return self._snapshot

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read rows and apply the function; see `Source.gather`."""
        rows = as_indices(indices, len(self))
        picked = pick_fields(self.fields, fields)
        given = check_out(out, picked, rows.shape)
        if rows.size == 0:
            return {name: given.get(name, _empty(f, rows.shape)) for name, f in picked.items()}
        mapped = self._apply(rows.ravel())
        result: Batch = {}
        for name, field in picked.items():
            values = _checked(name, field, mapped, rows.size)
            if isinstance(values, np.ndarray):
                values = values.reshape(rows.shape + field.shape)
                if not values.flags.writeable:
                    values = values.copy()
                target = given.get(name)
                if target is not None:
                    target[...] = values
                    values = target
            result[name] = values
        return result

    def _apply(self, rows: IndexArray) -> dict[str, npt.NDArray[Any] | Ragged]:
        batch = self._source.gather(rows)
        if not self._per_row:
            given = _dict(self._function(batch))
            return {name: _array(name, value) for name, value in given.items()}
        done = [
            _dict(self._function(cast("Row", {name: v[k] for name, v in batch.items()})))
            for k in range(len(rows))
        ]
        return {name: self._stack(name, [row.get(name) for row in done]) for name in done[0]}

    def _varying(self, name: str) -> Field | None:
        """Return the field of that name if its rows vary in size."""
        known = self._source.fields if self._fields is None else self._fields
        field = known.get(name)
        return None if field is None or field.fixed else field

    def _field(self, name: str, values: npt.NDArray[Any] | Ragged) -> Field:
        field = self._varying(name)
        if field is not None and isinstance(values, np.ndarray) and values.dtype.hasobject:
            return Field(field.dtype, values.shape[1:])
        return _field_of(values)

    def _stack(self, name: str, values: list[Any]) -> npt.NDArray[Any] | Ragged:
        field = self._varying(name)
        if field is None:
            try:
                return np.stack([np.asarray(value) for value in values])
            except ValueError as error:
                raise InvalidError(
                    f"the function passed to Map returned {name!r} in different shapes: {error}",
                    hint="pass fields= with Field(dtype, ragged=True)",
                ) from error
        if field.ragged:
            return Ragged.from_list(values, dtype=field.array_dtype)
        stacked = np.empty((len(values), *field.shape), dtype=object)
        for index, value in enumerate(values):
            stacked[index] = value
        return stacked

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments."""
        make = partial(Map, fields=self._fields, per_row=self._per_row)
        return make, (self._source, self._function)


def _are_same(some: Sequence[Source], others: Sequence[Source]) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))


def _common_fields(parts: Sequence[Source]) -> Mapping[str, Field]:
    first = parts[0].fields
    for number, part in enumerate(parts[1:], start=1):
        if _read_as(part.fields) != _read_as(first):
            raise InvalidError(
                f"source {number} has the fields {dict(part.fields)}, "
                f"but source 0 has {dict(first)}",
                hint="use Map to convert one of them",
            )
    return first


def _read_as(fields: Mapping[str, Field]) -> dict[str, object]:
    """Return the type of each field, without how it is stored."""
    return {name: (field.dtype, field.shape, field.ragged) for name, field in fields.items()}


def _shares(weights: Sequence[float] | None, lengths: IndexArray) -> npt.NDArray[np.float64]:
    shares = _numbers(lengths if weights is None else weights)
    if shares.shape != lengths.shape:
        raise InvalidError(
            f"`weights` must have one number for each of {len(lengths)} sources, got {weights!r}"
        )
    if not np.isfinite(shares).all() or (shares < 0).any() or shares.sum() <= 0:
        raise InvalidError(
            f"`weights` must be finite, not negative, and not all zero, got {weights!r}"
        )
    normal: npt.NDArray[np.float64] = shares / shares.sum()
    return normal


def _numbers(weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
    problem = f"`weights` must be numbers, got {weights!r}"
    try:
        given = np.asarray(weights)
        # NumPy would parse strings, and convert None to NaN.
        if given.dtype.kind not in "iufO" or None in given.ravel().tolist():
            raise InvalidTypeError(problem)
        return given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(problem) from error


def _cycle_counts(shares: npt.NDArray[np.float64]) -> IndexArray:
    """Return how many rows of a cycle each source has.

    This is the shortest cycle in which all shares are whole, if there is one; otherwise one
    near the longest in which the smallest share is whole, with the rest by largest remainder. A
    share that cannot be met is an error: its source would appear far more or less often.
    """
    cycles = np.arange(1, _MAX_CYCLE + 1)
    for share in np.unique(shares[shares > 0]):
        exact = share * cycles
        whole = np.rint(exact)
        cycles = cycles[(np.abs(exact - whole) < _EXACT) & (whole > 0)]
    if len(cycles):
        return np.asarray(np.rint(shares * cycles[0]), dtype=np.int64)
    smallest = shares[shares > 0].min()
    room = _MAX_CYCLE
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
            f"the weight of source {number} is too small: {shares[number]:.3g} of the total",
            hint="use weights closer to each other, or Concat, which yields every row exactly once",
        )
    return np.asarray(counts // np.gcd.reduce(counts), dtype=np.int64)


def _cycle_order(counts: IndexArray, seed: int) -> IndexArray:
    """Return the source of every row of a cycle.

    A short cycle is shuffled. A long one is cut into as many equal parts as a source has rows,
    with one row at random in each, so that proportions hold in every part of the cycle.
    """
    rng = np.random.default_rng(seed)
    sources = np.repeat(np.arange(len(counts)), counts)
    if len(sources) <= _SHORT_CYCLE:
        return rng.permutation(sources)
    spots = np.concatenate([(np.arange(n) + rng.random(n)) / max(n, 1) for n in counts])
    return sources[np.argsort(spots, kind="stable")]


def _interleave(field: Field, found: Sequence[tuple[IndexArray, Batch]], name: str) -> Ragged:
    """Return ragged rows of several sources in the order requested."""
    if not found:
        return _no_rows(field)
    joined = Ragged.concat([cast("Ragged", batch[name]) for _, batch in found])
    order = np.concatenate([at for at, _ in found])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return joined.take(back)


def _dict(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidTypeError(
            f"the function passed to Map must return a dict, got {type_name(type(value))}"
        )
    return value


def _array(name: str, value: object) -> npt.NDArray[Any] | Ragged:
    if isinstance(value, Ragged):
        return value
    array = np.asarray(value)
    if array.ndim == 0:
        raise InvalidError(
            f"the function passed to Map must return one value of {name!r} per row, "
            "got a single value",
            hint="pass per_row=True to call the function on one row at a time",
        )
    return array


def _field_of(values: npt.NDArray[Any] | Ragged) -> Field:
    if isinstance(values, Ragged):
        return Field(values.dtype, values.inner, ragged=values.varying)
    return Field(values.dtype, values.shape[1:])


def _no_rows(field: Field) -> Ragged:
    return Ragged(np.empty((0, *field.shape), field.array_dtype), np.zeros(1, dtype=np.int64))


def _empty(field: Field, shape: tuple[int, ...]) -> npt.NDArray[Any] | Ragged:
    if field.ragged:
        return _no_rows(field)
    return np.empty(shape + field.shape, field.array_dtype)


def _checked(
    name: str, field: Field, mapped: Mapping[str, npt.NDArray[Any] | Ragged], count: int
) -> npt.NDArray[Any] | Ragged:
    values = mapped.get(name)
    if values is None:
        raise InvalidError(
            f"the function passed to Map returned the field {name!r} only for some rows"
        )
    if len(values) != count or not _fits(values, field):
        inner = values.inner if isinstance(values, Ragged) else values.shape[1:]
        kind = f"{'ragged ' * isinstance(values, Ragged)}rows of {values.dtype} of shape {inner}"
        raise InvalidError(
            f"the function passed to Map returned {len(values)} {kind} for the field {name!r}, "
            f"expected {count} rows of {field}"
        )
    return values


def _fits(values: npt.NDArray[Any] | Ragged, field: Field) -> bool:
    if values.dtype != field.array_dtype:
        return False
    if not isinstance(values, Ragged):
        return not field.ragged and values.shape[1:] == field.shape
    if values.shapes is None:
        return field.ragged == 1 and values.inner == field.shape
    # Shapes per row do not show which dimensions all rows share.
    return field.ragged > 1 and values.ndim == field.ragged + len(field.shape)
