"""Digests of files that are being written."""

import gc
import hashlib
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relive.episodes import SimpleSignal, validate
from relive.store.digest import RunningDigest

EXITING = """
import atexit, sys
import numpy as np
from relive.episodes import SimpleSignalWriter
writer = SimpleSignalWriter(sys.argv[1])
for row in range(40):
    writer.append(np.random.default_rng(row).random(40_000), row)
atexit.register(writer.close)
"""


def hash_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("relive-hash")]


@pytest.mark.parametrize("size", [0, 1000, 1 << 20, 5 << 20])
def test_pieces_of_any_size(size: int) -> None:
    rng = random.Random(size)  # noqa: S311 - data, not secrets
    data = rng.randbytes(size)
    digest, at = RunningDigest(), 0
    while at < size:
        piece = data[at : at + rng.randrange(1, 200_000)]
        digest.update(piece)
        at += len(piece)
    assert digest.size == size
    assert digest.finish() == hashlib.sha256(data).hexdigest()
    assert not hash_threads()


def test_abandoned_digest_ends_its_thread() -> None:
    digest: RunningDigest | None = RunningDigest()
    assert digest is not None
    digest.update(bytes(2 << 20))
    (thread,) = hash_threads()
    digest = None
    gc.collect()
    thread.join(30)
    assert not hash_threads()


def test_file_is_complete_when_the_interpreter_exits(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    subprocess.run([sys.executable, "-c", EXITING, path], check=True)
    assert path.stat().st_size > 4 << 20
    assert SimpleSignal(path).values().shape == (40, 40_000)
    assert validate(path, level="full").ok
    assert not list(tmp_path.glob(".*"))
