"""The payloads of the pack bench: about 60 KiB each, of different length, in one file."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.data import STAMP_BYTES, Case, files_under
from benches.pagecache import fill
from benches.peers import Peer, Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benches.data import Bytes, Rows

SHORTEST, LONGEST = 48 << 10, 72 << 10
BATCH_SIZE = 256
LEVEL = 3
"""Of zstd, for everyone who compresses."""
CONTENTS = {
    "random": "incompressible, stored raw",
    "steps": "3 × compressible like runs, stored as zstd 3",
    "repeats": "3 × compressible by repeats, stored as zstd 3",
}
"""Two contents of one ratio: zstd decodes entropy-coded bytes slowly and repeats fast, and
how much of a reader's time is decoding decides how far readers are apart."""
THREADS = 2
"""Threads that decode for peers that leave decoding to their users."""

_CHUNK_BYTES = 64 << 20
_STEP_BYTES = 32
_LEVELS = 24
"""Different values a branch may have: with so many, zstd makes the payloads a third as large."""
_BLOCK_BYTES, _NEW, _RECENT = 64, 0.29, 32
"""Length of a repeated block, how many are new, and among how many the others are found."""
_SAMPLED = 64
_RATIO = (2.7, 3.3)


@dataclass(frozen=True)
class PayloadCase(Case):
    """Payloads end to end in one file of bytes; the first eight bytes of each are its position.

    `content` is one of `CONTENTS`: random bytes, which everyone stores as they are, or bytes
    that everyone stores as a zstd frame per payload, a third as large. `scan` reads them in
    order.
    """

    content: str = "random"
    scan: bool = False

    @property
    def codec(self) -> str:
        """How the payloads are stored: raw or zstd."""
        return "raw" if self.content == "random" else "zstd"

    @property
    def stem(self) -> str:
        """What every file that holds these payloads is called, less its suffix."""
        return f"payloads-{self.content}-{self.records}"

    @property
    def path(self) -> Path:
        """The payloads, one behind the other."""
        return self.folder / f"{self.stem}.bin"

    @cached_property
    def offsets(self) -> Rows:
        """Where each payload begins, and where the last one ends."""
        found: Rows = np.concatenate(([0], np.cumsum(_lengths(self.records))))
        return found

    @cached_property
    def batches(self) -> list[Rows]:
        """The index list everyone reads: a seeded permutation, or the order of the file."""
        if not self.scan:
            return super().batches
        whole = self.records // self.batch_size * self.batch_size
        return list(np.arange(whole, dtype=np.int64).reshape(-1, self.batch_size))

    def memmap(self) -> Bytes:
        """All payloads as one array."""
        return np.memmap(self.path, np.uint8, "r")

    def payloads(self) -> Iterator[bytes]:
        """Every payload, in order."""
        mapped = self.memmap()
        bounds = self.offsets.tolist()
        for begin, end in pairwise(bounds):
            yield mapped[begin:end].tobytes()

    def stored(self) -> Iterator[bytes]:
        """Every payload as a peer without a codec of its own stores it."""
        if self.codec == "raw":
            return self.payloads()
        return map(module("zstandard").ZstdCompressor(level=LEVEL).compress, self.payloads())

    def ratio(self) -> float:
        """How many times as large some payloads are as what is stored of them."""
        before = int(self.offsets[_SAMPLED])
        return before / sum(map(len, islice(self.stored(), _SAMPLED)))

    def make(self) -> None:
        """Write the file unless it is there already."""
        if not self.path.exists():
            self._write()
        assert self.codec == "raw" or _RATIO[0] < self.ratio() < _RATIO[1]

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        partial_path = self.path.with_suffix(".partial")
        total = int(self.offsets[-1])
        mapped = np.memmap(partial_path, np.uint8, "w+", shape=(total,))
        generator = np.random.default_rng(self.records)
        make = {"random": _random, "steps": _steps, "repeats": _repeats}[self.content]
        for start in range(0, total, _CHUNK_BYTES):
            part = mapped[start : start + _CHUNK_BYTES]
            part[:] = make(generator, len(part))
        stamps = np.arange(self.records, dtype="<u8").view(np.uint8).reshape(-1, STAMP_BYTES)
        mapped[self.offsets[:-1, None] + np.arange(STAMP_BYTES)] = stamps
        mapped.flush()
        del mapped
        partial_path.rename(self.path)

    def check(self, batch: Any) -> None:
        """Raise unless `batch` is one full batch of true payloads, byte for byte."""
        if len(batch) != self.batch_size:
            message = f"delivered {len(batch)} payloads, not {self.batch_size}"
            raise AssertionError(message)
        mapped = self.memmap()
        for payload in batch:
            found = np.frombuffer(payload, np.uint8)
            row = int(found[:STAMP_BYTES].view("<u8")[0])
            if not np.array_equal(found, mapped[self.offsets[row] : self.offsets[row + 1]]):
                message = f"delivered bytes that are not payload {row}"
                raise AssertionError(message)


