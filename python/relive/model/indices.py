"""The one rule for indices: what `gather` takes, and what goes between brackets.

`gather` is strict, because a negative index in a batch is a bug in the sampler that made it.
Brackets follow Python and NumPy, because people type them.
"""

import operator
from types import EllipsisType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError

__all__ = ["IndexArray", "Indices", "Key", "Rows", "as_indices", "fits", "resolve"]

IndexArray: TypeAlias = npt.NDArray[np.int64]
Indices: TypeAlias = npt.ArrayLike | range
"""Integers of any shape: an array, a nested list, a range."""
Rows: TypeAlias = range | IndexArray
"""Positions in a source, one after the other."""
Key: TypeAlias = npt.ArrayLike | range | slice | EllipsisType
"""What goes between the brackets of a source."""

_INT64: Final = np.dtype(np.int64)
_INT64_MAX: Final = int(np.iinfo(np.int64).max)
_BOOLS: Final = frozenset({bool, np.bool_})
_KEY_HINT: Final = "an integer, a slice, integers in an array or list, or a mask"


def as_indices(indices: Indices, length: int, *, check: bool = True) -> IndexArray:
    """Give `indices` as a C-contiguous int64 array of the same shape.

    Booleans and floats are an `InvalidTypeError`, a negative index or one of `length` and
    more an `OutOfRangeError` that names the first. With `check=False` the range is left to
    the caller. The result may be the caller's own array: read it only.
    """
    if type(indices) is np.ndarray and indices.dtype == _INT64 and indices.flags.c_contiguous:
        array = indices
    elif isinstance(indices, range):
        return _from_range(indices, length)
    else:
        array = _integers(indices, length)
    # Negative numbers are huge when read as unsigned: one pass finds both kinds of bad index.
    if check and array.size and int(array.view(np.uint64).max()) >= length:
        bad = array.ravel()[np.argmax(((array < 0) | (array >= length)).ravel())]
        raise _out_of_range(int(bad), length)
    return array


def resolve(key: Key, length: int, what: str = "row") -> int | Rows:
    """Give what `key` selects out of `length` rows, as NumPy does along one axis.

    An integer gives a position, a slice gives a range without making the positions, and
    anything else a read-only array that nobody else holds. Negative numbers count from the end.
    `what` says in a message what a row is.
    """
    if isinstance(key, slice):
        return _from_slice(key, length)
    if isinstance(key, range):
        return _from_key_range(key, length, what)
    if isinstance(key, EllipsisType):
        return range(length)
    if isinstance(key, (bool, np.bool_, tuple)):  # more axes to NumPy, and there is only one
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
    """Whether the step and the ends of a range are 64-bit integers, as its members may be."""
    return all(abs(number) <= _INT64_MAX for number in (numbers.start, numbers.stop, numbers.step))


def _integers(indices: Indices, length: int) -> IndexArray:
    array = _as_array(indices)
    kind = array.dtype.kind
    if kind == "O":
        array = _from_objects(array, indices, length)
    elif kind not in "iu":
        if array.size or isinstance(indices, np.ndarray):
            raise _not_integers(indices, array)
        # NumPy reads [] as floats.
    elif array.dtype == np.uint64 and array.size and int(array.max()) > _INT64_MAX:
        raise _out_of_range(int(array[array > _INT64_MAX].flat[0]), length)
    elif isinstance(indices, (list, tuple)) and not _BOOLS.isdisjoint(map(type, indices)):
        # NumPy reads [True, 2] as [1, 2].
        raise InvalidTypeError("indices must be integers, not a mixture of booleans and integers")
    return np.ascontiguousarray(array, dtype=np.int64).reshape(array.shape)


def _as_array(indices: Indices) -> npt.NDArray[Any]:
    try:
        return np.asarray(indices)
    except ValueError as error:
        raise InvalidTypeError("indices must form a rectangular array of integers") from error


def _from_objects(array: npt.NDArray[Any], indices: object, length: int) -> npt.NDArray[Any]:
    # Python integers beyond 64 bits arrive as objects: they are integers, and out of range.
    for item in array.flat:
        if not isinstance(item, (int, np.integer)) or isinstance(item, bool):
            raise _not_integers(indices, array)
    for item in array.flat:
        if not 0 <= item < length:
            raise _out_of_range(int(item), length)
    return array.astype(np.int64)


def _from_range(indices: range, length: int) -> IndexArray:
    bad = _first_outside(indices, 0, length)
    if bad is not None:
        raise _out_of_range(bad, length)
    if not indices:  # its ends may lie beyond 64 bits
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
    """Find the first of `numbers` that is not in [low, high), without counting up to it."""
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
        raise InvalidTypeError(f"a slice is made of integers: {key!r}") from error
    except ValueError as error:
        raise InvalidError(f"the step of a slice cannot be zero: {key!r}") from error


def _from_array(key: npt.ArrayLike, length: int, what: str) -> IndexArray:
    array = _as_array(key)
    if array.ndim == 0:
        raise _bad_key(key, what)
    if array.ndim > 1:
        raise InvalidError(
            f"a view has one axis, and the key has {array.ndim}",
            hint="gather() takes indices of any shape",
        )
    if array.dtype.kind == "b":
        if len(array) != length:
            raise OutOfRangeError(
                f"the mask has {len(array)} entries and there are {length} {what}s"
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
    there = f"one {what} there is" if length == 1 else f"{length} {what}s there are"
    return OutOfRangeError(f"index {index} is outside of the {there}")


def _huge_step(numbers: range) -> OutOfRangeError:
    return OutOfRangeError(f"{numbers!r} has an end or a step beyond 64 bits")


def _bad_key(key: object, what: str) -> InvalidTypeError:
    return InvalidTypeError(f"cannot select {what}s with {_named(key)}", hint=_KEY_HINT)


def _not_integers(indices: object, array: npt.NDArray[Any]) -> InvalidTypeError:
    if array.dtype.kind == "b":
        hint = "a mask selects with brackets: source[mask]"
        return InvalidTypeError("indices must be integers, not booleans", hint=hint)
    if array.dtype.kind == "O":
        return InvalidTypeError(f"indices must be integers, not {_named(indices)}")
    return InvalidTypeError(f"indices must be integers, not {array.dtype}")


def _named(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:80]
