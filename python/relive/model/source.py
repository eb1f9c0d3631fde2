"""`Source`, the protocol of everything that is read by row, and the rules for indices.

`gather` is strict, because a negative index in a batch is a bug in the sampler that made it.
Brackets follow Python and NumPy, because people type them.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Protocol, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import (
    InvalidError,
    InvalidTypeError,
    MaskError,
    OutOfRangeError,
    UnknownFieldError,
)
from relive.model.schema import Field

if TYPE_CHECKING:
    from relive._native import Table
    from relive.model.ragged import Ragged
    from relive.model.select import Subset

IndexArray: TypeAlias = npt.NDArray[np.int64]
Indices: TypeAlias = npt.ArrayLike | range
"""Integers of any shape: an array, a nested list, a range."""
Rows: TypeAlias = range | IndexArray
"""Positions in a source."""
Key: TypeAlias = npt.ArrayLike | range | slice | EllipsisType
"""What the `[]` of a source takes."""


Row: TypeAlias = dict[str, Any]
"""One row: per field a NumPy scalar, an array or an object."""
Batch: TypeAlias = "dict[str, npt.NDArray[Any] | Ragged]"
"""Many rows: per field one array, or a `Ragged` where rows differ in length."""

KEYS_PER_RUN: Final = 1 << 40
"""More than the rows of a run: each of several runs has keys of its own, however it grows."""
_BATCH_BYTES: Final = 1 << 20
_BATCH_ROWS: Final = 1024
_BATCH_ROWS_UNSIZED: Final = 64
_REPR_FIELDS: Final = 6
_INT64: Final = np.dtype(np.int64)
_INT64_MAX: Final = int(np.iinfo(np.int64).max)
_BOOLS: Final = frozenset({bool, np.bool_})
_KEY_HINT: Final = "use an integer, a slice, a list or array of integers, or a mask"


class RowKeys(Protocol):
    """Numbers of the rows of a run that stay the same while it gets and loses rows. A snapshot.

    They increase with the position.
    """

    def __len__(self) -> int:
        """Count the rows."""

    @property
    def start(self) -> int:
        """The least key that a row of the run can have: a multiple of `KEYS_PER_RUN`."""

    @property
    def first(self) -> int:
        """No row has a key below this one, now or later."""

    @property
    def settled(self) -> int:
        """What `since` of a later snapshot needs to return every key that was added in between."""

    @property
    def lineage(self) -> object:
        """The same object as long as only the first rows were removed, and others added."""

    @property
    def version(self) -> int:
        """Of two snapshots with the same lineage, the later one has the greater version."""

    def since(self, key: int) -> IndexArray:
        """Return the keys from `key` on.

        If `key` is `settled` of an earlier snapshot, also lower ones that were added since then.
        """


class Source(ABC):
    """Rows that can be read in any order, in batches.

    A subclass implements `fields`, `__len__` and `gather`; everything else follows from them.
    Every source is safe to read from several threads, works in forked and spawned processes,
    and can be used directly as a map-style torch dataset and as a grain data source.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> source = relive.ArraySource({"x": np.arange(10), "y": np.arange(10) ** 2})
        >>> source.gather([7, 0, 7])["y"].tolist()
        [49, 0, 49]
        >>> source[2:5]
        Subset(3 rows: x int64, y int64, of ArraySource)
    """

    @property
    @abstractmethod
    def fields(self) -> Mapping[str, Field]:
        """The fields of every row, by name."""

    @abstractmethod
    def __len__(self) -> int:
        """Count the rows."""

    @abstractmethod
    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the rows at `indices` into one batch, in the order requested, repeats included.

        Args:
            indices: Integers of any shape. A negative index, or one past the end, raises
                `OutOfRangeError`.
            fields: The names of the fields to read; all of them by default.
            out: C-contiguous arrays by field name that receive the rows. The batch then holds
                these arrays.

        Returns:
            Per field a writable array of the shape `indices.shape + field.shape` that belongs
            to the caller. A ragged field is a `Ragged` with one row per index, in C order.
        """

    def native_table(self) -> "Table | None":
        """Return the rows as a table that the Rust core can read on its own threads, or None."""
        return None

    def block_bounds(self) -> IndexArray | None:
        """Return the first row of each block that is read as a whole, then the number of rows.

        None if single rows can be read. A loader with `mode="block"` visits these blocks, for
        instance the row groups of a table.
        """
        return None

    def snapshot(self) -> "Source":
        """Return the rows as they are now, whatever changes later.

        A source that never changes returns itself, and one that has not changed since the last
        call returns the same snapshot.
        """
        return self

    def row_keys(self) -> tuple[RowKeys, ...] | None:
        """Return the numbers of the rows that stay the same while rows are added and removed.

        Those of each run, in the order of their positions. None if positions stay the same. A
        `PrioritizedSampler` draws and updates rows by these numbers.
        """
        return None

    def numbered_from(self, start: int) -> "Source":  # noqa: ARG002 - of sources with keys
        """Return the rows of now with keys from `start` on, also in the field that has them.

        A source whose rows have no keys is returned as it is.
        """
        return self

    def split(
        self,
        ratios: Iterable[float],
        *,
        by: "str | Callable[[Row], object] | Sequence[object] | npt.NDArray[Any] | None" = None,
        seed: int = 0,
    ) -> "tuple[Subset, ...]":
        """Divide the rows into disjoint views; see `relive.model.split.split`."""
        from relive.model.split import split  # it imports this module

        return split(self, ratios, by=by, seed=seed)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, key: Key) -> "Subset": ...

    def __getitem__(self, key: Key | SupportsIndex) -> "Row | Subset":
        """Return one row for an integer, a view for a slice, an array of integers or a mask."""
        length = len(self)
        if type(key) is int and 0 <= key < length:  # the fast path for torch and grain
            return self._row(key)
        rows = resolve(key, length)  # type: ignore[arg-type]
        if isinstance(rows, int):
            return self._row(rows)
        from relive.model.select import view  # it imports this module

        return view(self, rows)

    def __getitems__(self, indices: Indices) -> list[Row]:
        """Return the rows at `indices` as a list, read by one `gather`."""
        rows = as_indices(indices, len(self), check=False)
        if rows.ndim != 1:
            raise InvalidError(
                f"indices must have one dimension, got {rows.ndim}",
                hint="use gather(), which takes indices of any shape",
            )
        return list(_rows(self.gather(rows), len(rows)))

    def __iter__(self) -> Iterator[Row]:
        """Iterate over all rows in order; they are read in batches."""
        length = len(self)
        step = _batch_rows(self.fields)
        for start in range(0, length, step):
            stop = min(start + step, length)
            yield from _rows(self.gather(np.arange(start, stop, dtype=np.int64)), stop - start)

    def __repr__(self) -> str:
        """Return the number of rows and the fields, on one line."""
        return f"{type(self).__name__}({describe(self)})"

    def _row(self, position: int) -> Row:
        batch = self.gather(np.array((position,), dtype=np.int64))
        return {name: values[0] for name, values in batch.items()}


