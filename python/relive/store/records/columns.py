"""Columns: the values of one field for many records, as the core takes them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.select import Subset
from relive.model.source import IndexArray, Source, pick_fields
from relive.store.records.values import as_array, as_record

Columns: TypeAlias = "Mapping[str, Any] | Source | Iterable[Mapping[str, Any]]"
"""Many records: a dict of columns, a source, or a list of records."""
RaggedColumn: TypeAlias = tuple[npt.NDArray[Any], IndexArray, IndexArray | None]
"""Values, offsets, and the varying dimensions of each row if there are several."""
Column: TypeAlias = "npt.NDArray[Any] | RaggedColumn | list[Any] | None"
"""The values of all records as an array, as ragged rows, or as a list; None if all are missing."""

_SINGLE = (str, bytes, bytearray, memoryview, Mapping)


def materialize(given: Any) -> Any:
    """Return iterators as lists, also those in a dict, so that they can be read twice."""
    if isinstance(given, Iterator):
        return list(given)
    if type(given) is dict:
        return {name: materialize(values) for name, values in given.items()}
    return given


def as_columns(fields: Mapping[str, Field], given: Columns) -> tuple[int, list[Column]]:
    """Return the number of records and a column for each field, checked to be equally long."""
    named = _named(fields, given)
    pick_fields(fields, list(named))
    columns = {name: as_column(name, fields[name], values) for name, values in named.items()}
    lengths = {name: _length(column) for name, column in columns.items() if column is not None}
    if not lengths:
        raise InvalidError(
            "the number of records is unknown: no columns were passed",
            hint="pass a column for at least one field",
        )
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise InvalidError(f"all columns must have the same number of values: {text}")
    return next(iter(lengths.values())), [columns.get(name) for name in fields]


def as_column(name: str, field: Field, values: Any) -> Column:
    """Return the values of a field, one for each record; None if they are all missing."""
    if values is None:
        return None
    if _is_single(values):
        raise InvalidTypeError(
            f"field {name!r} must have a value for each record, got {type_name(type(values))}"
        )
    if not isinstance(field.dtype, np.dtype):
        return _objects(name, field, values)
    if isinstance(values, Ragged):
        return _from_ragged(name, field, field.dtype, values)
    array = _one_array(values)
    if array is None or array.dtype.kind == "O":
        return list(values)
    if array is not values and not _is_same_kind(array.dtype, field.dtype):
        return list(values)  # NumPy found a dtype that no value has, such as text for [1, "a"]
    return _from_array(name, field, field.dtype, array)


def broadcast_column(name: str, field: Field, values: Any, rows: int) -> Column:
    """Return the values of a field for so many records; one value is repeated."""
    if values is None:
        return None
    if not isinstance(field.dtype, np.dtype):
        if _is_single(values):
            return [values] * rows
    elif not field.ragged and not isinstance(values, Ragged) and _one_array(values) is not None:
        array = as_array(f"field {name!r}", values, field.dtype)
        try:
            return np.ascontiguousarray(np.broadcast_to(array, (rows, *field.shape)))
        except ValueError as error:
            raise InvalidError(
                f"field {name!r}: values of shape {array.shape} cannot be broadcast to {rows} "
                f"records of shape {field.shape}"
            ) from error
    column = as_column(name, field, values)
    check_length(name, column, rows)
    return column


def check_length(name: str, column: Column, rows: int) -> None:
    """Raise unless a column has one value for each record or all are missing."""
    if column is not None and _length(column) != rows:
        raise InvalidError(f"field {name!r} has {_length(column)} values, expected {rows}")


def _is_single(values: Any) -> bool:
    """Return whether `values` is one value and not many."""
    if isinstance(values, np.ndarray | np.generic):
        return values.ndim == 0
    return isinstance(values, _SINGLE) or not isinstance(values, Iterable)


def _named(fields: Mapping[str, Field], given: Columns) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    if isinstance(given, Source):
        pick_fields(fields, list(given.fields))
        return _with_missing(given, given.gather(np.arange(len(given), dtype=np.int64)))
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidTypeError(
            f"`records` must be a dict of columns, a source or a list of dicts, "
            f"got {type_name(type(given))}"
        )
    records = [as_record(record) for record in given]
    for record in records:
        if not record.keys() <= fields.keys():
            pick_fields(fields, list(record))
    return {name: [record.get(name) for record in records] for name in fields}


def _with_missing(source: Source, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace the values of a batch that are missing in its source by None."""
    root = source.source if isinstance(source, Subset) else source
    missing = getattr(root, "missing", None)
    if missing is None:
        return batch
    rows = source.rows if isinstance(source, Subset) else range(len(source))
    columns = dict(batch)
    for name, values in batch.items():
        absences = missing(name, rows)
        if absences.any():
            listed = zip(values, absences.tolist(), strict=True)
            columns[name] = [None if absent else value for value, absent in listed]
    return columns


