"""The index protocol: everything that can be trained on is a `Source`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError, UnknownFieldError
from relive.model.indices import Indices, Key, as_indices, resolve
from relive.model.ragged import Ragged
from relive.model.schema import Field

if TYPE_CHECKING:
    from relive._native import Table
    from relive.model.select import Subset

__all__ = ["Batch", "Row", "Source", "check_out", "check_source", "describe", "pick_fields"]

Row: TypeAlias = dict[str, Any]
"""One row: a NumPy scalar, an array or an object per field."""
Batch: TypeAlias = dict[str, npt.NDArray[Any] | Ragged]
"""Many rows: per field one array, or a `Ragged` where rows differ in length."""

_CHUNK_BYTES: Final = 1 << 20
_CHUNK_ROWS: Final = 1024
_CHUNK_ROWS_UNSIZED: Final = 64
_REPR_FIELDS: Final = 6


class Source(ABC):
    """Rows that can be read in any order, in batches.

    A subclass gives `fields`, `__len__` and `gather`; all the rest follows from them. Every
    source is safe to read from several threads, works in forked and spawned processes, and
    is a map-style torch dataset and a grain data source as it is.
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
        """Read the rows at `indices` into one batch, in the order asked, repeats included.

        `indices` are integers of any shape, and a field comes back as an array of the shape
        `indices.shape + field.shape` that is writable and the caller's own. A ragged field
        comes back as a `Ragged` with one row per index, in C order. `fields` are the names to
        read, all of them by default. `out` maps names to C-contiguous arrays that receive the
        rows; the batch then holds those same arrays. A negative index, or one past the end, is
        an `OutOfRangeError`.
        """

    def native_table(self) -> "Table | None":
        """Give the rows as a table that the core reads on its own threads, if there is one."""
        return None

    def split(
        self,
        ratios: Iterable[float],
        *,
        by: "str | Callable[[Row], object] | Sequence[object] | npt.NDArray[Any] | None" = None,
        seed: int = 0,
    ) -> "tuple[Subset, ...]":
        """Divide the rows into disjoint views; see `relive.model.split.split`."""
        from relive.model.split import split  # split is made of sources

        return split(self, ratios, by=by, seed=seed)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, key: Key) -> "Subset": ...

    def __getitem__(self, key: Key | SupportsIndex) -> "Row | Subset":
        """Give one row for an integer, and a view for a slice, an array of integers or a mask."""
        length = len(self)
        if type(key) is int and 0 <= key < length:  # the way torch and grain come in
            return self._row(key)
        rows = resolve(key, length)  # type: ignore[arg-type]
        if isinstance(rows, int):
            return self._row(rows)
        from relive.model.select import view  # a view is itself a source

        return view(self, rows)

    def __getitems__(self, indices: Indices) -> list[Row]:
        """Give the rows at `indices` as a list, read by one gather."""
        rows = as_indices(indices, len(self), check=False)
        if rows.ndim != 1:
            raise InvalidError(
                f"rows are listed along one axis, and the indices have {rows.ndim}",
                hint="gather() takes indices of any shape",
            )
        return list(_rows(self.gather(rows), len(rows)))

    def __iter__(self) -> Iterator[Row]:
        """Give every row in order; rows are read in chunks."""
        length = len(self)
        step = _chunk_rows(self.fields)
        for start in range(0, length, step):
            stop = min(start + step, length)
            yield from _rows(self.gather(np.arange(start, stop, dtype=np.int64)), stop - start)

    def __repr__(self) -> str:
        """Give the number of rows and the fields, on one line."""
        return f"{type(self).__name__}({describe(self)})"

    def _row(self, position: int) -> Row:
        batch = self.gather(np.array((position,), dtype=np.int64))
        return {name: values[0] for name, values in batch.items()}