def check_source(value: object) -> Source:
    """Return `value` if it is a source, or raise an error that says how to make it one."""
    if isinstance(value, Source):
        return value
    hint = "wrap it in relive.ArraySource(array)" if hasattr(value, "__array__") else None
    raise InvalidTypeError(
        f"expected a relive.Source, such as ArraySource, got {type_name(type(value))}", hint=hint
    )


def describe(source: Source) -> str:
    """Return how many rows a source has and which fields, on one line."""
    texts = []
    for name, field in source.fields.items():
        shape = f" {field.shape}" if field.shape else ""
        ragged = " ragged" if field.ragged else ""
        texts.append(f"{name if name.isprintable() else repr(name)} {field.dtype}{shape}{ragged}")
    if len(texts) > _REPR_FIELDS:
        texts[_REPR_FIELDS - 1 :] = [f"{len(texts) - _REPR_FIELDS + 1} more"]
    return f"{len(source)} rows: {', '.join(texts)}" if texts else f"{len(source)} rows"


def pick_fields(fields: Mapping[str, Field], asked: Sequence[str] | None) -> dict[str, Field]:
    """Return the requested fields in the order requested; all of them for None."""
    if asked is None:
        return dict(fields)
    if isinstance(asked, (str, bytes)):
        raise InvalidTypeError(
            f"`fields` must be a list of names, got {asked!r}",
            hint=f"use fields=[{asked!r}]",
        )
    try:
        return {name: fields[name] for name in asked}
    except KeyError:
        name = next(name for name in asked if name not in fields)
    except TypeError as error:
        raise InvalidTypeError(f"`fields` must be a list of names, got {asked!r}") from error
    raise _unknown_field(name, fields)


