"""Damages a file in all ways of one kind, one at a time, and repairs it each time.

`RELIVE_BITS` is how many bits and lengths of each file are tried; `make faults` tries all of them
(`all`).
"""

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

COUNT = os.environ.get("RELIVE_BITS", "10")
SEED = int(os.environ.get("RELIVE_SEED", "1"))


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """Return a folder in memory if there is one: syncing takes no time there."""
    memory = Path("/dev/shm")  # noqa: S108 - what is made there has a name of its own
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def choose(count: int) -> list[int]:
    """Return all numbers below `count`, or some of them, with the last one."""
    if COUNT == "all" or count <= int(COUNT):
        return list(range(count))
    rng = random.Random(f"{SEED} {count}")  # noqa: S311 - places, not secrets
    return sorted({*rng.sample(range(count), int(COUNT)), count - 1})


def flips(path: Path) -> Iterator[str]:
    """Flip each bit of a file; yields the name of the damage."""
    whole = path.read_bytes()
    try:
        for bit in choose(8 * len(whole)):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            yield f"bit {bit} of {path.name}"
    finally:
        path.write_bytes(whole)


def cuts(path: Path) -> Iterator[str]:
    """Truncate a file to each length; yields the name of the damage."""
    whole = path.read_bytes()
    try:
        for size in choose(len(whole)):
            path.write_bytes(whole[:size])
            yield f"{path.name} cut to {size} of {len(whole)} bytes"
    finally:
        path.write_bytes(whole)


def losses(path: Path) -> Iterator[str]:
    """Remove a file; yields the name of the damage."""
    whole = path.read_bytes()
    path.unlink()
    try:
        yield f"{path.name} is gone"
    finally:
        path.write_bytes(whole)


def exchanges(path: Path, others: list[Path]) -> Iterator[str]:
    """Exchange a file with each other one; yields the name of the damage."""
    whole = path.read_bytes()
    for other in others:
        content = other.read_bytes()
        path.write_bytes(content)
        other.write_bytes(whole)
        try:
            yield f"{path} exchanged with {other}"
        finally:
            path.write_bytes(whole)
            other.write_bytes(content)
