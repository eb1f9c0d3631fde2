"""Fields as a store writes them down, and back."""

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.lib.format as npy_format

from relive.errors import CorruptError, InvalidError, InvalidTypeError, UnsupportedError
from relive.model.schema import Field

__all__ = ["Spec", "check_field", "check_name", "field_of", "kind_of", "spec_of"]

Spec: TypeAlias = tuple[str, str, tuple[int, ...], str, int, str, int | None, int]
"""Name, dtype as JSON, shape, kind, varying dimensions, codec, level, bytes of an item."""

NAME_BYTES: Final = 200
_ANY_SIZE: Final = ("bytes", "str", "json")


def kind_of(field: Field) -> str:
    """Say what the values of a field are: "fixed", "ragged", "bytes", "str" or "json"."""
    if not isinstance(field.dtype, np.dtype):
        return field.dtype
    return "ragged" if field.ragged else "fixed"


def check_name(name: object) -> str:
    """Give a name that a field can have, as it is."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"a field is named by a str, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidError(f"{name!r} cannot be stored as UTF-8") from error
    if not 1 <= size <= NAME_BYTES or "\0" in name:
        raise InvalidError(
            f"a field is named by 1 to {NAME_BYTES} bytes of UTF-8 without NUL, not {name!r}"
        )
    return name


def check_field(name: str, field: object) -> Field:
    """Give a field that a store can have, as it is."""
    if not isinstance(field, Field):
        raise InvalidTypeError(
            f"field {name!r} is described by a Field, not {field!r}",
            hint=f"relive.Field({field!r})" if isinstance(field, str | type | np.dtype) else None,
        )
    if not isinstance(field.dtype, np.dtype):
        if field.shape or field.ragged:
            raise InvalidError(
                f"field {name!r}: a value of type {field.dtype} has no shape, "
                f"and {field!r} gives it one"
            )
    elif field.ragged and not _item_bytes(field):
        raise InvalidError(f"field {name!r}: rows of items without bytes have no length")
    elif _has_no_unit(field.dtype):
        raise InvalidTypeError(
            f"field {name!r}: {field.dtype} has times without a unit, which mean nothing",
            hint=f'name the unit: Field("{field.dtype.type.__name__}[us]")'
            if field.dtype.kind in "mM"
            else 'name the unit: "datetime64[us]"',
        )
    return field


def _has_no_unit(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype, or a member of it, is a time in nobody knows what."""
    if dtype.names:
        return any(_has_no_unit(dtype[name]) for name in dtype.names)
    if dtype.subdtype is not None:
        return _has_no_unit(dtype.subdtype[0])
    return dtype.kind in "mM" and np.datetime_data(dtype)[0] == "generic"


def spec_of(name: str, field: Field) -> Spec:
    """Give a field as the core takes it; what cannot be stored is refused."""
    check_field(check_name(name), field)
    dtype = json.dumps(_describe(name, field.dtype))
    shape, ragged = field.shape, int(field.ragged)
    return name, dtype, shape, kind_of(field), ragged, field.codec, field.level, _item_bytes(field)


def field_of(spec: Spec) -> Field:
    """Give the field that a store wrote down."""
    name, dtype, shape, kind, ragged, codec, level, size = spec
    try:
        described = json.loads(dtype)
        found = Field(_restore(described), shape, codec, ragged, level=level)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        if isinstance(error, InvalidTypeError) and error.hint and "pip" in error.hint:
            raise UnsupportedError(f"field {name!r}: {error.message}", hint=error.hint) from None
        raise CorruptError(f"field {name!r} has the dtype {dtype}, which is none") from error
    if kind_of(found) != kind or _item_bytes(found) != size:
        raise CorruptError(f"field {name!r}: {found!r} is not what its kind and size say")
    return found


def _item_bytes(field: Field) -> int:
    """Bytes of a value of fixed size, or of an item along the dimensions that vary."""
    if not isinstance(field.dtype, np.dtype):
        return 1
    return field.dtype.itemsize * math.prod(field.shape)


def _describe(name: str, dtype: Any) -> Any:
    if not isinstance(dtype, np.dtype):
        return dtype
    described: Any = None
    try:
        if _is_extension(dtype):
            described = dtype.name
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is lost is seen below
                described = json.loads(json.dumps(npy_format.dtype_to_descr(dtype)))
        same = _restore(described) == dtype
    except (TypeError, ValueError):
        same = False
    if not same:
        raise InvalidTypeError(
            f"field {name!r}: the dtype {dtype} cannot be written down",
            hint="give its parts as fields of their own",
        )
    return described


def _is_extension(dtype: np.dtype[Any]) -> bool:
    """Whether somebody else taught NumPy this dtype, as ml_dtypes does with bfloat16."""
    return dtype.type.__module__.partition(".")[0] != "numpy"


def _restore(described: Any) -> Any:
    if isinstance(described, str):
        if described in _ANY_SIZE:
            return described
        # The names of ml_dtypes begin with a letter; those of NumPy with the order of bytes.
        if described[:1].isalpha():
            return Field(described).dtype
    return npy_format.descr_to_dtype(_tuples(described))


def _tuples(described: Any) -> Any:
    """Give a description as NumPy writes it: JSON has lists where that has tuples."""
    if isinstance(described, str):
        return described
    if not isinstance(described, list):
        raise InvalidTypeError(f"{described!r} describes no dtype")
    return [_member(member) for member in described]


def _member(member: Any) -> tuple[Any, ...]:
    name, kind, *shape = member
    named = tuple(name) if isinstance(name, list) else name
    return (named, _tuples(kind), *(tuple(each) for each in shape))


def fields_of(specs: Iterable[Spec]) -> Mapping[str, Field]:
    """Give the fields of a store by name, in its order."""
    return {spec[0]: field_of(spec) for spec in specs}
