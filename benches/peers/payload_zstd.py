"""Bare zstd: the frames that lie in relive's pack, decoded without relive's reader."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.payloads import THREADS, PayloadCase, as_is
from benches.peers import Peer, Setting, Stream, module
from benches.peers.payload_relive import PackGather

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benches.data import Case

_HEADER_BYTES = 28
_CODEC_BITS, _ZSTD = 15, 2
_INDEX = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u4"),
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("crc", "<u4"),
        ("logical", "<u4"),
        ("zero", "<u8"),
    ]
)


class BareZstd(Peer):
    """python-zstandard on two threads: a fresh `bytes` per frame, or one buffer per thread."""

    name = f"bare zstd, {THREADS} threads"
    family: ClassVar[str] = "zstd"
    packages: ClassVar[tuple[str, ...]] = ("zstandard",)

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """Frame by frame, or the whole batch in one call."""
        return [{"by": "frame"}, {"by": "batch"}]

    def files(self, case: Case) -> list[Path]:
        """relive's pack."""
        return PackGather(THREADS).files(case)

    def prepare(self, case: Case) -> None:
        """As for relive."""
        PackGather(THREADS).prepare(case)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Map the pack and read its index by hand."""
        assert isinstance(case, PayloadCase)
        (path,) = self.files(case)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        index = _index(mapped, case)
        deliver = _frames if setting["by"] == "frame" else _batches
        return Stream(deliver(mapped, index, case), as_is)


def _index(pack: Any, case: PayloadCase) -> NDArray[Any]:
    """The index of a pack, all of whose entries are zstd frames."""
    index = np.frombuffer(pack, _INDEX, case.records, _HEADER_BYTES)
    assert (index["flags"] & _CODEC_BITS == _ZSTD).all()
    return index


def _frames(mapped: mmap.mmap, index: NDArray[Any], case: PayloadCase) -> Iterator[list[bytes]]:
    view = memoryview(mapped)
    begins, lengths = index["offset"].tolist(), index["length"].tolist()
    decoders = [module("zstandard").ZstdDecompressor() for _ in range(THREADS)]

    def decode(part: tuple[Any, list[int]]) -> list[bytes]:
        decoder, rows = part
        return [decoder.decompress(view[begins[row] : begins[row] + lengths[row]]) for row in rows]

    cut = -(-case.batch_size // THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        for rows in cycle([rows.tolist() for rows in case.batches]):
            parts = [rows[start : start + cut] for start in range(0, len(rows), cut)]
            done = pool.map(decode, zip(decoders, parts, strict=True))
            yield [payload for part in done for payload in part]


def _batches(mapped: mmap.mmap, index: NDArray[Any], case: PayloadCase) -> Iterator[Any]:
    zstandard = module("zstandard")
    decoder = zstandard.ZstdDecompressor()
    places = np.stack([index["offset"], index["length"].astype("<u8")], axis=1)
    sizes = index["logical"].astype("<u8")
    for rows in cycle(case.batches):
        frames = zstandard.BufferWithSegments(mapped, places[rows].tobytes())
        yield decoder.multi_decompress_to_buffer(
            frames, decompressed_sizes=sizes[rows].tobytes(), threads=THREADS
        )


class CodecDecode(BareZstd):
    """`relive.store.codec.Codec("zstd").decode_batch(frames, lengths, workers=2)`."""

    name = f"relive codec alone, {THREADS} threads"
    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive",)

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The whole batch in one call."""
        return [{}]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Hold the frames in memory, as bytes."""
        del setting
        assert isinstance(case, PayloadCase)
        (path,) = self.files(case)
        pack = np.memmap(path, np.uint8, "r")
        index = _index(pack, case)
        places = zip(index["offset"].tolist(), index["length"].tolist(), strict=True)
        frames = [pack[begin : begin + length].tobytes() for begin, length in places]
        lengths = index["logical"].astype(np.uint64)
        decode = module("relive.store.codec").Codec("zstd").decode_batch

        def deliver() -> Iterator[Any]:
            for rows in cycle(case.batches):
                yield decode([frames[row] for row in rows.tolist()], lengths[rows], THREADS)

        return Stream(deliver(), _pieces)


def _pieces(batch: Any) -> Any:
    values, offsets = batch
    return np.split(values, offsets[1:-1])
