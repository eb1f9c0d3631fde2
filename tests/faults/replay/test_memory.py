"""The memory of a process that records very many steps does not grow.

`RELIVE_REPLAY_STEPS` is how many (`make faults`: 1,000,000).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.records.programs.syscalls import environment

Note = Callable[[str, object], None]

STEPS = int(os.environ.get("RELIVE_REPLAY_STEPS", "6000"))
LIMIT = 64 << 20
MARKS = 10
pytestmark = pytest.mark.timeout(3600)

PROGRAM = """
import gc, sys
import numpy as np
from relive.replay import ReplayRecorder

root, steps, marks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(1)
# A textured picture that moves, and what an agent sees of it.
tiles = rng.integers(0, 12, (70, 139, 3), np.uint8) * np.uint8(20)
wide = tiles.repeat(3, axis=0).repeat(3, axis=1)
frames = [np.ascontiguousarray(wide[:, at : at + 160]) for at in range(256)]
planes = [np.ascontiguousarray(frame[:168:2, :84, 0]) for frame in frames]

def resident():
    gc.collect()
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024

stack = np.zeros((84, 84, 4), np.uint8)
sizes = []
with ReplayRecorder(root, "run") as recorder:
    for number in range(1, steps + 1):
        stack = np.concatenate([stack[..., 1:], planes[number % 256][..., None]], axis=-1)
        is_last = number % 1000 == 0
        recorder.step(stack, number % 18, 1.0, is_last, frame=frames[number % 256],
                      info={"lives": number % 4})
        if number % (steps // marks) == 0:
            recorder.flush()
            sizes.append(resident())
print(*sizes)
"""


def test_memory_does_not_grow(tmp_path: Path, record_property: Note) -> None:
    root = tmp_path / "root"
    command = [sys.executable, "-c", PROGRAM, str(root), str(STEPS), str(MARKS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    sizes = [int(size) for size in done.stdout.split()]
    assert len(sizes) == MARKS
    growth = max(sizes) - sizes[0]
    on_disk = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    shutil.rmtree(root)  # pytest keeps its folders
    record_property(
        "figure",
        f"replay: {growth:,} bytes more memory after {STEPS:,} steps than after "
        f"{STEPS // MARKS:,}, {on_disk:,} bytes on disk",
    )
    assert growth <= LIMIT, sizes