def check_source(value: object) -> Source:
    """Give `value` as it is if it is a source, or say how to make it one."""
    if isinstance(value, Source):
        return value
    hint = "wrap it: relive.ArraySource(array)" if hasattr(value, "__array__") else None
    raise InvalidTypeError(f"{type_name(type(value))} is not a source", hint=hint)


def describe(source: Source) -> str:
    """Say how many rows a source has, and its fields, on one line."""
    texts = []
    for name, field in source.fields.items():
        shape = f" {field.shape}" if field.shape else ""
        ragged = " ragged" if field.ragged else ""
        texts.append(f"{name if name.isprintable() else repr(name)} {field.dtype}{shape}{ragged}")
    if len(texts) > _REPR_FIELDS:
        texts[_REPR_FIELDS - 1 :] = [f"{len(texts) - _REPR_FIELDS + 1} more"]
    return f"{len(source)} rows: {', '.join(texts)}" if texts else f"{len(source)} rows"


def pick_fields(fields: Mapping[str, Field], asked: Sequence[str] | None) -> dict[str, Field]:
    """Give the fields that were asked for, in the order asked; all of them for None."""
    if asked is None:
        return dict(fields)
    if isinstance(asked, (str, bytes)):
        raise InvalidTypeError(
            f"fields is a list of names, not the {type(asked).__name__} {asked!r}",
            hint=f"fields=[{asked!r}]",
        )
    try:
        return {name: fields[name] for name in asked}
    except KeyError:
        name = next(name for name in asked if name not in fields)
    except TypeError as error:
        raise InvalidTypeError(f"fields is a list of names, not {asked!r}") from error
    raise _unknown_field(name, fields)


def check_out(
    out: Mapping[str, npt.NDArray[Any]] | None,
    picked: Mapping[str, Field],
    shape: tuple[int, ...],
) -> dict[str, npt.NDArray[Any]]:
    """Give the arrays of `out`, each fit to receive its field at indices of `shape`.

    An array must be C-contiguous and writable and have exactly the dtype and shape that
    `gather` would make. `out` may leave fields out, which are then allocated as usual; a name
    that is not gathered, and a ragged field, are errors.
    """
    if out is None:
        return {}
    for name, array in _named_arrays(out).items():
        if name not in picked:
            raise _unknown_field(name, picked)
        trouble = _misfit(array, picked[name], shape)
        if trouble:
            raise InvalidError(f"out[{name!r}] {trouble}")
    return dict(out)


def _named_arrays(out: object) -> Mapping[str, object]:
    if not isinstance(out, Mapping):
        raise InvalidTypeError(f"out is a dict of field name to array, not {type(out).__name__}")
    return out


def _misfit(  # noqa: PLR0911 - one line per rule
    array: object, field: Field, shape: tuple[int, ...]
) -> str | None:
    if field.ragged:
        return "cannot be given: a ragged field has no size before it is read"
    if not isinstance(array, np.ndarray):
        return f"must be a NumPy array, not {type(array).__name__}"
    if array.dtype != field.array_dtype:
        return f"must have the dtype {field.array_dtype}, not {array.dtype}"
    if array.shape != shape + field.shape:
        return f"must have the shape {shape + field.shape}, not {array.shape}"
    if not array.flags.writeable:
        return "must be writable"
    if not array.flags.c_contiguous:
        return "must be C-contiguous"
    return None


def _unknown_field(name: object, fields: Mapping[str, Field]) -> UnknownFieldError:
    close = get_close_matches(name, list(fields), n=1) if isinstance(name, str) else []
    message = f"no field {name!r}; there is {', '.join(map(repr, fields)) or 'none'}"
    return UnknownFieldError(message, hint=f"did you mean {close[0]!r}?" if close else None)


def _rows(batch: Batch, count: int) -> Iterator[Row]:
    for position in range(count):
        yield {name: values[position] for name, values in batch.items()}


def _chunk_rows(fields: Mapping[str, Field]) -> int:
    sizes = [field.nbytes for field in fields.values()]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return _CHUNK_ROWS_UNSIZED
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(1, sum(known))))
