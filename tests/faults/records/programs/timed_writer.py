"""Appends records of 100 B to 10 MB to a store that flushes itself, until it is killed."""

from multiprocessing.connection import Connection
from pathlib import Path

import relive
from tests.faults.timed_kill import append_all

AUTOFLUSH_S = 0.5


def write(path: Path, seed: tuple[int, ...], pipe: Connection) -> None:
    """Append records; send the time after each."""
    codec = "zstd" if sum(seed) % 2 else "raw"
    fields = {"number": relive.Field("int64"), "data": relive.Field("bytes", codec=codec)}
    store = relive.RecordStore.create(path, fields, autoflush_s=AUTOFLUSH_S)

    def append(number: int, payload: bytes) -> None:
        store.append({"number": number, "data": payload})

    append_all(append, seed, pipe)
