"""Appends entries of 100 B to 10 MB to a pack until it is killed, and reports each."""

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import relive

MOST_BYTES = 60_000_000


def payloads(seed: tuple[int, ...]) -> Iterator[tuple[bytes, str, float]]:
    """Iterate over payloads, each with its codec and the seconds to wait before it."""
    rng = np.random.default_rng(seed)
    longest = float(rng.choice([3, 5, 7]))
    while True:
        size = int(10 ** rng.uniform(2, longest))
        payload = rng.bytes(size // 2) + bytes(size - size // 2)
        pause_s = float(rng.choice([0, 0.001, 0.3], p=[0.8, 0.17, 0.03]))
        yield payload, str(rng.choice(["raw", "zstd"])), pause_s


def write(path: Path, seed: tuple[int, ...], pipe: Connection) -> None:
    """Append entries; send the time after each."""
    writer = relive.PackWriter(path, align=int(np.random.default_rng(seed).choice([1, 64, 4096])))
    total = 0
    for payload, codec, pause_s in payloads(seed):
        time.sleep(pause_s)
        writer.append(payload, codec=codec)
        pipe.send(time.monotonic())
        total += len(payload)
        if total > MOST_BYTES:
            time.sleep(3600)  # an idle writer is killed too
