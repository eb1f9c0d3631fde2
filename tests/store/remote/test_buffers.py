"""Memory of large responses is used again, but never while something refers to it."""

import os

import numpy as np
import pyarrow as pa
import pytest

from relive.store.remote import buffers
from relive.store.remote.buffers import BUFFER_BYTES, LARGE_BYTES, lease
from relive.store.roots.open import open_root
from tests.servers import SeaweedFS

SIZE = 2 << 20


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    buffers._kept.clear()


def place(data: object) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)  # type: ignore[call-overload]


def test_released_memory_is_used_again() -> None:
    first = lease(SIZE)
    at = place(first)
    part = first[5:10].toreadonly()
    del first
    assert place(lease(SIZE)) != at  # a part is still there
    del part
    assert {place(lease(size)) for size in (LARGE_BYTES, SIZE, BUFFER_BYTES)} & {at}


def test_arrow_and_numpy_keep_memory() -> None:
    kept = [pa.py_buffer(lease(SIZE)).slice(3, 9), np.frombuffer(lease(SIZE), np.uint8)[4:]]
    assert not buffers._kept
    del kept
    assert len(buffers._kept) == 2


def test_only_few_buffers_are_kept() -> None:
    held = [lease(SIZE) for _ in range(20)]
    assert len({place(each) for each in held}) == 20
    del held
    assert len(buffers._kept) == 4


def test_other_sizes_are_left_to_malloc() -> None:
    for size in (0, 1, LARGE_BYTES - 1, BUFFER_BYTES + 1):
        assert len(lease(size)) == size
    assert not buffers._kept


def test_a_forked_process_does_not_write_to_its_parent() -> None:
    data = lease(SIZE)
    data[:] = b"p" * SIZE
    child = os.fork()
    if not child:
        data[:] = b"c" * SIZE
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(data) == b"p" * SIZE


def test_responses_use_memory_again(seaweed: SeaweedFS, bucket: str) -> None:
    content = np.random.default_rng(1).bytes(3 * SIZE)
    seaweed.put(f"{bucket.removeprefix('s3://')}/one", content)
    root = open_root(bucket, **seaweed.options())
    ranges = [("one", 0, SIZE), ("one", 7, SIZE + 9), ("one", SIZE, 3 * SIZE)]
    places = set()
    for _ in range(5):
        for key, start, stop in ranges:
            (data,) = root.read_ranges([(key, start, stop)])
            assert bytes(data) == content[start:stop]
            places.add(place(data))
            del data
    assert len(places) == 1
    assert len(buffers._kept) == 1
    with pytest.raises(Exception, match="too short"):
        root.read_ranges([("one", SIZE, 3 * SIZE + 1)])
    with pytest.raises(Exception, match="too short"):
        root.read_ranges([("one", 4 * SIZE, 6 * SIZE)])
