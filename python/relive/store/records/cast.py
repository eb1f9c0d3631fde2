"""Values as arrays of the dtype of a field: what would lose something is refused."""

from typing import Any

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError

__all__ = ["as_array", "is_extension"]

_SHOWN = 60


def as_array(what: str, value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Give `value` as a C-contiguous array of `dtype`, of whatever shape it has.

    Integers must fit, and text too. Floats may lose digits, but not become infinite. No other
    kind of number becomes another: floats are no integers, and numbers no booleans.
    """
    array = _array(what, value, dtype)
    if array.dtype != dtype:
        array = _converted(what, array, dtype, empty=not isinstance(value, np.ndarray))
    # ascontiguousarray() would give a single value a dimension.
    return array if array.flags.c_contiguous else array.copy(order="C")


def is_extension(dtype: np.dtype[Any]) -> bool:
    """Whether somebody else taught NumPy this dtype, as ml_dtypes does with bfloat16."""
    return dtype.type.__module__.partition(".")[0] != "numpy"


def _array(what: str, value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(
            f"{what} is a masked array, whose mask would be lost", hint="give array.filled()"
        )
    if dtype.names and isinstance(value, tuple | list):
        return _members(what, value, dtype)
    try:
        array = np.asarray(value)
        # NumPy needs to be told that text, or an object of the standard library, is a date.
        is_date = dtype.kind in "mM" and array.dtype.kind in "UO"
        return np.asarray(value, dtype) if is_date else array
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{what} cannot be read as {dtype}: {error}",
            hint="tensor.detach().cpu()" if hasattr(value, "detach") else None,
        ) from error


def _members(
    what: str, value: tuple[Any, ...] | list[Any], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Give a tuple as a structured value, each member looked at; a list as an array of them."""
    if isinstance(value, list):
        rows = [as_array(what, row, dtype) for row in value]
        return np.array(rows, dtype) if rows else np.empty(0, dtype)
    if len(value) != len(dtype.names or ()):
        raise InvalidError(f"{what} has {len(value)} members, and {dtype} others")
    found = np.zeros((), dtype)
    for name, member in zip(dtype.names or (), value, strict=True):
        inner, shape = dtype[name].subdtype or (dtype[name], ())
        array = as_array(f"{what}: {name!r}", member, inner)
        if array.shape != shape:
            raise InvalidError(f"{what}: {name!r} has the shape {shape}, not {array.shape}")
        found[name] = array
    return found


def _converted(
    what: str, array: npt.NDArray[Any], dtype: np.dtype[Any], *, empty: bool
) -> npt.NDArray[Any]:
    if array.size == 0 and empty:  # NumPy reads [] as floats
        return np.empty(array.shape, dtype)
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
            raise InvalidError(f"{what} is {_shown(array)}, which {dtype} cannot hold")
        return array.astype(dtype)
    if array.dtype.kind == "O" or not _is_meant(array.dtype, dtype):
        raise _misfit(what, array, dtype)
    try:
        with np.errstate(over="raise", invalid="ignore", under="ignore"):
            cast = array.astype(dtype)
    except (FloatingPointError, OverflowError, TypeError, ValueError) as error:
        raise InvalidError(f"{what} is {_shown(array)}, which {dtype} cannot hold") from error
    lost = _may_lose(array.dtype, dtype) and not _same(cast.astype(array.dtype), array)
    if lost or (is_extension(dtype) and not _as_finite(array, cast)):
        raise InvalidError(f"{what} is {_shown(array)}, which {dtype} cannot hold")
    return cast


def _is_meant(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values of one dtype may be taken for values of the other."""
    if wanted.names or given.names:
        return np.can_cast(given, wanted, "safe")
    if wanted.kind in "SU":
        return given.kind == wanted.kind
    if is_extension(wanted):
        return np.can_cast(given, wanted, "same_kind") and not (
            _is_integer(wanted) and given.kind not in "iub"
        )
    if wanted.kind == "V":
        return given.kind in "SV" and given.itemsize == wanted.itemsize
    if wanted.kind == "m" and given.kind != "m":
        return False
    return np.can_cast(given, wanted, "same_kind")


def _may_lose(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether a conversion must be looked at that NumPy says nothing about."""
    return (
        wanted.kind in "SUmM"
        or (is_extension(wanted) and _is_integer(wanted))
        or (is_extension(given) and wanted.kind in "iub")
    )


def _as_finite(array: npt.NDArray[Any], cast: npt.NDArray[Any]) -> bool:
    """Whether what is a number still is one; some dtypes of others say nothing when it is not."""
    return bool(np.all(np.isfinite(cast) | ~np.isfinite(array)))


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


def _same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    equal = one == other
    if one.dtype.kind in "mM":
        equal = equal | (np.isnat(one) & np.isnat(other))
    return bool(np.all(equal))


def _misfit(what: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> InvalidTypeError:
    if array.dtype.kind == "O":
        return InvalidTypeError(f"{what} is {_shown(array)}, which is no array of {dtype}")
    return InvalidTypeError(
        f"{what} is {array.dtype}, which does not become {dtype} by itself",
        hint=f"value.astype({str(dtype)!r}), if that is meant",
    )


def _shown(array: npt.NDArray[Any]) -> str:
    text = " ".join(np.array2string(array, threshold=6, edgeitems=2).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