def _length(column: Column) -> int:
    if isinstance(column, tuple):
        return len(column[1]) - 1
    return 0 if column is None else len(column)


def _one_array(values: Any) -> "npt.NDArray[Any] | None":
    """Return values as one array, or None if they must be converted one by one."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, list | tuple):
        if any(isinstance(value, np.ndarray) or value is None for value in values):
            return None
    elif isinstance(values, Iterable) and not hasattr(values, "__array__"):
        return None
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError):  # they differ in shape
        return None


def _is_same_kind(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether values that NumPy made `found` together have that kind one by one."""
    return wanted.kind in "iufcb" and (
        found.kind == wanted.kind or (found.kind in "iu" and wanted.kind in "iu")
    )


def _from_array(name: str, field: Field, dtype: np.dtype[Any], values: npt.NDArray[Any]) -> Column:
    array = as_array(f"field {name!r}", values, dtype)
    if not field.ragged:
        if array.shape[1:] == field.shape:
            return array
        if array.shape == (0,):  # [] does not have inner dimensions
            return array.reshape(0, *field.shape)
    elif array.ndim == 1 + field.ragged + len(field.shape) and (
        array.shape[1 + field.ragged :] == field.shape
    ):
        return list(array)
    elif array.shape == (0,):
        return []
    raise InvalidError(f"field {name!r} must be {field!r}, got values of shape {array.shape[1:]}")


def _from_ragged(name: str, field: Field, dtype: np.dtype[Any], given: Ragged) -> Column:
    varying = int(field.ragged)
    if not varying:
        return list(given)
    values = as_array(f"field {name!r}", given.values, dtype)
    offsets = given.offsets
    if given.ndim != varying + len(field.shape):
        raise InvalidError(
            f"field {name!r}: rows have {given.ndim} dimensions, expected "
            f"{varying + len(field.shape)} for {field!r}"
        )
    if given.shapes is None:
        if values.shape[varying:] != field.shape:
            raise InvalidError(
                f"field {name!r}: items have the shape {values.shape[varying:]}, "
                f"expected {field.shape}"
            )
        if varying == 1:
            return values, offsets, None
        inner = np.array(values.shape[1:varying], np.int64)
        repeated = np.broadcast_to(inner, (len(given), varying - 1))
        dims = np.concatenate([given.lengths[:, None], repeated], axis=1)
        return values, offsets, dims
    if varying == 1:
        return list(given)
    if (given.shapes[:, varying:] != np.array(field.shape, np.int64)).any():
        raise InvalidError(
            f"field {name!r}: all items must have the shape {field.shape}, but some do not"
        )
    return values, offsets, np.ascontiguousarray(given.shapes[:, :varying])


def _objects(name: str, field: Field, values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        if values.ndim != 1 and field.dtype != "json":
            raise InvalidError(f"field {name!r} must have one dimension, got {values.ndim}")
        listed: list[Any] = values.tolist()
        return listed
    return list(values)
