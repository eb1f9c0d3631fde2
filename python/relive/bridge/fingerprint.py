"""What tells a source from another: its files, or every byte of what is in memory."""

import functools
import hashlib
import mmap
import os
import pickle
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import NotFoundError
from relive.model.ragged import Ragged
from relive.store.atomic import storage_error

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "UnknownIdentity",
    "columns_identity",
    "file_identity",
    "function_identity",
    "table_identity",
]

_PIECE_BYTES: Final = 16 << 20
_PLAIN: Final = (bool, int, float, complex, type(None), type(Ellipsis))


class UnknownIdentity(Exception):  # noqa: N818 - a state of affairs that is dealt with
    """Nothing shows whether a value is the same in another process."""


def file_identity(paths: Iterable[str | os.PathLike[str]]) -> list[list[Any]]:
    """Give what shows whether files are the same as before: place, size and time of change."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - many files, and a Path for each is slow
        except FileNotFoundError as error:
            raise NotFoundError(f"no file `{os.fspath(path)}`") from error
        except OSError as error:
            raise storage_error(error, path, "read") from error
        found.append([os.fspath(Path(path).absolute()), status.st_size, status.st_mtime_ns])
    return found


def function_identity(function: object) -> str | None:
    """Give what shows whether a function is the same as before: its name, code and values.

    The values are its defaults, what it closes over and the globals of its module that it uses.
    """
    if function is None or isinstance(function, str | bool):
        return None if function is None else str(function)
    contents = _Contents()
    contents.add(function)
    return f"{_name(function)}#{contents.digest}"


def columns_identity(chunks: Iterable[Mapping[str, Any]]) -> str:
    """Give a checksum of all values: arrays, `Ragged`s and lists, by name, in any number of parts.

    Read-only maps of files are told apart by the file instead.
    """
    contents = _Contents()
    for columns in chunks:
        for name, column in columns.items():
            contents.add(name)
            contents.add(column)
    return contents.digest


def table_identity(table: "pa.Table") -> str:
    """Give a checksum of all values of a table, whatever the buffers are that they lie in."""
    import pyarrow as pa

    sink = _Sink()
    rows = max(1, _PIECE_BYTES * table.num_rows // max(1, table.nbytes))
    # Equal tables may be chunked differently, which is no difference here.
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), table.schema) as writer:
        for start in range(0, table.num_rows, rows):
            part = table.slice(start, rows).combine_chunks()
            writer.write_table(part)
    return f"{sink.checksum:08x}"


class _Sink:
    """A file that keeps nothing but the checksum of what is written to it."""

    closed = False

    def __init__(self) -> None:
        self.checksum = 0

    def write(self, data: Any) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


class _Contents:
    """A digest of values of any kind, to their last byte."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._inside: set[int] = set()
        """What is being added: a function may refer to itself."""

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:32]

    def add(self, value: Any) -> None:
        """Add a value, with what it is, so that no two of them read the same."""
        if type(value) in _PLAIN:
            self._tell(type(value).__name__, repr(value).encode())
        elif isinstance(value, str):
            self._tell("str", value.encode(errors="surrogatepass"))
        elif isinstance(value, bytes | bytearray | memoryview):
            self._tell("bytes", bytes(value))
        elif isinstance(value, np.ndarray | np.generic):
            self._array(value)
        elif id(value) in self._inside:
            self._tell("again", b"")
        else:
            self._inside.add(id(value))
            self._compound(value)
            self._inside.discard(id(value))

    def _tell(self, kind: str, data: bytes) -> None:
        self._hash.update(f"{kind}:{len(data)}:".encode())
        self._hash.update(data)

    def _array(self, value: "npt.NDArray[Any] | np.generic") -> None:
        array = np.asarray(value)
        self._tell(type(value).__name__, repr((array.dtype, array.shape)).encode())
        if isinstance(value, np.ma.MaskedArray):
            self._array(np.ma.getmaskarray(value))
        if array.dtype.hasobject or array.dtype.kind == "T":
            self.add(array.tolist())
            return
        file = _mapped(array)
        checksum = 0
        for piece in () if file else _pieces(array):
            checksum = zlib.crc32(piece.data, checksum)
        self._tell("data", repr(file or checksum).encode())

    def _compound(self, value: Any) -> None:
        if isinstance(value, Ragged):
            self._many("ragged", (value.values, value.offsets, value.shapes))
        elif isinstance(value, Mapping):
            self._many("dict", (part for pair in value.items() for part in pair))
        elif isinstance(value, list | tuple | range):
            self._many(type(value).__name__, value)
        elif isinstance(value, set | frozenset):
            self._many("set", sorted(value, key=repr))
        elif hasattr(value, "__array__") and not isinstance(value, type):
            self._array(np.asarray(value))
        elif not self._callable(value):
            self._object(value)

    def _callable(self, value: Any) -> bool:
        """Add a function, or what stands for one; whether it is that."""
        call = getattr(type(value), "__call__", None)  # noqa: B004 - what it does, not whether
        owner = getattr(value, "__self__", None)
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, types.MethodType):
            self._many("method", (value.__func__, owner))
        elif isinstance(value, types.BuiltinFunctionType) and owner is not None:
            self._many(f"method {_name(value)}", (owner,))
        elif isinstance(value, functools.partial):
            self._many("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, types.ModuleType | type | np.ufunc):
            self._tell("name", _name(value).encode())
        elif isinstance(call, types.FunctionType) and hasattr(value, "__dict__"):
            self._many(f"object {_name(type(value))}", (call, vars(value)))
        else:
            return False
        return True

    def _many(self, kind: str, values: Iterable[Any]) -> None:
        self._tell(kind, b"")
        for value in values:
            self.add(value)
        self._tell("end", b"")

    def _code(self, code: types.CodeType) -> None:
        told = (code.co_name, code.co_names, code.co_varnames, code.co_freevars)
        self._many("code", (code.co_code, *told, code.co_consts))

    def _function(self, function: types.FunctionType) -> None:
        values = [function.__code__, function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            try:
                values.append(cell.cell_contents)
            except ValueError:  # nothing is in it yet
                values.append(None)
        self._many(f"function {function.__module__}", values)
        for name in sorted(_names(function.__code__)):
            used = function.__globals__.get(name)
            mine = getattr(used, "__module__", None) == function.__module__
            if isinstance(used, types.FunctionType) and not mine:
                continue  # a library's own
            if isinstance(used, (*_PLAIN, str, bytes, list, tuple, dict, np.ndarray)) or mine:
                self.add(name)
                self.add(used)

    def _object(self, value: Any) -> None:
        kind = type(value)
        try:
            data = pickle.dumps(value, protocol=4)
        except Exception as error:
            raise UnknownIdentity(f"a {kind.__name__} cannot be told from others") from error
        self._tell(f"object {_name(kind)}", data)


def _names(code: types.CodeType) -> set[str]:
    """Give the names that a function and those inside of it look up."""
    inner = (_names(item) for item in code.co_consts if isinstance(item, types.CodeType))
    return set(code.co_names).union(*inner)


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{getattr(value, '__module__', '')}.{name}"


def _pieces(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.uint8]]:
    """Give the bytes of an array in order; what is strided is copied piece by piece."""
    if not array.nbytes:
        return
    if array.ndim == 0:
        array = array.reshape(1)
    if array.flags.c_contiguous:
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), _PIECE_BYTES):
            yield flat[start : start + _PIECE_BYTES]
        return
    rows = max(1, _PIECE_BYTES * len(array) // array.nbytes)
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8)


def _mapped(array: npt.NDArray[Any]) -> list[Any] | None:
    """Give the file and the place in it of an array that is nothing but a part of one."""
    base: Any = array
    while base is not None and not (
        isinstance(base, np.memmap) and isinstance(getattr(base, "_mmap", None), mmap.mmap)
    ):
        base = getattr(base, "base", None)
    if base is None or base.filename is None or base.mode != "r":
        return None
    mapped: Any = base
    window = np.frombuffer(mapped._mmap, np.uint8)  # noqa: SLF001 - no public way to it
    inside = array.__array_interface__["data"][0] - window.__array_interface__["data"][0]
    start = int(base.offset) - int(base.offset) % mmap.ALLOCATIONGRANULARITY
    return [*file_identity([base.filename]), start + inside, array.strides]
