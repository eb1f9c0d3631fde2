"""array_record files."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from relive._extras import require
from relive.bridge.fingerprint import file_fingerprint, function_fingerprint
from relive.bridge.options import ReadOptions
from relive.bridge.read.tf_example import ExampleReader
from relive.bridge.rows import RowStream
from relive.bridge.stream import Stream
from relive.errors import CorruptError

_READ_ROWS: Final = 256


def open_array_record(paths: list[str], options: ReadOptions) -> Stream:
    """Return the rows of array_record files."""
    decode = options.decoder("bytes", bytes="bytes", example="example")
    return RowStream(_ArrayRecordReader(paths, decode), options)


class _ArrayRecordReader(ExampleReader[tuple[bytes, str]]):
    """The records of array_record files, file after file."""

    def __init__(self, paths: Sequence[str], decode: str | Callable[[bytes], Any]) -> None:
        super().__init__(decode)
        self._module = require(
            "array_record.python.array_record_module", extra="convert", to="read array_record files"
        )
        self._paths = list(paths)
        self._files = file_fingerprint(self._paths)
        self._counts = []
        for path in self._paths:
            with self._opened(path) as reader:
                self._counts.append(reader.num_records())
        self.total = sum(self._counts)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The files, and how records are decoded."""
        return {"array_record": self._files, "decode": function_fingerprint(self._decode)}

    def items(self, start: int) -> Iterator[tuple[bytes, str]]:
        """Yield the records from `start` on; those before it are not read."""
        for path, count in zip(self._paths, self._counts, strict=True):
            if start >= count:
                start -= count
                continue
            with self._opened(path) as reader:
                for first in range(start, count, _READ_ROWS):
                    rows = list(range(first, min(first + _READ_ROWS, count)))
                    for row, data in zip(rows, _read(reader, path, rows), strict=True):
                        yield data, f"record {row} of `{path}`"
            start = 0

    def row(self, item: tuple[bytes, str]) -> Mapping[str, Any]:
        """Decode a record."""
        return self.decode_record(*item)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        options = "readahead_buffer_size:0,max_parallelism:0"
        try:
            reader = self._module.ArrayRecordReader(path, options)
        except (RuntimeError, ValueError, IndexError) as error:
            raise CorruptError(f"cannot read `{path}` as an array_record file: {error}") from error
        if not reader.ok():
            raise CorruptError(f"`{path}` is not an array_record file, or is truncated")
        try:
            yield reader
        finally:
            with contextlib.suppress(RuntimeError):  # an error of a read was raised before
                reader.close()


def _read(reader: Any, path: str, rows: list[int]) -> list[bytes]:
    records = f"records {rows[0]} to {rows[-1]} of `{path}`"
    try:
        found: list[bytes] = reader.read(rows)
    except (RuntimeError, ValueError, IndexError) as error:
        raise CorruptError(f"cannot read {records}: {error}") from error
    if len(found) != len(rows):
        raise CorruptError(f"reading {records} returned {len(found)} records, expected {len(rows)}")
    return found
