"""The memory of a stream from an object store does not grow with the number of batches.

`RELIVE_STREAM_BATCHES` is how many (`make faults`: 20,000).
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from relive import DatasetBuilder
from tests.servers import SeaweedFS

Note = Callable[[str, object], None]

BATCHES = int(os.environ.get("RELIVE_STREAM_BATCHES", "10000"))
FIRST = 1000
"""After so many batches everything that a stream keeps should be there.

The allocator keeps and returns up to 100 MB several times a second, so the largest memory until
then is compared with the smallest during the last fifth of the batches.
"""
LIMIT = 32 << 20
ROWS, WIDTH = 100_000, 300

PROGRAM = """
import json, sys
import relive
address, mode, shuffle, batches, first, options = map(json.loads, sys.argv[1:])

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

table = relive.dataset("test/data", root=address, mode=mode, **options).table()
early = late = number = epoch = 0
# Shuffled streams read more ahead when their consumer had to wait, whenever that is.
window, prefetch = (8000, 2) if shuffle else (None, "auto")
with table.batches(32, shuffle=shuffle, window=window, prefetch=prefetch) as stream:
    while number < batches:
        stream.set_epoch(epoch)
        epoch += 1
        for batch in stream:
            number += 1
            if number % 100 == 0:
                if number <= first:
                    early = max(early, resident())
                elif number > batches * 4 // 5:
                    late = min(late or resident(), resident())
            if number == batches:
                break
print(early, late)
"""


@pytest.fixture(scope="module")
def address(seaweed: SeaweedFS) -> str:
    """A table of 120 MB that does not compress, in ten row groups or more."""
    seaweed.put("stream-memory/ready", b"")
    values = np.random.default_rng(1).standard_normal((ROWS, WIDTH), np.float32)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), WIDTH)
    builder = DatasetBuilder("test/data", root="s3://stream-memory", **seaweed.options())
    builder.add_table("main", pa.table({"id": np.arange(ROWS), "x": rows}))
    builder.publish()
    return "s3://stream-memory"


@pytest.mark.parametrize("order", ["in order", "shuffled"])
@pytest.mark.parametrize("mode", ["remote", "auto"])
def test_memory_does_not_grow(
    seaweed: SeaweedFS,
    address: str,
    *,
    mode: str,
    order: str,
    tmp_path: Path,
    record_property: Note,
) -> None:
    given = [address, mode, order == "shuffled", BATCHES, FIRST, seaweed.options()]
    environment = os.environ | {"RELIVE_CACHE_DIR": f"{tmp_path}", "RELIVE_CACHE_FREE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(json.dumps, given)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    early, late = map(int, done.stdout.split())
    growth = late - early
    record_property(
        "figure", f"streams: {mode}, {order}: {growth:,} bytes after {BATCHES:,} batches"
    )
    assert growth <= LIMIT, (early, late)
