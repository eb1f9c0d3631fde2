"""What a field of a source holds: its dtype, the shape of one row, and how it is stored."""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal, SupportsIndex, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError

__all__ = ["CODECS", "DType", "Field", "codec_name"]

DType: TypeAlias = np.dtype[Any] | Literal["bytes", "str", "json"]
"""A NumPy dtype for values of fixed size, a name for values of any size."""

CODECS: Final = ("raw", "deflate", "zstd", "lz4")
_CODEC_ALIASES: Final = {"none": "raw", "flate": "deflate"}
_VARIABLE: Final = ("bytes", "str", "json")
_MAX_RAGGED: Final = 32
_OBJECT_HINT: Final = (
    'use "bytes", "str" or "json" for values of any size, ragged=True for rows of any length, '
    "or a dtype of fixed size"
)


def codec_name(codec: str) -> str:
    """Give the one spelling of a codec; `none` and `flate` are accepted."""
    name = _CODEC_ALIASES.get(codec, codec)
    if name not in CODECS:
        raise InvalidError(f"unknown codec {codec!r}", hint=f"one of {', '.join(CODECS)}")
    return name


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Field:
    """One field of a source: row i is an array of `dtype` and `shape`.

    `dtype` is anything NumPy takes for one, or `"bytes"`, `"str"` or `"json"` for values of
    any size, which are gathered as object arrays. With `ragged=True` row i has the shape
    `(n_i, *shape)`, where n_i may differ from row to row; with a number, that many leading
    dimensions may. `codec` says how a store keeps values, and `level` how hard it tries.
    Immutable, hashable, picklable.
    """

    dtype: DType
    shape: tuple[int, ...]
    codec: str
    ragged: int
    """How many leading dimensions vary; False and True are none and one."""
    level: int | None

    def __init__(
        self,
        dtype: npt.DTypeLike,
        shape: SupportsIndex | Iterable[SupportsIndex] = (),
        codec: str = "raw",
        ragged: int = False,  # noqa: FBT002 - the documented signature
        *,
        level: int | None = None,
    ) -> None:
        kind = _dtype(dtype)
        rows = _shape(shape)
        if isinstance(kind, np.dtype) and kind.subdtype is not None:
            kind, inner = kind.subdtype
            rows += inner
        object.__setattr__(self, "dtype", kind)
        object.__setattr__(self, "shape", rows)
        object.__setattr__(self, "codec", codec_name(codec))
        object.__setattr__(self, "ragged", _ragged(ragged))
        object.__setattr__(self, "level", _level(level))

    @property
    def fixed(self) -> bool:
        """True when every row has the same number of bytes."""
        return not self.ragged and isinstance(self.dtype, np.dtype)

    @property
    def nbytes(self) -> int | None:
        """The bytes of one row in memory; None when rows differ."""
        if self.ragged or not isinstance(self.dtype, np.dtype):
            return None
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of the array that rows are gathered into."""
        return self.dtype if isinstance(self.dtype, np.dtype) else np.dtype(object)

    def __repr__(self) -> str:
        """Give the call that makes an equal field, without the arguments left at their default."""
        parts = [str(self.dtype) if _is_structured(self.dtype) else repr(str(self.dtype))]
        if self.shape:
            parts.append(repr(self.shape))
        if self.codec != "raw":
            parts.append(f"codec={self.codec!r}")
        if self.ragged:
            parts.append(f"ragged={self.ragged!r}")
        if self.level is not None:
            parts.append(f"level={self.level}")
        return f"Field({', '.join(parts)})"


def _is_structured(dtype: DType) -> bool:
    return isinstance(dtype, np.dtype) and dtype.names is not None


def _dtype(dtype: Any) -> DType:
    if isinstance(dtype, str) and dtype in _VARIABLE:
        return cast("DType", dtype)
    if dtype is str or dtype is bytes:
        return "str" if dtype is str else "bytes"
    if dtype is None:  # NumPy would read it as float64
        raise InvalidTypeError("a field needs a dtype, not None")
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        found = _extension_dtype(dtype, error)
    if found.kind == "T":
        return "str"
    if found.hasobject:
        raise InvalidTypeError(
            f"a field cannot hold arbitrary Python objects ({dtype!r})", hint=_OBJECT_HINT
        )
    if found.itemsize == 0 and found.subdtype is None:
        raise InvalidTypeError(f"{dtype!r} has no size", hint=_OBJECT_HINT)
    return found


def _extension_dtype(dtype: object, error: Exception) -> np.dtype[Any]:
    # ml_dtypes teaches NumPy bfloat16 and its kin by name, once it has been imported.
    hint = "use a NumPy dtype"
    if isinstance(dtype, str):
        try:
            scalar = getattr(import_module("ml_dtypes"), dtype, None)
        except ModuleNotFoundError:
            hint = "bfloat16 and float8 types need `pip install ml_dtypes`"
        else:
            if isinstance(scalar, type) and issubclass(scalar, np.generic):
                return np.dtype(scalar)
            hint = 'use a NumPy dtype, "bytes", "str" or "json"'
    raise InvalidTypeError(f"{dtype!r} is not a dtype", hint=hint) from error


def _level(level: SupportsIndex | None) -> int | None:
    try:
        return None if level is None else operator.index(level)
    except TypeError as error:
        raise InvalidTypeError(f"a level is an integer, not {level!r}") from error


def _ragged(ragged: SupportsIndex | np.bool_) -> int:
    if isinstance(ragged, np.bool_):
        return bool(ragged)
    try:
        count = operator.index(ragged)
    except TypeError as error:
        raise InvalidTypeError(
            f"ragged is True, or how many leading dimensions vary, not {ragged!r}"
        ) from error
    if not 0 <= count <= _MAX_RAGGED:
        raise InvalidError(f"from 0 to {_MAX_RAGGED} dimensions may vary, not {count}")
    return count if count > 1 else bool(count)


def _shape(shape: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    try:
        dims = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError as error:
        raise InvalidTypeError(f"a shape is made of integers, not {shape!r}") from error
    if any(dim < 0 for dim in dims):
        raise InvalidError(f"a shape has no negative dimensions: {dims}")
    return dims
