"""Arrow IPC files, in the file format and in the stream format."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from relive.bridge.options import ReadOptions
from relive.bridge.read.tables import FileTables
from relive.bridge.stream import Stream

_MAGIC: Final = b"ARROW1"


def open_arrow(paths: list[str], options: ReadOptions) -> Stream:
    """Return the rows of Arrow files."""
    return ArrowFiles(paths, options)


class ArrowFiles(FileTables):
    """The rows of Arrow files. The stream format does not store the number of rows."""

    kind = "arrow"

    def _inspect(self, path: str) -> tuple[Any, int | None]:
        with _opened(path) as reader:
            if not hasattr(reader, "num_record_batches"):
                return reader.schema, None
            return reader.schema, sum(batch.num_rows for batch in _record_batches(reader))

    def _read(self, path: str, start: int) -> Iterator[Any]:  # noqa: ARG002 - nothing is skipped
        with _opened(path) as reader:
            for batch in _record_batches(reader):
                batch.validate(full=True)  # lengths and offsets come from the file
                yield batch


def _record_batches(reader: Any) -> Iterator[Any]:
    if not hasattr(reader, "num_record_batches"):
        return iter(reader)
    return (reader.get_batch(number) for number in range(reader.num_record_batches))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    with pa.memory_map(os.fsencode(path)) as file:  # Arrow takes only UTF-8 as text
        if file.size() >= len(_MAGIC) and file.read(len(_MAGIC)) == _MAGIC:
            reader = pa.ipc.open_file(file)
        else:
            file.seek(0)
            reader = pa.ipc.open_stream(file)
        with reader:
            yield reader
