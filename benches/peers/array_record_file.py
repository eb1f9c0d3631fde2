"""array_record: its own reader, and the file that it and grain read."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.data import Bytes, Case

_MODULE = "array_record.python.array_record_module"
_GROUP_BYTES = 64 << 10
_OPTIONS = {"random": "readahead_buffer_size:0,max_parallelism:0", "any": ""}


def group_sizes(case: Case) -> list[int]:
    """Records per group that are worth trying.

    One is the layout for random access, but a read then costs time in proportion
    to the number of records in the file; small records are better off in groups.
    """
    return [size for size in (1, 16, 256) if size == 1 or size * case.record_bytes <= _GROUP_BYTES]


def array_record_path(case: Case, group: int) -> Path:
    """Where the file of `case` with groups of that size is."""
    return case.folder / f"{case.stem}.group{group}.array_record"


def array_record_paths(case: Case) -> list[Path]:
    """All files of `case`."""
    return [array_record_path(case, group) for group in group_sizes(case)]


def make_array_record(case: Case) -> None:
    """Write the records once for each size of group, uncompressed."""
    for group in group_sizes(case):
        path = array_record_path(case, group)
        if path.exists():
            continue
        partial = path.with_suffix(".partial")
        options = f"group_size:{group},uncompressed"
        writer = module(_MODULE).ArrayRecordWriter(str(partial), options)
        for row in case.memmap():
            writer.write(row.tobytes())
        writer.close()
        partial.rename(path)


def stack(records: Sequence[bytes]) -> Bytes:
    """Records as one array, as a consumer would have to."""
    return np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)


class ArrayRecordReader(Peer):
    """`reader.read(indices)`, joined into one array."""

    name = "array_record read"
    family: ClassVar[str] = "array_record"
    packages: ClassVar[tuple[str, ...]] = ("array_record",)

    def settings(self, case: Case) -> Sequence[Setting]:
        """Sizes of group, each with reader options for random access and with none."""
        return [
            {"group": group, "access": access} for group in group_sizes(case) for access in _OPTIONS
        ]

    def files(self, case: Case) -> list[Path]:
        """Its own files."""
        return array_record_paths(case)

    def prepare(self, case: Case) -> None:
        """Convert the records once."""
        make_array_record(case)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Open the reader."""
        path = str(array_record_path(case, int(setting["group"])))
        reader = module(_MODULE).ArrayRecordReader(path, _OPTIONS[str(setting["access"])])
        batches = [rows.tolist() for rows in case.batches]

        def deliver() -> Iterator[Bytes]:
            for rows in cycle(batches):
                yield stack(reader.read(rows))

        return Stream(deliver(), np.asarray, close=reader.close)
