"""array_record files and LMDB databases, as rows."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from relive._extras import require
from relive.bridge.fingerprint import file_identity, function_identity
from relive.bridge.read.tf_example import parse_example
from relive.bridge.read.tfrecord import settle_examples
from relive.bridge.rows import RowReader
from relive.errors import CorruptError
from relive.model.schema import Field

__all__ = ["ArrayRecordReader", "LmdbReader"]

_AT_ONCE: Final = 256


class ArrayRecordReader(RowReader[tuple[bytes, str]]):
    """The records of array_record files, one file behind the other.

    `decode` is "bytes" for the field `record`, "example" for `tf.train.Example` messages, whose
    features become fields, or a function of the bytes that gives a row or the value of `record`.
    """

    def __init__(
        self, paths: Sequence[str], *, decode: str | Callable[[bytes], Any] = "bytes"
    ) -> None:
        self._module = require(
            "array_record.python.array_record_module", extra="convert", to="read array_record files"
        )
        self._paths = list(paths)
        self._decode = decode
        self.parallel = callable(decode)
        self.declared = {"record": Field("bytes")} if decode == "bytes" else None
        self._identity = file_identity(self._paths)  # says what is not there
        self._counts = []
        for path in self._paths:
            with self._opened(path) as reader:
                self._counts.append(reader.num_records())

    @property
    def total(self) -> int:
        """The number of records."""
        return sum(self._counts)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The files and how they are decoded."""
        return {"array_record": self._identity, "decode": function_identity(self._decode)}

    def items(self, start: int) -> Iterator[tuple[bytes, str]]:
        """Give the records from `start` on; those before are not read."""
        for path, count in zip(self._paths, self._counts, strict=True):
            if start >= count:
                start -= count
                continue
            with self._opened(path) as reader:
                for first in range(start, count, _AT_ONCE):
                    rows = list(range(first, min(first + _AT_ONCE, count)))
                    for row, data in zip(rows, self._read(reader, path, rows), strict=True):
                        yield data, f"`{path}`, record {row},"
            start = 0

    def row(self, item: tuple[bytes, str]) -> Mapping[str, Any]:
        """Make a row of a record."""
        data, where = item
        if self._decode == "bytes":
            return {"record": data}
        if self._decode == "example":
            return parse_example(data, where)
        found = self._decode(data)  # type: ignore[operator]  # the names are taken
        return found if isinstance(found, Mapping) else {"record": found}

    def settle(self, fields: dict[str, Field]) -> dict[str, Field]:
        """Take features of one value each for that value."""
        return settle_examples(fields) if self._decode == "example" else fields

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        options = "readahead_buffer_size:0,max_parallelism:0"
        try:
            reader = self._module.ArrayRecordReader(path, options)
        except (RuntimeError, ValueError, IndexError) as error:
            raise CorruptError(f"`{path}` is no array_record file: {error}") from error
        if not reader.ok():
            raise CorruptError(f"`{path}` is no array_record file, or a part of one")
        try:
            yield reader
        finally:
            with contextlib.suppress(RuntimeError):  # what matters failed before
                reader.close()

    def _read(self, reader: Any, path: str, rows: list[int]) -> list[bytes]:
        try:
            found: list[bytes] = reader.read(rows)
        except (RuntimeError, ValueError, IndexError) as error:
            raise CorruptError(f"`{path}`, records {rows[0]} to {rows[-1]}: {error}") from error
        if len(found) != len(rows):
            raise CorruptError(f"`{path}`, records {rows[0]} to {rows[-1]}: only {len(found)} came")
        return found


class LmdbReader(RowReader[tuple[bytes, bytes]]):
    """The entries of an LMDB database, by the order of their keys: `key` and `value`, as bytes.

    `decode` is a function of the value that gives the fields of a row, beside `key`, or a value.
    """

    def __init__(self, path: str, *, decode: Callable[[bytes], Any] | None = None) -> None:
        self._lmdb = require("lmdb", extra="convert", to="read LMDB databases")
        self._path = path
        self._decode = decode
        self.parallel = decode is not None
        self.declared = {"key": Field("bytes"), "value": Field("bytes")} if decode is None else None
        folder = Path(path).is_dir()
        self._file = str(Path(path, "data.mdb")) if folder else path
        self._folder = folder
        self._identity = file_identity([self._file])
        with self._opened() as environment:
            self._total = int(environment.stat()["entries"])

    @property
    def total(self) -> int:
        """The number of entries."""
        return self._total

    @property
    def identity(self) -> Mapping[str, Any]:
        """The file and how values are decoded."""
        return {"lmdb": self._identity, "decode": function_identity(self._decode)}

    def items(self, start: int) -> Iterator[tuple[bytes, bytes]]:
        """Give the entries from `start` on; the values of those before are not touched."""
        with self._opened() as environment, environment.begin() as transaction:
            cursor = transaction.cursor()
            try:
                found = cursor.first()
                for _ in range(start):
                    found = found and cursor.next()
                if not found:
                    return
                yield from cursor.iternext(keys=True, values=True)
            except self._lmdb.Error as error:
                raise CorruptError(f"`{self._file}` cannot be read: {error}") from error

    def row(self, item: tuple[bytes, bytes]) -> Mapping[str, Any]:
        """Make a row of an entry."""
        key, value = item
        if self._decode is None:
            return {"key": key, "value": value}
        found = self._decode(value)
        return {"key": key, **(found if isinstance(found, Mapping) else {"value": found})}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            environment = self._lmdb.open(
                self._path, readonly=True, lock=False, subdir=self._folder, create=False
            )
        except self._lmdb.Error as error:
            raise CorruptError(f"`{self._file}` is no LMDB database: {error}") from error
        try:
            # Pages behind the end of a file that was cut off would end the process.
            needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            size = Path(self._file).stat().st_size
            if size < needed:
                raise CorruptError(f"`{self._file}` has {size} bytes, {needed} are needed")
            yield environment
        finally:
            environment.close()
