"""Appends records of 100 B to 10 MB to a store that flushes itself, until it is killed."""

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import relive

MOST_BYTES = 60_000_000
AUTOFLUSH_S = 0.5


def payloads(seed: tuple[int, ...]) -> Iterator[tuple[bytes, float]]:
    """Iterate over payloads, each with the seconds to wait before it."""
    rng = np.random.default_rng(seed)
    longest = float(rng.choice([3, 5, 7]))
    while True:
        size = int(10 ** rng.uniform(2, longest))
        pause_s = float(rng.choice([0, 0.001, 0.3], p=[0.8, 0.17, 0.03]))
        yield rng.bytes(size // 2) + bytes(size - size // 2), pause_s


def write(path: Path, seed: tuple[int, ...], pipe: Connection) -> None:
    """Append records; send the time after each."""
    codec = "zstd" if sum(seed) % 2 else "raw"
    fields = {"number": relive.Field("int64"), "data": relive.Field("bytes", codec=codec)}
    store = relive.RecordStore.create(path, fields, autoflush_s=AUTOFLUSH_S)
    total = 0
    for number, (payload, pause_s) in enumerate(payloads(seed)):
        time.sleep(pause_s)
        store.append({"number": number, "data": payload})
        pipe.send(time.monotonic())
        total += len(payload)
        if total > MOST_BYTES:
            time.sleep(3600)  # an idle writer is killed too
