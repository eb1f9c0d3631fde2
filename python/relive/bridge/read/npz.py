"""`.npz` archives of arrays."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive.bridge.fingerprint import file_fingerprint
from relive.bridge.options import ReadOptions, single_path
from relive.bridge.stream import ColumnBatch, Stream, rows_per_batch
from relive.errors import CorruptError, InvalidError, UnsupportedError
from relive.model.schema import Field
from relive.store.atomic import storage_error

if TYPE_CHECKING:
    from relive.model.columns.cast import Column

_HEADERS: Final[dict[tuple[int, int], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def open_npz(paths: list[str], options: ReadOptions) -> Stream:
    """Return the rows of a `.npz` archive."""
    return _NpzStream(single_path(paths, ".npz archives"), options.batch)


class _NpzStream(Stream):
    """The arrays of an archive, read side by side from the first row to the last."""

    def __init__(self, path: str, batch: int | None) -> None:
        self._path = path
        headers: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        with _reading(path), zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".npy"):
                    with archive.open(member) as file:
                        headers[member.removesuffix(".npy")] = _header(path, member, file)
        if not headers:
            raise InvalidError(f"`{path}` contains no arrays")
        lengths = {name: shape[0] for name, (shape, _) in headers.items()}
        self.total: int = next(iter(lengths.values()))
        if set(lengths.values()) != {self.total}:
            text = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise InvalidError(f"`{path}`: arrays must have the same number of rows: {text}")
        self.fields = {name: Field(dtype, shape[1:]) for name, (shape, dtype) in headers.items()}
        self._row_bytes = {name: field.nbytes or 0 for name, field in self.fields.items()}
        self._batch = batch or rows_per_batch(sum(self._row_bytes.values()))

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The file."""
        return {"npz": file_fingerprint([self._path])}

    def batches(self, start: int = 0) -> Iterator[ColumnBatch]:
        """Yield the rows from `start` on; compressed rows before it are read and discarded."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_reading(self._path))
            archive = stack.enter_context(zipfile.ZipFile(self._path))
            files = {n: stack.enter_context(archive.open(f"{n}.npy")) for n in self.fields}
            for name, file in files.items():
                _header(self._path, f"{name}.npy", file)
                file.seek(file.tell() + start * self._row_bytes[name])
            while start < self.total:
                rows = min(self._batch, self.total - start)
                columns: dict[str, Column] = {n: self._read(n, f, rows) for n, f in files.items()}
                yield ColumnBatch(rows, columns)
                start += rows
            for name, file in files.items():
                if file.read(1):  # the checksum is compared at the end of the member
                    raise CorruptError(
                        f"`{self._path}`: `{name}.npy` has more bytes than its header declares"
                    )

    def _read(self, name: str, file: IO[bytes], rows: int) -> npt.NDArray[Any]:
        field = self.fields[name]
        size = rows * self._row_bytes[name]
        data = bytearray(file.read(size))
        if len(data) != size:
            raise CorruptError(f"`{self._path}`: `{name}.npy` is truncated")
        return np.frombuffer(data, field.array_dtype).reshape(rows, *field.shape)


def _header(path: str, member: str, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        shape, fortran, dtype = _HEADERS[version](file)
    except KeyError as error:
        raise UnsupportedError(
            f"`{path}`: `{member}` uses version {error} of the .npy format, expected 1.0 or 2.0"
        ) from None
    except (ValueError, SyntaxError, TypeError) as error:
        raise CorruptError(f"`{path}`: `{member}` is not an array: {error}") from error
    if dtype.hasobject:
        raise UnsupportedError(
            f"`{path}`: `{member}` contains pickled Python objects",
            hint="load it with np.load(path, allow_pickle=True), and convert its arrays",
        )
    if fortran and len(shape) > 1:
        raise UnsupportedError(
            f"`{path}`: `{member}` is stored in Fortran order",
            hint="load it first: relive.convert(dict(np.load(path)), target)",
        )
    if not shape:
        raise InvalidError(f"`{path}`: `{member}` must have one value per row, got a single value")
    return shape, dtype


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CorruptError(f"cannot read `{path}` as a .npz archive: {error}") from error
    except OSError as error:
        raise storage_error(error, path, "read") from error
