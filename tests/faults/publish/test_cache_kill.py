"""Processes that share a cache and are killed: no wrong byte, and never more than the limit.

`RELIVE_CACHE_ROUNDS` says how often one is killed (`make faults`: 100).
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from relive.store.blobs import Blobs
from tests.store.cache.blob_fixtures import (
    MIB,
    CountingRoot,
    allocated,
    cache_in,
    measured,
    publish,
    random_bytes,
    read_all,
)

PROGRAM = Path(__file__).parent / "programs" / "read_through_cache.py"
REPOSITORY = Path(__file__).resolve().parents[3]
ROUNDS = int(os.environ.get("RELIVE_CACHE_ROUNDS", "3"))
PROCESSES = 3
BLOBS = 8
LIMIT = 6 * MIB


def start(directory: Path, seed: int) -> "subprocess.Popen[str]":
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(directory), str(LIMIT), str(BLOBS), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )


def test_killed_processes_leave_a_cache_that_is_right(tmp_path: Path) -> None:
    chance = random.Random(1)  # noqa: S311 - when to kill
    running: list[subprocess.Popen[str]] = []
    most, seed = 0, 0
    try:
        for _ in range(ROUNDS):
            while len(running) < PROCESSES:
                running.append(start(tmp_path, seed))
                seed += 1
            for process in running:
                assert process.stdout is not None
                if not hasattr(process, "is_ready"):
                    assert process.stdout.readline() == "ready\n"
                    process.is_ready = True  # type: ignore[attr-defined]
            deadline = time.monotonic() + chance.uniform(0.2, 0.8)
            while time.monotonic() < deadline:
                most = max(most, measured(tmp_path))
                time.sleep(0.002)
            killed = running.pop(chance.randrange(len(running)))
            killed.kill()
            assert killed.communicate()[0] == ""
    finally:
        for process in running:
            process.kill()
        outputs = [process.communicate()[0] for process in running]
    assert "".join(outputs) == ""
    assert MIB < most <= LIMIT
    root = CountingRoot()
    blobs = Blobs(root, cache_in(tmp_path, LIMIT))
    for number in range(BLOBS):
        data = random_bytes(MIB + 70_000 * number, number)
        assert read_all(blobs, publish(root, data)) == data
    assert blobs.stats.hits > 0
    assert allocated(tmp_path) <= LIMIT
