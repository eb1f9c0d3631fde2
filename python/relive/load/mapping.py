"""A source whose rows are made by a function from those of another."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.source import (
    Batch,
    IndexArray,
    Indices,
    Row,
    Source,
    as_indices,
    check_out,
    check_source,
    pick_fields,
)

__all__ = ["Map"]


class Map(Source):
    """A source whose batches go through a function when they are read.

    Args:
        source: Where rows come from.
        function: `function(batch) -> batch` on dicts of arrays with a first dimension, which
            it must keep; or, with `per_row`, `function(row) -> row` on dicts of single values.
        fields: What the function gives; by default found out by running it on the first row,
            where a field that varies in size in the source still does under the same name.
        per_row: Call the function on one row at a time.
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
            raise InvalidTypeError(f"function must be callable, not {function!r}")
        self._source = source
        self._function = function
        self._fields = None if fields is None else dict(fields)
        self._per_row = per_row

    @property
    def source(self) -> Source:
        """Where rows come from."""
        return self._source

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the function gives."""
        if self._fields is None:
            if len(self._source) == 0:
                raise InvalidError(
                    "the source is empty, so what the function gives cannot be found out",
                    hint="pass fields=",
                )
            first = self._apply(np.zeros(1, dtype=np.int64))
            self._fields = {name: self._field(name, values) for name, values in first.items()}
        return self._fields

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._source)

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read rows and apply the function to them; see `Source.gather`."""
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
        """Give the field whose rows differ in size, if this is one."""
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
                    f"the function gave {name!r} in several shapes: {error}",
                    hint="pass fields= with Field(dtype, ragged=True)",
                ) from error
        if field.ragged:
            return Ragged.from_list(values, dtype=field.array_dtype)
        stacked = np.empty((len(values), *field.shape), dtype=object)
        for place, value in enumerate(values):
            stacked[place] = value
        return stacked

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the source and the function."""
        return _restore_map, (self._source, self._function, self._fields, self._per_row)


def _restore_map(
    source: Source,
    function: Callable[[Any], Mapping[str, Any]],
    fields: Mapping[str, Field] | None,
    per_row: bool,  # noqa: FBT001 - called by pickle alone
) -> Map:
    return Map(source, function, fields=fields, per_row=per_row)


def _dict(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidTypeError(f"the function must give a dict, and gave {type(value).__name__}")
    return value


def _array(name: str, value: object) -> npt.NDArray[Any] | Ragged:
    if isinstance(value, Ragged):
        return value
    array = np.asarray(value)
    if array.ndim == 0:
        raise InvalidError(
            f"the function gave {name!r} as a single value, and should give one for each row",
            hint="per_row=True calls it on one row at a time",
        )
    return array


def _field_of(values: npt.NDArray[Any] | Ragged) -> Field:
    if isinstance(values, Ragged):
        return Field(values.dtype, values.inner, ragged=values.varying)
    return Field(values.dtype, values.shape[1:])


def _empty(field: Field, shape: tuple[int, ...]) -> npt.NDArray[Any] | Ragged:
    if field.ragged:
        return Ragged(np.empty((0, *field.shape), field.array_dtype), np.zeros(1, dtype=np.int64))
    return np.empty(shape + field.shape, field.array_dtype)


def _checked(
    name: str, field: Field, mapped: Mapping[str, npt.NDArray[Any] | Ragged], count: int
) -> npt.NDArray[Any] | Ragged:
    values = mapped.get(name)
    if values is None:
        raise InvalidError(f"the function gave no {name!r} this time, and gave one for other rows")
    if len(values) != count or not _fits(values, field):
        inner = values.inner if isinstance(values, Ragged) else values.shape[1:]
        kind = f"{'ragged ' * isinstance(values, Ragged)}rows of {values.dtype} {inner}"
        raise InvalidError(
            f"the function gave {name!r} as {len(values)} {kind}, "
            f"and should give {count} of {field}"
        )
    return values


def _fits(values: npt.NDArray[Any] | Ragged, field: Field) -> bool:
    if values.dtype != field.array_dtype:
        return False
    if not isinstance(values, Ragged):
        return not field.ragged and values.shape[1:] == field.shape
    if values.shapes is None:
        return field.ragged == 1 and values.inner == field.shape
    # Rows of shapes of their own say nothing about the dimensions that all have.
    return field.ragged > 1 and values.ndim == field.ragged + len(field.shape)
