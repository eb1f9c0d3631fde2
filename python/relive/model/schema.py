"""`Field`: the dtype and shape of one row, and how a store keeps it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal, SupportsIndex, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError

DType: TypeAlias = np.dtype[Any] | Literal["bytes", "str", "json"]
"""A NumPy dtype for values of fixed size, a name for values of any size."""

CODECS: Final = ("raw", "deflate", "zstd", "lz4")
_CODEC_ALIASES: Final = {"none": "raw", "flate": "deflate"}
_VARIABLE: Final = ("bytes", "str", "json")
_MAX_RAGGED: Final = 32
_MAX_LEVEL: Final = 1 << 31
_OBJECT_HINT: Final = (
    'use "bytes", "str" or "json" for values of any size, ragged=True for rows of any length, '
    "or a dtype of fixed size"
)


def codec_name(codec: str) -> str:
    """Return the canonical name of a codec; `none` and `flate` are aliases."""
    name = _CODEC_ALIASES.get(codec, codec)
    if name not in CODECS:
        raise InvalidError(f"unknown codec {codec!r}", hint=f"use one of {', '.join(CODECS)}")
    return name


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Field:
    """One field of a source: every row is an array of `dtype` and `shape`.

    Immutable, hashable, picklable.

    Args:
        dtype: Anything NumPy takes as a dtype, or `"bytes"`, `"str"` or `"json"` for values of
            any size, which are gathered as object arrays.
        shape: The shape of one row.
        codec: How a store compresses values: `"raw"`, `"deflate"`, `"zstd"` or `"lz4"`.
        ragged: True if row i has the shape `(n_i, *shape)`, where n_i may differ from row to
            row; a number if that many leading dimensions may differ.
        level: The compression level of the codec.

    Example:
        >>> from relive import Field
        >>> Field("uint8", (64, 64, 3), codec="zstd").nbytes
        12288
        >>> Field("float32", ragged=True)
        Field('float32', ragged=True)
    """

    dtype: DType
    shape: tuple[int, ...]
    codec: str
    ragged: int
    """How many leading dimensions vary; False is none and True is one."""
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
        object.__setattr__(
            self,
            "level",
            None
            if level is None
            else as_int("level", level, at_least=-_MAX_LEVEL, at_most=_MAX_LEVEL),
        )

    @property
    def fixed(self) -> bool:
        """Whether every row has the same number of bytes."""
        return not self.ragged and isinstance(self.dtype, np.dtype)

    @property
    def nbytes(self) -> int | None:
        """The bytes of one row in memory; None if rows differ."""
        if self.ragged or not isinstance(self.dtype, np.dtype):
            return None
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of a gathered array."""
        return self.dtype if isinstance(self.dtype, np.dtype) else np.dtype(object)

    def __repr__(self) -> str:
        """Return the call that makes an equal field, without default arguments."""
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
    if dtype is None:  # NumPy would make it float64
        raise InvalidTypeError("`dtype` must be a NumPy dtype or the name of a type, got None")
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        found = _extension_dtype(dtype, error)
    if found.kind == "T":
        return "str"
    if found.hasobject:
        raise InvalidTypeError(
            f"a field cannot hold Python objects, got the dtype {dtype!r}", hint=_OBJECT_HINT
        )
    if found.itemsize == 0 and found.subdtype is None:
        raise InvalidTypeError(f"the dtype {dtype!r} has no fixed size", hint=_OBJECT_HINT)
    return found


def _extension_dtype(dtype: object, error: Exception) -> np.dtype[Any]:
    # NumPy knows bfloat16 and similar dtypes only after ml_dtypes was imported.
    hint = "use a NumPy dtype"
    if isinstance(dtype, str):
        try:
            scalar = getattr(import_module("ml_dtypes"), dtype, None)
        except ModuleNotFoundError:
            hint = "for bfloat16 and float8 types, pip install ml_dtypes"
        else:
            if isinstance(scalar, type) and issubclass(scalar, np.generic):
                return np.dtype(scalar)
            hint = 'use a NumPy dtype, "bytes", "str" or "json"'
    raise InvalidTypeError(f"{dtype!r} is not a valid dtype", hint=hint) from error


def _ragged(ragged: SupportsIndex | np.bool_) -> int:
    if isinstance(ragged, (bool, np.bool_)):
        return bool(ragged)
    count = as_int("ragged", ragged, at_most=_MAX_RAGGED)
    return count if count > 1 else bool(count)


def _shape(shape: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    dims = shape if isinstance(shape, Iterable) else (shape,)
    return tuple(as_int("shape", dim) for dim in dims)