def payload_case(folder: Path, records: int, content: str) -> PayloadCase:
    """Payloads of one of the `CONTENTS`."""
    records = max(records, 4 * BATCH_SIZE)
    mean = int(_lengths(records).mean())
    name = f"60 KiB, {CONTENTS[content]}"
    return PayloadCase(name, mean, records, BATCH_SIZE, folder, content=content)


def _lengths(records: int) -> Rows:
    return np.random.default_rng(records).integers(SHORTEST, LONGEST + 1, records)


def _random(generator: np.random.Generator, count: int) -> Bytes:
    return np.frombuffer(generator.bytes(count), np.uint8)


def _steps(generator: np.random.Generator, count: int) -> Bytes:
    """Rows of a board, a move and four branch values; a board differs little from the last."""
    rows = -(-count // _STEP_BYTES)
    steps = np.zeros((rows, _STEP_BYTES), np.uint8)
    cell = generator.integers(0, 16, rows, dtype=np.uint64) * np.uint64(4)
    change = generator.integers(0, 16, rows, dtype=np.uint64) << cell
    steps[:, :8] = np.bitwise_xor.accumulate(change).view(np.uint8).reshape(-1, 8)
    steps[:, 8] = generator.integers(0, 4, rows, dtype=np.uint8)
    values = (generator.integers(0, _LEVELS, (rows, 4)) / _LEVELS).astype("<f4")
    steps[:, 12:28] = values.view(np.uint8).reshape(-1, 16)
    return steps.reshape(-1)[:count]


def _repeats(generator: np.random.Generator, count: int) -> Bytes:
    """Blocks that are new and random, or one of the last new ones over again."""
    rows = -(-count // _BLOCK_BYTES)
    new = generator.random(rows) < _NEW
    new[0] = True
    news = np.cumsum(new)
    back = (generator.random(rows) * np.minimum(news, _RECENT)).astype(np.int64)
    source = np.flatnonzero(new)[news - 1 - np.where(new, 0, back)]
    blocks = _random(generator, rows * _BLOCK_BYTES).reshape(rows, _BLOCK_BYTES)
    repeated: Bytes = blocks[source].reshape(-1)[:count]
    return repeated


class PayloadPeer(Peer):
    """A peer of the pack bench: it keeps the payloads in files of its own."""

    suffix: str
    """What its file, or its folder, ends with."""

    def place(self, case: Case) -> Path:
        """Where it keeps the payloads of `case`."""
        return case.folder / f"{case.stem}.{self.suffix}"

    def files(self, case: Case) -> list[Path]:
        """What it reads."""
        return [self.place(case)]

    def prepare(self, case: Case) -> None:
        """Write its files unless they are there; either way they are then in the page cache."""
        place = self.place(case)
        if not place.exists():
            half_made = place.with_name(f"{place.name}.partial")
            discard(half_made)
            self.write(_payloads(case), half_made)
            half_made.rename(place)
        for path in self.files(case):
            fill(files_under(path))

    def open(self, case: Case, setting: Setting) -> Stream:
        """Open its files."""
        return self.stream(_payloads(case), setting)

    @abstractmethod
    def write(self, case: PayloadCase, path: Path) -> None:
        """Write the payloads of `case` to `path`."""

    @abstractmethod
    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Deliver the batches of `case`, endlessly."""


def _payloads(case: Case) -> PayloadCase:
    assert isinstance(case, PayloadCase)
    return case


def discard(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def as_is(batch: Any) -> Any:
    """A batch that is a list of payloads already."""
    return batch


class Restorer:
    """Stored payloads to payloads: the bytes themselves, or zstd frames decoded on threads."""

    def __init__(self, case: PayloadCase, threads: int = THREADS) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads) if case.codec == "zstd" else None

    def __call__(self, stored: Sequence[Any]) -> Sequence[Any]:
        """Give the payloads of one batch, in order."""
        if self._pool is None:
            return stored
        cut = -(-len(stored) // self._threads)
        parts = [stored[start : start + cut] for start in range(0, len(stored), cut)]
        return list(chain.from_iterable(self._pool.map(_decoded, parts)))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def _decoded(frames: Sequence[Any]) -> list[bytes]:
    decode: Callable[[Any], bytes] = module("zstandard").ZstdDecompressor().decompress
    return list(map(decode, frames))


def closing(*things: Any) -> Callable[[], None]:
    """One call that closes all of `things`, in order."""
    return partial(_close_all, things)


def _close_all(things: Sequence[Any]) -> None:
    for thing in things:
        thing.close()
