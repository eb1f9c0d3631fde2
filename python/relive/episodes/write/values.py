"""The values that can be recorded: their kind, dtype and shape, and their bytes on a tape."""

import struct
import sys
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from relive._arguments import as_text, type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import INT64_MAX, INT64_MIN

_KINDS: Final = frozenset("biuf")
_WIDEST: Final = 8
_CHANNELS: Final = 3
_INT: Final = struct.Struct("<q")
_FLOAT: Final = struct.Struct("<d")
_FALSE_TRUE: Final = (b"\0", b"\1")


class Form(NamedTuple):
    """The kind, dtype and shape that all values of a signal have."""

    kind: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return it as messages name it."""
        if self.kind == "text":
            return "str"
        return f"{self.dtype} of shape {self.shape}" if self.kind != "scalar" else self.dtype


_TEXT: Final = Form("text", "str", ())
_INT_FORM: Final = Form("scalar", "int64", ())
_FLOAT_FORM: Final = Form("scalar", "float64", ())
_BOOL_FORM: Final = Form("scalar", "bool", ())


def as_record(name: str, data: Any) -> tuple[Form, Any]:
    """Return the form of a value, and a contiguous buffer of its bytes.

    Python's int and float are int64 and float64. Lists, tuples, Arrow arrays and anything else
    that NumPy converts are arrays. Complex numbers, dates, objects and bytes are an
    `InvalidTypeError`.
    """
    kind = type(data)
    if kind is float:
        return _FLOAT_FORM, _FLOAT.pack(data)
    if kind is bool:
        return _BOOL_FORM, _FALSE_TRUE[data]
    if kind is int:
        if not INT64_MIN <= data <= INT64_MAX:
            raise InvalidError(f"signal {name!r}: {data} does not fit in 64 bits")
        return _INT_FORM, _INT.pack(data)
    if isinstance(data, str):
        return _TEXT, as_text(f"signal {name!r}: a value", data).encode()
    array = data if kind is np.ndarray else _as_array(name, data)
    dtype = array.dtype
    if dtype.kind == "U" and not array.ndim:
        return _TEXT, as_text(f"signal {name!r}: a value", array.item()).encode()
    if dtype.kind not in _KINDS or dtype.itemsize > _WIDEST:
        raise InvalidTypeError(
            f"signal {name!r}: {_what(data)} cannot be recorded", hint=_hint(dtype)
        )
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    form = Form("vector" if array.ndim else "scalar", array.dtype.name, array.shape)
    return form, array if array.flags.c_contiguous else np.ascontiguousarray(array)


def is_image(form: Form) -> bool:
    """Check whether values of this form are frames: uint8 of shape (height, width, 3)."""
    shape = form.shape
    return (
        form.dtype == "uint8"
        and len(shape) == _CHANNELS
        and shape[2] == _CHANNELS
        and 0 not in shape
    )


def as_stamp(name: str, ts_ns: Any, clock: str = "timestamp") -> int:
    """Return a time as an integer that fits in 64 bits."""
    kind = type(ts_ns)
    if kind is not int:
        if isinstance(ts_ns, (bool, np.bool_)) or not hasattr(kind, "__index__"):
            raise InvalidTypeError(
                f"signal {name!r}: the {clock} must be an integer in nanoseconds, "
                f"got {type_name(kind)}"
            )
        try:
            ts_ns = ts_ns.__index__()
        except TypeError as error:  # an array, or a number of another library
            raise InvalidTypeError(
                f"signal {name!r}: the {clock} must be a single integer: {error}"
            ) from error
    if not INT64_MIN <= ts_ns <= INT64_MAX:
        raise InvalidError(f"signal {name!r}: the {clock} {ts_ns} does not fit in 64 bits")
    return int(ts_ns)


def _as_array(name: str, data: Any) -> npt.NDArray[Any]:
    if isinstance(data, np.ma.MaskedArray):
        raise InvalidTypeError(
            f"signal {name!r}: {_what(data)} cannot be recorded",
            hint="record value.filled(nan), or the data and the mask as two signals",
        )
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(data, (arrow.Array, arrow.ChunkedArray)):
        return _from_arrow(name, arrow, data)
    try:
        return np.asarray(data)
    except (ValueError, OverflowError) as error:
        raise InvalidError(_not_an_array(name, data, error)) from error
    except (TypeError, RuntimeError) as error:
        raise InvalidTypeError(_not_an_array(name, data, error)) from error


def _not_an_array(name: str, data: Any, error: Exception) -> str:
    return f"signal {name!r}: {_what(data)} cannot be converted to an array: {error}"


def _from_arrow(name: str, arrow: Any, data: Any) -> npt.NDArray[Any]:
    if isinstance(data, arrow.ChunkedArray):
        data = data.combine_chunks()
    if isinstance(data, arrow.FixedShapeTensorArray):
        tensors: npt.NDArray[Any] = data.to_numpy_ndarray()
        return tensors
    shape = [len(data)]
    while True:
        if data.null_count:
            raise InvalidError(f"signal {name!r}: an Arrow array with nulls cannot be recorded")
        if not arrow.types.is_fixed_size_list(data.type):
            break
        shape.append(data.type.list_size)
        data = data.flatten()
    flat: npt.NDArray[Any] = data.to_numpy(zero_copy_only=False)
    return flat.reshape(shape)


def _what(data: Any) -> str:
    dtype = getattr(data, "dtype", None)
    text = type_name(type(data))
    return f"{text} of {dtype}" if isinstance(dtype, np.dtype) else text


def _hint(dtype: np.dtype[Any]) -> str | None:
    if dtype.kind == "c":
        return "record .real and .imag as two signals, or stack them along another axis"
    if dtype.kind in "mM":
        return 'record value.astype("int64"), and set its unit with describe()'
    return "numbers, booleans, text and arrays of numbers can be recorded"
