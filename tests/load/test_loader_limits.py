"""Sizes beyond memory raise an error and keep no memory."""

import subprocess
import sys

import numpy as np
import pytest

import relive
from relive.errors import InvalidError, TooLargeError


def test_batch_larger_than_memory_raises() -> None:
    rows = np.zeros((10, 1 << 20), dtype=np.uint8)
    with pytest.raises(TooLargeError, match="memory"):
        next(relive.DataLoader(rows, batch_size=2**32 - 1))


def test_indices_larger_than_memory_raise() -> None:
    code = """
import resource
import relive
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for sampler in (relive.Sampler(10**9, 4 * 10**9), relive.Sampler(10**9, 2**20, window=10**6)):
    try:
        next(sampler)
    except relive.errors.TooLargeError as error:
        print("refused", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 2, done.stdout


def test_batch_size_beyond_a_short_source_allocates_only_its_rows() -> None:
    whole = relive.DataLoader(np.arange(10), batch_size=2**31, epochs=1, tail="keep")
    assert [len(batch["data"]) for batch in whole] == [10]
    finite = relive.DataLoader(np.arange(10), batch_size=2**31, epochs=3)
    assert [len(batch["data"]) for batch in finite] == [30]


def test_many_epochs_of_few_rows() -> None:
    loader = relive.DataLoader(np.arange(10), batch_size=5, epochs=100_000)
    assert len(loader) == 200_000
    with pytest.raises(InvalidError, match="`epochs` must be None or from 1 to"):
        relive.DataLoader(np.arange(10), epochs=2**62)


def test_kept_batch_does_not_keep_other_batches_in_memory() -> None:
    code = """
import gc, re
import numpy as np
import relive
def rss():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
source = relive.ArraySource(np.ones((64, 1 << 20), dtype=np.uint8))
before = rss()
loader = relive.DataLoader(source, batch_size=8, prefetch=16)
held = [next(loader) for _ in range(20)]
kept = held[0]
loader.close()
del held, loader
gc.collect()
print(rss() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40, f"{done.stdout} MiB for one batch of 8"


def test_out_arrays_must_not_share_memory() -> None:
    a, b = np.arange(10), np.arange(10, 20)
    source = relive.ArraySource({"a": a, "b": b})
    with pytest.raises(InvalidError, match="share memory"):
        source.gather(np.arange(10), out={"a": b})
    same = np.empty(10, dtype=np.int64)
    with pytest.raises(InvalidError, match="share memory"):
        source.gather(np.arange(10), out={"a": same, "b": same})
    assert a.tolist() == list(range(10))
    assert b.tolist() == list(range(10, 20))