def check_out(
    out: Mapping[str, npt.NDArray[Any]] | None,
    picked: Mapping[str, Field],
    shape: tuple[int, ...],
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of `out` after checking that each can receive its field.

    An array must be C-contiguous and writable and have exactly the dtype and shape that
    `gather` would allocate for indices of `shape`. Fields missing in `out` are allocated as
    usual. A name that is not gathered, and a ragged field, are errors.
    """
    if out is None:
        return {}
    if not isinstance(out, Mapping):
        raise InvalidTypeError(f"`out` must be a dict of arrays, got {type_name(type(out))}")
    for name, array in out.items():
        if name not in picked:
            raise _unknown_field(name, picked)
        problem = _misfit(array, picked[name], shape)
        if problem:
            raise InvalidError(f"out[{name!r}] {problem}")
    return dict(out)


def _misfit(  # noqa: PLR0911 - one line per rule
    array: object, field: Field, shape: tuple[int, ...]
) -> str | None:
    if field.ragged:
        return "cannot be used: the size of a ragged field is unknown until it is read"
    if not isinstance(array, np.ndarray):
        return f"must be a NumPy array, got {type_name(type(array))}"
    if array.dtype != field.array_dtype:
        return f"must have the dtype {field.array_dtype}, got {array.dtype}"
    if array.shape != shape + field.shape:
        return f"must have the shape {shape + field.shape}, got {array.shape}"
    if not array.flags.writeable:
        return "must be writable"
    if not array.flags.c_contiguous:
        return "must be C-contiguous"
    return None


def _unknown_field(name: object, fields: Mapping[str, Field]) -> UnknownFieldError:
    close = get_close_matches(name, list(fields), n=1) if isinstance(name, str) else []
    message = f"unknown field {name!r}; the fields are {', '.join(map(repr, fields)) or 'none'}"
    return UnknownFieldError(message, hint=f"did you mean {close[0]!r}?" if close else None)


def _rows(batch: Batch, count: int) -> Iterator[Row]:
    for position in range(count):
        yield {name: values[position] for name, values in batch.items()}


def _batch_rows(fields: Mapping[str, Field]) -> int:
    sizes = [field.nbytes for field in fields.values()]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return _BATCH_ROWS_UNSIZED
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, sum(known))))


_S = TypeVar("_S", bound=Source)


def over_snapshot(source: _S, base: type[Source], *args: Any, **options: Any) -> _S:
    """Return a copy of a source of class `base`, or a subclass, with other arguments."""
    copied = object.__new__(type(source))
    copied.__dict__.update(source.__dict__)
    base.__init__(copied, *args, **options)
    return copied


def as_indices(indices: Indices, length: int, *, check: bool = True) -> IndexArray:
    """Return `indices` as a C-contiguous int64 array of the same shape.

    Booleans and floats raise `InvalidTypeError`. A negative index, or one that is not below
    `length`, raises an `OutOfRangeError` that names the first; with `check=False` the caller
    checks the range. The result may be the caller's own array: do not write to it.
    """
    if type(indices) is np.ndarray and indices.dtype == _INT64 and indices.flags.c_contiguous:
        array = indices
    elif isinstance(indices, range):
        return _index_range(indices, length)
    else:
        array = _index_array(indices, length)
    # Negative numbers are huge when read as unsigned, so one pass finds both kinds of bad index.
    if check and array.size and int(array.view(np.uint64).max()) >= length:
        bad = array.ravel()[np.argmax(((array < 0) | (array >= length)).ravel())]
        raise _out_of_range(int(bad), length)
    return array


def resolve(key: Key, length: int, what: str = "row") -> int | Rows:
    """Return the positions that `key` selects out of `length` rows, as NumPy does on one axis.

    An integer returns one position, a slice a range, and anything else a new read-only array.
    Negative numbers count from the end. `what` names a row in error messages.
    """
    if isinstance(key, slice):
        return _from_slice(key, length)
    if isinstance(key, range):
        return _from_key_range(key, length, what)
    if isinstance(key, EllipsisType):
        return range(length)
    if isinstance(key, (bool, np.bool_, tuple)):  # NumPy would read these as several axes
        raise _bad_key(key, what)
    if not isinstance(key, list):
        try:
            position = operator.index(key)  # type: ignore[arg-type]
        except TypeError:
            return _from_array(key, length, what)
        if not -length <= position < length:
            raise _out_of_range(position, length, what)
        return position + length if position < 0 else position
    return _from_array(key, length, what)


def fits(numbers: range) -> bool:
    """Check whether the step and the ends of a range fit in 64 bits, as its members may."""
    return all(abs(number) <= _INT64_MAX for number in (numbers.start, numbers.stop, numbers.step))


def positions(key: Any, length: int, what: str = "record") -> int | Rows:
    """Return the positions that the `[]` of a signal or dataset selects, as `resolve` does.

    A mask raises `MaskError`, and a step that is not positive `InvalidError`.
    """
    if isinstance(key, slice):
        if hasattr(key.step, "__index__") and operator.index(key.step) <= 0:
            raise InvalidError(f"the step of a slice must be positive, got {key.step}")
    elif is_mask(key):
        raise MaskError(f"cannot select {what}s with booleans", hint="use np.flatnonzero(mask)")
    elif isinstance(key, tuple) or _dtype_kind(key) == "O":
        key = list(key)
    try:
        rows = resolve(key, length, what)
    except InvalidTypeError as error:
        hint = "use an integer, a slice, or a list or array of integers"
        raise InvalidTypeError(error.message, hint=hint) from None
    if isinstance(rows, range) and len(rows) < 2:  # noqa: PLR2004 - its step may not fit 64 bits
        return range(rows.start, rows.start + 1) if rows else range(0)
    return rows


def is_mask(key: Any) -> bool:
    """Check whether `key` is a boolean, or holds some."""
    if isinstance(key, (list, tuple)):
        return not _BOOLS.isdisjoint(map(type, key))
    return isinstance(key, bool) or _dtype_kind(key) == "b"


def _dtype_kind(key: Any) -> Any:
    return getattr(getattr(key, "dtype", None), "kind", "")


def _index_array(indices: Indices, length: int) -> IndexArray:
    array = _as_array(indices)
    kind = array.dtype.kind
    if kind == "O":
        array = _from_objects(array, indices, length)
    elif kind not in "iu":
        if array.size or isinstance(indices, np.ndarray):
            raise _not_integers(indices, array)
        # NumPy converts [] to floats.
    elif array.dtype == np.uint64 and array.size and int(array.max()) > _INT64_MAX:
        raise _out_of_range(int(array[array > _INT64_MAX].flat[0]), length)
    elif isinstance(indices, (list, tuple)) and not _BOOLS.isdisjoint(map(type, indices)):
        # NumPy converts [True, 2] to [1, 2].
        raise InvalidTypeError("indices must be integers, got booleans among integers")
    return np.ascontiguousarray(array, dtype=np.int64).reshape(array.shape)


def _as_array(indices: Indices) -> npt.NDArray[Any]:
    try:
        return np.asarray(indices)
    except ValueError as error:
        raise InvalidTypeError("indices must form a rectangular array of integers") from error


def _from_objects(array: npt.NDArray[Any], indices: object, length: int) -> npt.NDArray[Any]:
    # Python integers beyond 64 bits arrive as objects; they are out of range.
    for item in array.flat:
        if not isinstance(item, (int, np.integer)) or isinstance(item, bool):
            raise _not_integers(indices, array)
    for item in array.flat:
        if not 0 <= item < length:
            raise _out_of_range(int(item), length)
    return array.astype(np.int64)


def _index_range(indices: range, length: int) -> IndexArray:
    bad = _first_outside(indices, 0, length)
    if bad is not None:
        raise _out_of_range(bad, length)
    if not indices:  # its ends may be beyond 64 bits
        return np.empty(0, dtype=np.int64)
    if not fits(indices):
        raise _huge_step(indices)
    return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)


def _from_key_range(key: range, length: int, what: str) -> Rows:
    bad = _first_outside(key, -length, length)
    if bad is not None:
        raise _out_of_range(bad, length, what)
    if not key:
        return range(0)
    if not fits(key):
        raise _huge_step(key)
    if min(key[0], key[-1]) >= 0:
        return key
    rows = np.asarray(key, dtype=np.int64)
    rows[rows < 0] += length
    rows.flags.writeable = False
    return rows


def _first_outside(numbers: range, low: int, high: int) -> int | None:
    """Return the first of `numbers` outside of [low, high), without iterating to it."""
    if not numbers:
        return None
    start, step = numbers.start, numbers.step
    if not low <= start < high:
        return start
    if low <= numbers[-1] < high:
        return None
    inside = -((start - high) // step) if step > 0 else (start - low) // -step + 1
    return numbers[inside]


def _from_slice(key: slice, length: int) -> range:
    try:
        return range(*key.indices(length))
    except TypeError as error:
        raise InvalidTypeError(
            f"the start, stop and step of a slice must be integers, got {key!r}"
        ) from error
    except ValueError as error:
        raise InvalidError(f"the step of a slice must not be zero, got {key!r}") from error


def _from_array(key: npt.ArrayLike, length: int, what: str) -> IndexArray:
    array = _as_array(key)
    if array.ndim == 0:
        raise _bad_key(key, what)
    if array.ndim > 1:
        raise InvalidError(
            f"{what} indices must have one dimension, got {array.ndim}",
            hint="use gather(), which takes indices of any shape",
        )
    if array.dtype.kind == "b":
        if len(array) != length:
            raise OutOfRangeError(
                f"the mask has {len(array)} values, expected one for each of the {length} {what}s"
            )
        rows = np.flatnonzero(array).astype(np.int64, copy=False)
    else:
        given = as_indices(key, length, check=False)
        rows = np.where(given < 0, given + length, given)
        bad = (rows < 0) | (rows >= length)
        if bad.any():
            raise _out_of_range(int(given[np.argmax(bad)]), length, what)
    rows.flags.writeable = False
    return rows


def _out_of_range(index: int, length: int, what: str = "row") -> OutOfRangeError:
    return OutOfRangeError(
        f"index {index} is out of range for {length} {what}{'' if length == 1 else 's'}"
    )


def _huge_step(numbers: range) -> OutOfRangeError:
    return OutOfRangeError(f"the start, stop and step of {numbers!r} must fit in 64 bits")


def _bad_key(key: object, what: str) -> InvalidTypeError:
    return InvalidTypeError(f"cannot select {what}s with {_shown(key)}", hint=_KEY_HINT)


def _not_integers(indices: object, array: npt.NDArray[Any]) -> InvalidTypeError:
    if array.dtype.kind == "b":
        hint = "select with a mask in brackets: source[mask]"
        return InvalidTypeError("indices must be integers, got booleans", hint=hint)
    shown = _shown(indices) if array.dtype.kind == "O" else str(array.dtype)
    return InvalidTypeError(f"indices must be integers, got {shown}")


def _shown(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:80]
