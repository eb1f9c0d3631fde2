"""A process that does random operations to a record store, saying after each how far it is.

What it does follows from its seed, so that whoever listens knows what the store must hold.
"""

from collections.abc import Iterator
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import relive
from tests.faults.records.programs.model import apply, create, random_ops

WRITERS = 2


def write(path: Path, seed: tuple[int, ...], said: Connection, most: int | None = None) -> None:
    """Do operations, without end unless `most` says so, to a store that is made if need be.

    `(done, safe)` is sent after each, and `(0, 0)` when the store is open.
    """
    rng = np.random.default_rng((*seed, 1))
    autoflush_s = 0.005 if rng.random() < 0.2 else None
    store = _opened(path, autoflush_s)
    said.send((0, 0))
    safe = 0
    ops = random_ops(seed, len(store), [*store.fields])
    for done, op in zip(_until(most), ops, strict=False):
        apply(store, op)
        said.send((done, safe))
        share = rng.random()
        if share < 0.04:
            store.close()
            store = relive.RecordStore.open(path, "a", workers=WRITERS, autoflush_s=autoflush_s)
        elif share < 0.07:
            store.rebalance()
        elif share < 0.12:
            store.sync()
        elif share < 0.3:
            store.flush()
        if share < 0.3:
            safe = done
            said.send((done, safe))
    store.close()


def _until(most: int | None) -> Iterator[int]:
    return count(1) if most is None else iter(range(1, most + 1))


def _opened(path: Path, autoflush_s: float | None) -> relive.RecordStore:
    if not (path / "meta.json").exists():
        return create(path, workers=WRITERS, autoflush_s=autoflush_s)
    return relive.RecordStore.open(path, "a", workers=WRITERS, autoflush_s=autoflush_s)
