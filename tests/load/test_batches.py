"""The memory of batches belongs to the consumer while it is held, and is reused afterwards."""

import gc
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import ArraySource, DataLoader, Ragged, Sampler
from tests.load.reference import Plain, batches_of, rows, same


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("transform", [None, lambda batch: batch])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_distinct_and_never_change(
    python: bool,  # noqa: FBT001 - a parameter
    transform: Any,
    workers: int,
) -> None:
    source = rows(60)
    with DataLoader(
        Plain(source) if python else source,
        batch_size=8,
        workers=workers,
        prefetch=3,
        transform=transform,
    ) as loader:
        held = list(itertools.islice(loader, 100))
        for _ in range(100):
            next(loader)
    expected = batches_of(source, Sampler(60, 8), 100)
    assert all(same(one, other) for one, other in zip(held, expected, strict=True))
    assert len({address(batch["vec"]) for batch in held}) == 100
    held[0]["vec"][:] = -1
    assert all(same(one, other) for one, other in zip(held[1:], expected[1:], strict=True))


def test_batches_outlive_the_loader() -> None:
    loader = DataLoader(rows(60), batch_size=8)
    held = list(itertools.islice(loader, 5))
    views = [batch["vec"][2:4, 1] for batch in held]
    expected = batches_of(rows(60), Sampler(60, 8), 5)
    loader.close()
    del loader
    assert all(same(one, other) for one, other in zip(held, expected, strict=True))
    del held
    gc.collect()
    for view, batch in zip(views, expected, strict=True):
        assert view.tolist() == batch["vec"][2:4, 1].tolist()


def test_array_of_a_batch_keeps_its_memory_alive() -> None:
    """A view of one field keeps a batch in memory after the other fields are deleted."""
    with DataLoader(rows(60), batch_size=8, prefetch=2) as loader:
        view = next(loader)["vec"][3:]
        before = view.copy()
        for _ in range(100):
            next(loader)
        assert np.array_equal(view, before)


def test_arrays_are_writable_and_aligned() -> None:
    source = ArraySource(
        {"a": np.zeros((9, 3), np.uint8), "b": np.zeros(9), "c": np.zeros(9, "i2")}
    )
    with DataLoader(source, batch_size=5, tail="keep") as loader:
        for batch in itertools.islice(loader, 4):
            for array in batch.values():
                assert array.flags.writeable
                assert array.flags.c_contiguous
                assert address(array) % 64 == 0
                array[...] = 1


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_released_memory_is_reused(workers: int) -> None:
    with DataLoader(np.zeros((1000, 64)), batch_size=32, workers=workers, prefetch=4) as loader:
        seen = {address(next(loader)["data"]) for _ in range(300)}
    # Batches that are prefetched, in preparation, and held by the consumer.
    assert len(seen) <= 4 + workers + 2


def test_ragged_memory_is_reused() -> None:
    lengths = np.arange(200) % 7
    values = np.repeat(np.arange(200), lengths)
    source = ArraySource(Ragged(values, np.concatenate([[0], np.cumsum(lengths)])))
    with DataLoader(source, batch_size=16, workers=1, prefetch=2) as loader:
        seen = set()
        for _ in range(300):
            batch = next(loader)["data"]
            seen.add(address(batch.values))
        assert len(seen) < 40


@pytest.mark.parametrize("transform", [None, lambda batch: batch | {"twice": batch["data"] * 2}])
def test_memory_does_not_grow(transform: Any) -> None:
    data = np.ones((400, 8 << 10), dtype=np.uint8)
    with DataLoader(data, batch_size=16, workers=2, prefetch=4, transform=transform) as loader:
        for _ in range(200):
            next(loader)
        before = resident()
        for _ in range(3000):  # 400 MB of batches
            next(loader)
        assert resident() - before < 8 << 20


def test_restarting_does_not_grow_memory() -> None:
    """Measured in a separate process, because other tests change the memory of this one."""
    code = """
import numpy as np
from relive import DataLoader
from tests.load.test_batches import resident
data = np.ones((64, 64 << 10), dtype=np.uint8)
loader = DataLoader(data, batch_size=16, epochs=1, workers=2)
for _ in range(20):
    list(loader)
before = resident()
for _ in range(400):
    assert sum(1 for _ in loader) == 4
print(resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Some batches of 1 MiB are in memory whenever it is measured; one that stayed would be 400.
    assert int(done.stdout) < 64 << 20
