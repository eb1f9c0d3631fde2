"""array_record with groups of one payload, its layout for random access."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

from benches.payloads import LEVEL, PayloadCase, PayloadPeer, as_is
from benches.peers import Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benches.data import Case

_MODULE = "array_record.python.array_record_module"
_OPTIONS = {
    "random": "readahead_buffer_size:0,max_parallelism:0",
    "parallel": "readahead_buffer_size:0",
    "any": "",
}


class PayloadArrayRecord(PayloadPeer):
    """`reader.read(indices)` and, for a scan, `reader.read(begin, end)`: a list of bytes."""

    name = "array_record, group_size:1"
    family: ClassVar[str] = "array_record"
    packages: ClassVar[tuple[str, ...]] = ("array_record",)
    suffix = "array_record"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """Reader options for random access, the same in parallel, and none."""
        return [{"access": access} for access in _OPTIONS]

    def write(self, case: PayloadCase, path: Path) -> None:
        """Write it raw, or as zstd."""
        codec = "uncompressed" if case.codec == "raw" else f"zstd:{LEVEL}"
        write_array_record(case.payloads(), path, codec)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the reader."""
        reader = open_array_record(self.place(case), _OPTIONS[str(setting["access"])])
        deliver = _scan if case.scan else _read
        return Stream(deliver(reader, case), as_is, close=reader.close)


def write_array_record(payloads: Iterable[bytes], path: Path, codec: str) -> None:
    """Write one file that holds `payloads`, each in a group of its own."""
    writer = module(_MODULE).ArrayRecordWriter(str(path), f"group_size:1,{codec}")
    for payload in payloads:
        writer.write(payload)
    writer.close()


def open_array_record(path: Path, options: str = "") -> Any:
    """Open its reader."""
    return module(_MODULE).ArrayRecordReader(str(path), options)


def _read(reader: Any, case: PayloadCase) -> Iterator[list[bytes]]:
    for rows in cycle([rows.tolist() for rows in case.batches]):
        yield reader.read(rows)


def _scan(reader: Any, case: PayloadCase) -> Iterator[list[bytes]]:
    for rows in cycle(case.batches):
        yield reader.read(int(rows[0]), int(rows[-1]) + 1)
