"""Fingerprints of sources: an interrupted conversion continues only with the same source.

A source is known by its files, or by every byte of what is in memory.
"""

import functools
import hashlib
import mmap
import os
import pickle
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.model.ragged import Ragged
from relive.store.atomic import storage_error

_BLOCK_BYTES: Final = 16 << 20
_CONSTANTS: Final = (bool, int, float, complex, type(None), type(Ellipsis))


class FingerprintError(Exception):
    """A value has no fingerprint that is the same in another process."""


def file_fingerprint(paths: Iterable[str | os.PathLike[str]]) -> list[list[Any]]:
    """Return the path, size and modification time of every file."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - a Path for each of many files is slow
        except OSError as error:
            raise storage_error(error, path, "read") from error
        found.append([os.fspath(Path(path).absolute()), status.st_size, status.st_mtime_ns])
    return found


def function_fingerprint(function: object) -> str | None:
    """Return the name of a function with a digest of its code and of the values it uses.

    Those are its defaults, its closure and the globals of its module that it names.
    """
    if function is None or isinstance(function, str | bool):
        return None if function is None else str(function)
    digest = _Digest()
    digest.add(function)
    return f"{_qualified_name(function)}#{digest.hex}"


def columns_fingerprint(batches: Iterable[Mapping[str, Any]]) -> str:
    """Return a digest of all names and values: arrays, `Ragged` values and lists.

    A read-only memory map is known by its file instead of its bytes.
    """
    digest = _Digest()
    for columns in batches:
        for name, column in columns.items():
            digest.add(name)
            digest.add(column)
    return digest.hex


class _Digest:
    """A SHA-256 digest of values of any type."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._open: set[int] = set()
        """The ids of values that are being added: a function may refer to itself."""

    @property
    def hex(self) -> str:
        return self._hash.hexdigest()[:32]

    def add(self, value: Any) -> None:
        """Add a value and its type, so that no two different values have the same bytes."""
        if type(value) in _CONSTANTS:
            self._write(type(value).__name__, repr(value).encode())
        elif isinstance(value, str):
            self._write("str", value.encode(errors="surrogatepass"))
        elif isinstance(value, bytes | bytearray | memoryview):
            self._write("bytes", bytes(value))
        elif isinstance(value, np.ndarray | np.generic):
            self._array(value)
        elif id(value) in self._open:
            self._write("again", b"")
        else:
            self._open.add(id(value))
            self._compound(value)
            self._open.discard(id(value))

    def _write(self, kind: str, data: bytes) -> None:
        self._hash.update(f"{kind}:{len(data)}:".encode())
        self._hash.update(data)

    def _array(self, value: "npt.NDArray[Any] | np.generic") -> None:
        array = np.asarray(value)
        self._write(type(value).__name__, repr((array.dtype, array.shape)).encode())
        if isinstance(value, np.ma.MaskedArray):
            self._array(np.ma.getmaskarray(value))
        if array.dtype.hasobject or array.dtype.kind == "T":
            self.add(array.tolist())
            return
        file = _mapped_file(array)
        checksum = 0
        for block in () if file else _blocks(array):
            checksum = zlib.crc32(block.data, checksum)
        self._write("data", repr(file or checksum).encode())

    def _compound(self, value: Any) -> None:
        if isinstance(value, Ragged):
            self._sequence("ragged", (value.values, value.offsets, value.shapes))
        elif isinstance(value, Mapping):
            self._sequence("dict", (part for pair in value.items() for part in pair))
        elif isinstance(value, list | tuple | range):
            self._sequence(type(value).__name__, value)
        elif isinstance(value, set | frozenset):
            self._sequence("set", sorted(value, key=repr))
        elif hasattr(value, "__array__") and not isinstance(value, type):
            self._array(np.asarray(value))
        elif not self._callable(value):
            self._object(value)

    def _callable(self, value: Any) -> bool:
        """Add a function, a method or another callable; return whether `value` is one."""
        call = getattr(type(value), "__call__", None)  # noqa: B004 - its code, not whether it exists
        owner = getattr(value, "__self__", None)
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, types.MethodType):
            self._sequence("method", (value.__func__, owner))
        elif isinstance(value, types.BuiltinFunctionType) and owner is not None:
            self._sequence(f"method {_qualified_name(value)}", (owner,))
        elif isinstance(value, functools.partial):
            self._sequence("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, types.ModuleType | type | np.ufunc):
            self._write("name", _qualified_name(value).encode())
        elif isinstance(call, types.FunctionType) and hasattr(value, "__dict__"):
            self._sequence(f"object {_qualified_name(type(value))}", (call, vars(value)))
        else:
            return False
        return True

    def _sequence(self, kind: str, values: Iterable[Any]) -> None:
        self._write(kind, b"")
        for value in values:
            self.add(value)
        self._write("end", b"")

    def _code(self, code: types.CodeType) -> None:
        names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars)
        self._sequence("code", (code.co_code, *names, code.co_consts))

    def _function(self, function: types.FunctionType) -> None:
        values = [function.__code__, function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            try:
                values.append(cell.cell_contents)
            except ValueError:  # the cell is still empty
                values.append(None)
        self._sequence(f"function {function.__module__}", values)
        for name in sorted(_global_names(function.__code__)):
            used = function.__globals__.get(name)
            own = getattr(used, "__module__", None) == function.__module__
            if isinstance(used, types.FunctionType) and not own:
                continue  # a function of a library, known by the name of its module
            if isinstance(used, (*_CONSTANTS, str, bytes, list, tuple, dict, np.ndarray)) or own:
                self.add(name)
                self.add(used)

    def _object(self, value: Any) -> None:
        kind = type(value)
        try:
            data = pickle.dumps(value, protocol=4)
        except Exception as error:
            raise FingerprintError(f"a {kind.__name__} cannot be pickled") from error
        self._write(f"object {_qualified_name(kind)}", data)


def _global_names(code: types.CodeType) -> set[str]:
    """Return the global names that a function and the functions inside it use."""
    inner = (_global_names(item) for item in code.co_consts if isinstance(item, types.CodeType))
    return set(code.co_names).union(*inner)


def _qualified_name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{getattr(value, '__module__', '')}.{name}"


def _blocks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of an array in order; a strided array is copied block by block."""
    if not array.nbytes:
        return
    if array.ndim == 0:
        array = array.reshape(1)
    if array.flags.c_contiguous:
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), _BLOCK_BYTES):
            yield flat[start : start + _BLOCK_BYTES]
        return
    rows = max(1, _BLOCK_BYTES * len(array) // array.nbytes)
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8)


def _mapped_file(array: npt.NDArray[Any]) -> list[Any] | None:
    """Return the file and the offset of an array that is part of a read-only memory map."""
    base: Any = array
    while base is not None and not (
        isinstance(base, np.memmap) and isinstance(getattr(base, "_mmap", None), mmap.mmap)
    ):
        base = getattr(base, "base", None)
    if base is None or base.filename is None or base.mode != "r":
        return None
    mapped: Any = base
    window = np.frombuffer(mapped._mmap, np.uint8)  # noqa: SLF001 - there is no public attribute
    inside = array.__array_interface__["data"][0] - window.__array_interface__["data"][0]
    start = int(base.offset) - int(base.offset) % mmap.ALLOCATIONGRANULARITY
    return [*file_fingerprint([base.filename]), start + inside, array.strides]
