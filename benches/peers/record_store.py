"""The records of the records bench, and what every kind of store that keeps them can do."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from benches.data import Case, files_under
from benches.payloads import (
    BATCH_SIZE,
    LEVEL,
    THREADS,
    PayloadCase,
    PayloadPeer,
)
from benches.peers import Peer, module, nothing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benches.data import Bytes, Rows

Job: TypeAlias = Callable[[], Callable[[], None]]
"""Writing, which is timed; it gives what is left to do once the clock has stopped."""

RAGGED_BYTES = 60 << 10
"""What `--only-cases` calls the ragged records, whose mean length it is."""
CONTENTS = {"random": "raw", "steps": "zstd 3, like runs", "repeats": "zstd 3, repeats"}


@dataclass(frozen=True)
class RecordCase(PayloadCase):
    """Ragged records, of one of the `CONTENTS` of `benches.payloads`.

    `spot` is a place of their own for stores that are written over and over; `cold` says
    that nothing may be read before the clock runs.
    """

    spot: str = ""
    cold: bool = False

    @cached_property
    def values(self) -> Bytes:
        """All bytes of all records, in memory."""
        return np.fromfile(self.path, np.uint8)

    @cached_property
    def pieces(self) -> list[bytes]:
        """Every record as bytes, in memory, for stores that take nothing else."""
        return list(self.payloads())

    def rows(self) -> Any:
        """Every record as an array, in memory: a list of them, or one array of equal rows."""
        return np.split(self.values, self.offsets[1:-1])

    def frames(self) -> Sequence[Any]:
        """Records as a store without a codec keeps them: as they are, or as zstd frames.

        Compressed by two threads, while the clock runs.
        """
        if self.codec == "raw":
            return self.pieces
        compressor = module("zstandard").ZstdCompressor(level=LEVEL)
        # One call takes no more than this many records.
        cut = 1 << 16
        parts = [self.pieces[start : start + cut] for start in range(0, self.records, cut)]
        return [
            bytes(frame)
            for part in parts
            for frame in compressor.multi_compress_to_buffer(part, threads=THREADS)
        ]


@dataclass(frozen=True)
class FixedCase(RecordCase):
    """Records of one size, in a file that is also an array of them."""

    @property
    def stem(self) -> str:
        """What every file that holds these records is called, less its suffix."""
        return f"records-{self.content}-{self.record_bytes}B-{self.records}"

    @cached_property
    def offsets(self) -> Rows:
        """Where each record begins, and where the last one ends."""
        return np.arange(self.records + 1, dtype=np.int64) * self.record_bytes

    def memmap(self) -> Bytes:
        """A private map of the file, a row for each record; libraries may see it as writable."""
        return np.memmap(self.path, np.uint8, "c", shape=(self.records, self.record_bytes))

    def rows(self) -> Any:
        """All records as one array, in memory."""
        return self.values.reshape(self.records, self.record_bytes)

    def payloads(self) -> Iterator[bytes]:
        """Every record, in order."""
        return (row.tobytes() for row in self.memmap())

    def make(self) -> None:
        """Write the file unless it is there; short records compress as well as they may."""
        if not self.path.exists():
            self._write()

    def check(self, batch: Any) -> None:
        """Raise unless `batch`, an array or a list of bytes, is one full batch of records."""
        if isinstance(batch, np.ndarray):
            rows = batch
        else:
            rows = np.frombuffer(b"".join(batch), np.uint8).reshape(len(batch), -1)
        Case.check(self, rows)


class Selective:
    """Who cannot keep all kinds of records."""

    def refuses(self, case: RecordCase) -> bool:
        """Whether it has no way to keep records like these; most have."""
        del case
        return False


class RecordPeer(Selective, PayloadPeer):
    """A kind of store: written at once or one by one, and read in batches."""

    def place(self, case: Case) -> Path:
        """Where it keeps the records of `case`."""
        return case.folder / f"{case.stem}{records_of(case).spot}.{self.suffix}"

    def write(self, case: PayloadCase, path: Path) -> None:
        """Write a store to be read."""
        self.bulk(records_of(case), path, synced=False)()()

    @abstractmethod
    def bulk(self, case: RecordCase, path: Path, *, synced: bool) -> Job:
        """Write all records with as few calls as the library wants, to a new `path`.

        It ends when another process could read the records and, where `synced`, when they
        would survive a power cut.
        """

    def each(self, case: RecordCase, path: Path) -> Job:
        """Write one record per call to a new store, which is there before the clock starts."""
        del case, path
        message = f"{self.name} takes no single records"
        raise NotImplementedError(message)


def records_of(case: Case) -> RecordCase:
    """`case`, which is one of this bench."""
    assert isinstance(case, RecordCase)
    return case


def record_case(folder: Path, size: int, records: int, content: str) -> RecordCase:
    """Records of `size` bytes each, or ragged ones of about that mean."""
    if size != RAGGED_BYTES:
        text = f"{size} B" if size < 1 << 10 else f"{size >> 10} KiB"
        name = f"{text}, {CONTENTS[content]}"
        return FixedCase(name, size, records, BATCH_SIZE, folder, content=content)
    name = f"ragged 60 KiB, {CONTENTS[content]}"
    case = RecordCase(name, size, records, BATCH_SIZE, folder, content=content)
    return replace(case, record_bytes=round(case.offsets[-1] / records))


def at_spot(case: RecordCase, spot: str) -> RecordCase:
    """The same records, in stores of their own."""
    return replace(case, spot=f".{spot}")


def whole(write: Callable[[], object], path: Path, *, synced: bool) -> Job:
    """A job that is done when `write` is and, where `synced`, everything is on the disk."""

    def job() -> Callable[[], None]:
        write()
        if synced:
            sync_all(path)
        return nothing

    return job


def sync_all(path: Path) -> None:
    """Flush a file, or a folder and all files below it, to the disk, with their names."""
    folders = {path.parent} | ({path} if path.is_dir() else set())
    files = files_under(path)
    for each in [*files, *(folders | {file.parent for file in files})]:
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def single_frames(case: RecordCase) -> Callable[[bytes], bytes]:
    """What makes of one record what a store without a codec keeps of it."""
    if case.codec == "raw":
        return bytes
    compress: Callable[[bytes], bytes] = module("zstandard").ZstdCompressor(level=LEVEL).compress
    return compress


def able(peers: Iterable[Peer], case: RecordCase) -> list[Peer]:
    """Those of `peers` that can keep records like these at all."""
    return [each for each in peers if not (isinstance(each, Selective) and each.refuses(case))]
