"""Bare zstd: frames in memory, decoded by two threads of `zstandard` and kept by nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.payloads import THREADS, as_is
from benches.peers import Peer, Setting, Stream, module
from benches.peers.record_store import Selective, records_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benches.data import Case
    from benches.peers.record_store import RecordCase


class BareFrames(Selective, Peer):
    """`multi_decompress_to_buffer` of a batch: what decoding alone takes."""

    name = f"bare zstd, {THREADS} threads"
    family: ClassVar[str] = "zstd"
    packages: ClassVar[tuple[str, ...]] = ("zstandard",)

    def refuses(self, case: RecordCase) -> bool:
        """There is nothing to decode where nothing is compressed."""
        return case.codec == "raw"

    def files(self, case: Case) -> list[Path]:
        """None of its own."""
        del case
        return []

    def open(self, case: Case, setting: Setting) -> Stream:
        """Hold all frames in memory, one behind the other."""
        del setting
        return Stream(_batches(records_of(case)), as_is)


def _batches(case: RecordCase) -> Iterator[Any]:
    zstandard = module("zstandard")
    frames = case.frames()
    lengths = np.array(list(map(len, frames)), "<u8")
    places = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1)
    sizes = np.diff(case.offsets).astype("<u8")
    held = b"".join(frames)
    decoder = zstandard.ZstdDecompressor()
    while True:
        for rows in case.batches:
            wanted = zstandard.BufferWithSegments(held, places[rows].tobytes())
            yield decoder.multi_decompress_to_buffer(
                wanted, decompressed_sizes=sizes[rows].tobytes(), threads=THREADS
            )
