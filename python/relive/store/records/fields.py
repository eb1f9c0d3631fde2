"""The fields of a store: their checks, how they are stored, and the table of all of them."""

import functools
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.lib.format as npy_format

from relive._arguments import as_name
from relive.errors import CorruptError, InvalidError, InvalidTypeError, UnsupportedError
from relive.model.schema import Field
from relive.store.records.values import is_extension, preparer, refuse_fields

Spec: TypeAlias = tuple[str, str, tuple[int, ...], str, int, str, int | None, int]
"""Name, dtype as JSON, shape, kind, number of varying dimensions, codec, level, item bytes."""

NAME_BYTES: Final = 200
_BYTES: Final = np.dtype(np.uint8)
_ANY_SIZE: Final = ("bytes", "str", "json")


def kind_of(field: Field) -> str:
    """Return the kind of the values of a field: "fixed", "ragged", "bytes", "str" or "json"."""
    if not isinstance(field.dtype, np.dtype):
        return field.dtype
    return "ragged" if field.ragged else "fixed"


def check_name(name: object) -> str:
    """Return `name` if a field can have it."""
    return as_name("the name of a field", name, NAME_BYTES)


def check_field(name: str, field: object) -> Field:
    """Return `field` if a store can have it."""
    if not isinstance(field, Field):
        raise InvalidTypeError(
            f"field {name!r} must be a relive.Field, got {field!r}",
            hint=f"pass relive.Field({field!r})"
            if isinstance(field, str | type | np.dtype)
            else None,
        )
    if not isinstance(field.dtype, np.dtype):
        if field.shape or field.ragged:
            raise InvalidError(
                f"field {name!r}: values of type {field.dtype} cannot have a shape, got {field!r}"
            )
    elif field.ragged and not _item_bytes(field):
        raise InvalidError(f"field {name!r}: the items of ragged rows must be at least 1 byte")
    elif _has_no_unit(field.dtype):
        raise InvalidTypeError(
            f"field {name!r}: the dtype {field.dtype} has no time unit",
            hint=f'add the unit: Field("{field.dtype.type.__name__}[us]")'
            if field.dtype.kind in "mM"
            else 'add the unit: "datetime64[us]"',
        )
    return field


def _has_no_unit(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype, or a member of it, is a time without a unit."""
    if dtype.names:
        return any(_has_no_unit(dtype[name]) for name in dtype.names)
    if dtype.subdtype is not None:
        return _has_no_unit(dtype.subdtype[0])
    return dtype.kind in "mM" and np.datetime_data(dtype)[0] == "generic"


def spec_of(name: str, field: Field) -> Spec:
    """Return a field as the core takes it, or raise if it cannot be stored."""
    check_field(check_name(name), field)
    dtype = json.dumps(_describe(name, field.dtype))
    shape, ragged = field.shape, int(field.ragged)
    return name, dtype, shape, kind_of(field), ragged, field.codec, field.level, _item_bytes(field)


def field_of(spec: Spec) -> Field:
    """Return the field of a stored description."""
    name, dtype, shape, kind, ragged, codec, level, size = spec
    try:
        described = json.loads(dtype)
        found = Field(_restore(described), shape, codec, ragged, level=level)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        if isinstance(error, InvalidTypeError) and error.hint and "pip" in error.hint:
            raise UnsupportedError(f"field {name!r}: {error.message}", hint=error.hint) from None
        raise CorruptError(f"field {name!r}: {dtype!r} is not a valid dtype") from error
    if kind_of(found) != kind or _item_bytes(found) != size:
        raise CorruptError(
            f"field {name!r}: the stored type {found!r} does not match the stored kind {kind!r} "
            f"and item size, {size} bytes"
        )
    return found


def _item_bytes(field: Field) -> int:
    """Return the bytes of a fixed-size value, or of one item of a ragged one."""
    if not isinstance(field.dtype, np.dtype):
        return 1
    return field.dtype.itemsize * math.prod(field.shape)


def _describe(name: str, dtype: Any) -> Any:
    if not isinstance(dtype, np.dtype):
        return dtype
    described: Any = None
    try:
        if is_extension(dtype):
            described = dtype.name
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a lossy description is refused below
                described = json.loads(json.dumps(npy_format.dtype_to_descr(dtype)))
        same = _restore(described) == dtype
    except (TypeError, ValueError):
        same = False
    if not same:
        raise InvalidTypeError(
            f"field {name!r}: the dtype {dtype} cannot be stored",
            hint="store its members as separate fields",
        )
    return described


def _restore(described: Any) -> Any:
    if isinstance(described, str):
        if described in _ANY_SIZE:
            return described
        # Names of ml_dtypes begin with a letter; descriptions of NumPy with the byte order.
        if described[:1].isalpha():
            return Field(described).dtype
    return npy_format.descr_to_dtype(_tuples(described))


def _tuples(described: Any) -> Any:
    """Return a description with the tuples that NumPy expects instead of JSON's lists."""
    if isinstance(described, str):
        return described
    if not isinstance(described, list):
        raise InvalidTypeError(f"{described!r} is not a valid description of a dtype")
    return [_member(member) for member in described]


def _member(member: Any) -> tuple[Any, ...]:
    name, kind, *shape = member
    named = tuple(name) if isinstance(name, list) else name
    return (named, _tuples(kind), *(tuple(each) for each in shape))


class FieldTable:
    """The fields of a store at one moment, and what is derived from them. Immutable."""

    __slots__ = ("by_name", "columns", "is_fixed", "is_native", "read_columns")

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.by_name = fields
        self.columns = {name: column for column, name in enumerate(fields)}
        self.is_fixed = all(field.fixed for field in fields.values())
        """Whether every record has the same number of bytes."""
        self.is_native = all(
            isinstance(field.dtype, np.dtype) and field.ragged <= 1 for field in fields.values()
        )
        """Whether the core can gather all fields without Python."""
        self.read_columns = [
            (name, field.dtype, field.shape, bool(field.ragged))
            if isinstance(field.dtype, np.dtype)
            else (name, _BYTES, (), True)
            for name, field in fields.items()
        ]
        """Name, dtype, shape and raggedness of each column, as the core reads it."""

    @classmethod
    def of(cls, specs: Iterable[Spec]) -> "FieldTable":
        """Return the table of stored descriptions."""
        return cls({spec[0]: field_of(spec) for spec in specs})

    def plan(self) -> "tuple[list[Any], Callable[[Mapping[Any, Any]], object], FieldTable]":
        """Return what the core needs to store records, as `RecordWriter.plan` takes it."""
        written = [
            (
                name,
                kind_of(field),
                field.dtype if isinstance(field.dtype, np.dtype) else None,
                field.shape,
                int(field.ragged),
                preparer(name, field),
            )
            for name, field in self.by_name.items()
        ]
        return written, functools.partial(refuse_fields, self.by_name), self
