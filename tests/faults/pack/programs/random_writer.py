"""Appends entries of 100 B to 10 MB to a pack until it is killed, and reports each."""

from multiprocessing.connection import Connection
from pathlib import Path

import relive
from tests.faults.timed_kill import append_all

ALIGNS = (1, 64, 4096)


def write(path: Path, seed: tuple[int, ...], pipe: Connection) -> None:
    """Append entries, every second one compressed; send the time after each."""
    writer = relive.PackWriter(path, align=ALIGNS[sum(seed) % len(ALIGNS)])

    def append(number: int, payload: bytes) -> None:
        writer.append(payload, codec="zstd" if number % 2 else "raw")

    append_all(append, seed, pipe)
