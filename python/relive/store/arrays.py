"""`ArraySource`: arrays in memory or mapped from `.npy` files, as a source."""

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import type_name, worker_count
from relive.errors import (
    CorruptError,
    InvalidError,
    InvalidTypeError,
    UnsupportedError,
)
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.source import Batch, Indices, Source, as_indices, check_out, pick_fields
from relive.store.atomic import check_file, storage_error

__all__ = ["ArrayLike", "ArraySource"]

ArrayLike: TypeAlias = npt.ArrayLike | Ragged | str | os.PathLike[str]
"""One field: an array, a memory map, a `Ragged`, or the path of a `.npy` file."""


class ArraySource(Source):
    """The rows of one array, or of several equally long ones, without copying them.

    One array becomes the field `data`; a dict becomes a field per key. Arrays may be NumPy
    arrays of any strides, memory maps, `Ragged` values, paths of `.npy` files (which are
    mapped, not read), or anything that `np.asarray` takes without a copy. A source over files
    pickles as their paths.

    Args:
        data: An array or the path of a `.npy` file, or a dict of them.
        workers: The most threads that one `gather` uses; by default the number of cores, at
            most eight.

    Example:
        >>> import numpy as np, relive
        >>> source = relive.ArraySource({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)})
        >>> source.gather([2, 0])["x"].tolist()
        [[4, 5], [0, 1]]
    """

    def __init__(
        self, data: ArrayLike | Mapping[str, ArrayLike], *, workers: int | None = None
    ) -> None:
        named = data if isinstance(data, Mapping) else {"data": data}
        if not named:
            raise InvalidError("an ArraySource must have at least one array")
        self._workers = worker_count(workers)
        self._arrays = {_name(name): _open(name, value) for name, value in named.items()}
        self._length = _common_length(self._arrays)
        self._fields = {name: _field(name, array) for name, array in self._arrays.items()}
        # The core does not support rows with several varying dimensions.
        self._shaped = {
            name: array
            for name, array in self._arrays.items()
            if isinstance(array, Ragged) and array.shapes is not None
        }
        native = [name for name in self._arrays if name not in self._shaped]
        self._columns = {name: column for column, name in enumerate(native)}
        self._table = _native.Table([_column(name, self._arrays[name]) for name in self._columns])
        if not native:  # the core cannot know the length of a table without columns
            self._table = _native.Table([("", np.empty((self._length, 0), np.uint8), None)])
        self._plain = not any(field.ragged for field in self._fields.values())

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every row, by name."""
        return self._fields

    @property
    def workers(self) -> int:
        """The most threads that one `gather` uses."""
        return self._workers

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the rows at `indices` on native threads; see `Source.gather`."""
        rows = as_indices(indices, self._length, check=False)
        # The most frequent call takes the shortest way: the core checks the rest itself.
        if self._plain and fields is None:
            if out is None:
                return self._table.gather(rows, None, None, self._workers)
            if type(out) is dict and out.keys() <= self._fields.keys():
                return self._table.gather(rows, None, out, self._workers)
        picked = pick_fields(self._fields, fields)
        given = check_out(out, picked, rows.shape) if out is not None else None
        columns = [self._columns[name] for name in picked if name in self._columns]
        found = self._table.gather(rows, columns, given, self._workers)
        if self._plain:
            return found
        checked = as_indices(indices, self._length) if self._shaped else rows
        return {name: self._assemble(name, checked, found) for name in picked}

    def native_table(self) -> "_native.Table | None":
        """Return the arrays as a table of the core; None if rows vary in several dimensions."""
        return None if self._shaped else self._table

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the paths of mapped arrays, not their contents."""
        arrays = {name: _portable(array) for name, array in self._arrays.items()}
        return _restore, (arrays, self._workers)

    def _assemble(
        self, name: str, rows: npt.NDArray[np.int64], found: Mapping[str, Any]
    ) -> npt.NDArray[Any] | Ragged:
        if name in self._shaped:
            return self._shaped[name].take(rows)
        value: npt.NDArray[Any] | tuple[npt.NDArray[Any], npt.NDArray[np.int64]] = found[name]
        return Ragged(*value) if isinstance(value, tuple) else value


class _Mapped:
    """An array in a file, small enough to pickle."""

    __slots__ = ("dtype", "offset", "path", "shape", "strides")

    def __init__(self, array: npt.NDArray[Any], path: str, offset: int) -> None:
        self.path = path
        self.offset = offset
        """The offset of the first item in the file; with negative strides others precede it."""
        self.dtype = array.dtype
        self.shape = array.shape
        self.strides = array.strides

    def open(self) -> npt.NDArray[Any]:
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        reaches = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        before = -sum(min(0, reach) for reach in reaches)
        after = sum(max(0, reach) for reach in reaches)
        try:
            size = Path(self.path).stat().st_size
        except OSError as error:
            raise storage_error(error, self.path, "read") from error
        needed = self.offset + after + self.dtype.itemsize
        if size < needed:
            raise CorruptError(f"`{self.path}` has {size} bytes, expected at least {needed}")
        start = self.offset - before
        raw = np.memmap(self.path, np.uint8, "r", start, (needed - start,))
        return np.ndarray(self.shape, self.dtype, raw, before, self.strides)


def _restore(arrays: dict[str, Any], workers: int) -> ArraySource:
    opened = {name: _reopened(value) for name, value in arrays.items()}
    return ArraySource(opened, workers=workers)


def _reopened(value: Any) -> Any:
    if isinstance(value, tuple):
        return Ragged(*map(_reopened, value))
    return value.open() if isinstance(value, _Mapped) else value


def _portable(array: npt.NDArray[Any] | Ragged) -> Any:
    if isinstance(array, Ragged):
        shapes = None if array.shapes is None else _portable(array.shapes)
        return _portable(array.values), _portable(array.offsets), shapes
    base: Any = array
    while base is not None and not (
        isinstance(base, np.memmap) and isinstance(getattr(base, "_mmap", None), mmap.mmap)
    ):
        base = getattr(base, "base", None)
    # Changes to a map in mode "c" are not in its file.
    if base is None or base.filename is None or base.mode == "c":
        return np.asarray(array)
    # Slices of a memmap keep the root's `offset`, so the offset in the file is counted from the
    # beginning of the map.
    mapped: Any = base
    window = np.frombuffer(mapped._mmap, np.uint8)  # noqa: SLF001 - no public way to it
    start = base.offset - base.offset % mmap.ALLOCATIONGRANULARITY
    inside = array.__array_interface__["data"][0] - window.__array_interface__["data"][0]
    return _Mapped(array, os.fspath(base.filename), start + inside)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"the name of a field must be a non-empty string, got {name!r}")
    return name


def _open(name: str, value: ArrayLike) -> npt.NDArray[Any] | Ragged:
    if isinstance(value, Ragged):
        return value
    if isinstance(value, str | os.PathLike):
        return _map(Path(value))
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(
            f"field {name!r} is a masked array, which is not supported",
            hint="pass array.filled(), and the mask as another field if it matters",
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"field {name!r}: {type_name(type(value))} cannot be converted to an array: {error}",
            hint="pass tensor.detach().cpu(), and .float() if NumPy does not have its dtype"
            if hasattr(value, "detach")
            else "Ragged.from_list(...) takes rows of different length",
        ) from error
    if array.dtype.hasobject:
        raise InvalidTypeError(
            f"field {name!r} must have a NumPy dtype, got Python objects",
            hint="convert it with astype(), or rows of different length with Ragged.from_list(...)",
        )
    if array.ndim == 0:
        raise InvalidError(f"field {name!r} must have at least one dimension, got a single value")
    return array


def _map(path: Path) -> npt.NDArray[Any]:
    if path.suffix == ".npz":
        raise UnsupportedError(
            f"cannot open `{path}` as an array: it is a .npz archive",
            hint="save each array with np.save, or pass dict(np.load(path))",
        )
    check_file(path)
    try:
        # An absolute path, so that a process with another working directory can open it.
        array: npt.NDArray[Any] = np.load(path.resolve(), mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise CorruptError(f"`{path}` is not a readable .npy file: {error}") from error
    except OSError as error:
        raise storage_error(error, path, "read") from error
    if not isinstance(array, np.ndarray):  # np.load detects the format from the contents
        raise CorruptError(f"`{path}` is a .npz archive, expected a .npy file")
    if array.ndim == 0:
        raise InvalidError(f"`{path}` must have at least one dimension, got a single value")
    return array


def _common_length(arrays: Mapping[str, npt.NDArray[Any] | Ragged]) -> int:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise InvalidError(f"all fields must have the same number of rows: {text}")
    return next(iter(lengths.values()))


def _field(name: str, array: npt.NDArray[Any] | Ragged) -> Field:
    if isinstance(array, Ragged):
        return Field(array.dtype, array.inner, ragged=array.varying)
    try:
        return Field(array.dtype, array.shape[1:])
    except InvalidTypeError as error:
        raise InvalidTypeError(f"field {name!r}: {error.message}", hint=error.hint) from None


def _column(
    name: str, array: npt.NDArray[Any] | Ragged
) -> tuple[str, npt.NDArray[Any], npt.NDArray[np.int64] | None]:
    if isinstance(array, Ragged):
        return name, np.ascontiguousarray(array.values), array.offsets
    return name, array, None
