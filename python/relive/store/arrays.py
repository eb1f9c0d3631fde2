"""Arrays as a source: in memory, or mapped from `.npy` files."""

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import type_name
from relive.errors import (
    AccessDeniedError,
    CorruptError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.source import Batch, Indices, Source, as_indices, check_out, pick_fields

__all__ = ["ArrayLike", "ArraySource", "thread_count"]

ArrayLike: TypeAlias = npt.ArrayLike | Ragged | str | os.PathLike[str]
"""One field: an array, a memory map, a `Ragged`, or the path of a `.npy` file."""

_MAX_THREADS: Final = 256


class ArraySource(Source):
    """The rows of one array, or of several equally long ones, without copying them.

    An array gives the field `data`; a dict gives a field per key. Arrays may be NumPy arrays
    of any strides, memory maps, `Ragged` values, paths of `.npy` files (which are mapped, not
    read), or anything `np.asarray` takes without a copy. `threads` is the most that one
    `gather` uses; by default the cores of the machine, at most eight. What a source over
    files pickles is the paths.
    """

    def __init__(
        self, data: ArrayLike | Mapping[str, ArrayLike], *, threads: int | None = None
    ) -> None:
        named = data if isinstance(data, Mapping) else {"data": data}
        if not named:
            raise InvalidError("a source needs at least one array")
        self._threads = thread_count(threads)
        self._arrays = {_name(name): _open(name, value) for name, value in named.items()}
        self._length = _common_length(self._arrays)
        self._fields = {name: _field(name, array) for name, array in self._arrays.items()}
        # Rows with several variable dimensions are put together here, not in the core.
        self._shaped = {
            name: array
            for name, array in self._arrays.items()
            if isinstance(array, Ragged) and array.shapes is not None
        }
        native = [name for name in self._arrays if name not in self._shaped]
        self._columns = {name: column for column, name in enumerate(native)}
        self._table = _native.Table([_column(name, self._arrays[name]) for name in self._columns])
        if not native:  # a table without columns knows no length
            self._table = _native.Table([("", np.empty((self._length, 0), np.uint8), None)])
        self._plain = not any(field.ragged for field in self._fields.values())

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every row, by name."""
        return self._fields

    @property
    def threads(self) -> int:
        """The most threads that one gather uses."""
        return self._threads

    def __len__(self) -> int:
        """Count the rows."""
        return self._length

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the rows at `indices` on native threads; see `Source.gather`."""
        rows = as_indices(indices, self._length, check=False)
        # The usual call must cost no more than the rows: the core checks the rest itself.
        if self._plain and fields is None:
            if out is None:
                return self._table.gather(rows, None, None, self._threads)
            if type(out) is dict and out.keys() <= self._fields.keys():
                return self._table.gather(rows, None, out, self._threads)
        picked = pick_fields(self._fields, fields)
        given = check_out(out, picked, rows.shape) if out is not None else None
        columns = [self._columns[name] for name in picked if name in self._columns]
        found = self._table.gather(rows, columns, given, self._threads)
        if self._plain:
            return found
        checked = as_indices(indices, self._length) if self._shaped else rows
        return {name: self._assemble(name, checked, found) for name in picked}

    def native_table(self) -> "_native.Table | None":
        """Give the arrays as a table of the core; none when rows vary in several dimensions."""
        return None if self._shaped else self._table

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle paths instead of what is mapped from them."""
        arrays = {name: _portable(array) for name, array in self._arrays.items()}
        return _restore, (arrays, self._threads)

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
        """Where in the file the array's first item is; others may come before it."""
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
        except FileNotFoundError as error:
            raise NotFoundError(f"no file `{self.path}`") from error
        needed = self.offset + after + self.dtype.itemsize
        if size < needed:
            raise CorruptError(f"`{self.path}` has {size} bytes, {needed} are needed")
        start = self.offset - before
        raw = np.memmap(self.path, np.uint8, "r", start, (needed - start,))
        return np.ndarray(self.shape, self.dtype, raw, before, self.strides)


def _restore(arrays: dict[str, Any], threads: int) -> ArraySource:
    opened = {name: _reopened(value) for name, value in arrays.items()}
    return ArraySource(opened, threads=threads)


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
    # What was written to a map in mode "c" is in no file.
    if base is None or base.filename is None or base.mode == "c":
        return np.asarray(array)
    # Slices of a memmap keep the root's `offset`, so the place in the file is counted from
    # the beginning of the map.
    mapped: Any = base
    window = np.frombuffer(mapped._mmap, np.uint8)  # noqa: SLF001 - no public way to it
    start = base.offset - base.offset % mmap.ALLOCATIONGRANULARITY
    inside = array.__array_interface__["data"][0] - window.__array_interface__["data"][0]
    return _Mapped(array, os.fspath(base.filename), start + inside)


def thread_count(threads: int | None, what: str = "threads") -> int:
    """Give a number of threads that was asked for, or the default, checked."""
    if threads is None:
        return _native.default_threads()
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer):
        raise InvalidTypeError(f"{what} must be an integer, not {threads!r}")
    if not 1 <= threads <= _MAX_THREADS:
        raise InvalidError(f"{what} must be from 1 to {_MAX_THREADS}, not {threads!r}")
    return int(threads)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"a field is named by a string, not {name!r}")
    return name


def _open(name: str, value: ArrayLike) -> npt.NDArray[Any] | Ragged:
    if isinstance(value, Ragged):
        return value
    if isinstance(value, str | os.PathLike):
        return _map(Path(value))
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(
            f"field {name!r} is a masked array, whose mask would be lost",
            hint="give array.filled(), and its mask as a field of its own if it matters",
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"field {name!r}: {type_name(type(value))} cannot be read as an array: {error}",
            hint="tensor.detach().cpu() for a tensor, and .float() where NumPy lacks its dtype"
            if hasattr(value, "detach")
            else "Ragged.from_list(...) takes rows of different length",
        ) from error
    if array.dtype.hasobject:
        raise InvalidTypeError(
            f"field {name!r} holds Python objects, which cannot be gathered natively",
            hint="give it a NumPy dtype, or Ragged.from_list(...) for rows of different length",
        )
    if array.ndim == 0:
        raise InvalidError(f"field {name!r} is a single value; rows need a first dimension")
    return array


def _map(path: Path) -> npt.NDArray[Any]:
    if path.suffix == ".npz":
        raise UnsupportedError(
            f"`{path}` is an archive that cannot be mapped",
            hint="save each array with np.save, or pass dict(np.load(path))",
        )
    try:
        # Resolved, so that a pickled source opens in a process with another directory.
        array: npt.NDArray[Any] = np.load(path.resolve(), mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise NotFoundError(f"no file `{path}`") from error
    except (ValueError, EOFError) as error:
        raise CorruptError(f"`{path}` is not a readable .npy file: {error}") from error
    except PermissionError as error:
        raise AccessDeniedError(f"`{path}` may not be read") from error
    except OSError as error:
        raise StorageError(f"`{path}` cannot be read: {error.strerror}") from error
    if not isinstance(array, np.ndarray):  # np.load looks at the contents, not at the name
        raise CorruptError(f"`{path}` is an archive, not a .npy file")
    if array.ndim == 0:
        raise InvalidError(f"`{path}` holds a single value; rows need a first dimension")
    return array


def _common_length(arrays: Mapping[str, npt.NDArray[Any] | Ragged]) -> int:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise InvalidError(f"all fields need the same number of rows: {text}")
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
