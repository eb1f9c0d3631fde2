"""The memory of a process that takes very many batches does not grow.

`RELIVE_BATCHES` is how many (`make faults`: 100,000).
"""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

Note = Callable[[str, object], None]

BATCHES = int(os.environ.get("RELIVE_BATCHES", "5000"))
LIMIT = 1 << 20
"""Bytes of the allocator; a kilobyte per batch is several times as much."""

PROGRAM = """
import gc, sys
import numpy as np
kind, batches = sys.argv[1], int(sys.argv[2])
if kind == "numpy":
    from relive import DataLoader
else:
    from importlib import import_module
    DataLoader = import_module(f"relive.load.{kind}").DataLoader

def resident():
    gc.collect()
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024

data = {"x": np.zeros((1000, 8), np.float32), "n": np.arange(1000, dtype=np.int32)}
sizes = []
with DataLoader(data, batch_size=16) as loader:
    for number in range(1, batches + 1):
        next(loader)
        if number % (batches // 10) == 0:
            sizes.append(resident())
print(*sizes)
"""


@pytest.mark.needs("torch", "jax")
@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_memory_does_not_grow(kind: str, record_property: Note) -> None:
    command = [sys.executable, "-c", PROGRAM, kind, str(BATCHES)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    sizes = [int(size) for size in done.stdout.split()]
    assert len(sizes) == 10
    growth = max(sizes[5:]) - max(sizes[:5])
    record_property("figure", f"loaders: {kind}: {growth:,} bytes more after {BATCHES:,} batches")
    assert growth <= LIMIT, sizes
