"""The cache: what is in it is not requested, what is wrong in it is requested again."""

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.store.blobs import LEAF_BYTES, Blobs
from relive.store.cache import layout
from tests.store.cache.blob_fixtures import (
    MIB,
    CountingRoot,
    allocated,
    cache_in,
    page_files,
    publish,
    random_bytes,
    read_all,
)

DATA = random_bytes(3 * MIB + 12_345)


@pytest.fixture
def root() -> CountingRoot:
    return CountingRoot()


def test_what_was_read_is_not_requested_again(root: CountingRoot, tmp_path: Path) -> None:
    refs = [publish(root, data) for data in (DATA, DATA[:100], DATA[: LEAF_BYTES + 1], b"")]
    first = Blobs(root, cache_in(tmp_path))
    contents = [read_all(first, ref) for ref in refs]
    assert contents == [DATA, DATA[:100], DATA[: LEAF_BYTES + 1], b""]
    requested = root.nbytes
    assert requested == sum(ref.nbytes + ref.table_nbytes for ref in refs)
    second = Blobs(root, cache_in(tmp_path))
    assert [read_all(second, ref) for ref in refs] == contents
    assert [second.read(ref) for ref in refs] == contents
    assert root.nbytes == requested
    assert second.stats.requests == 0
    assert second.stats.hits > 0
    assert second.stats.hit_bytes >= sum(map(len, contents))


def test_only_leaves_that_are_missing_are_requested(root: CountingRoot, tmp_path: Path) -> None:
    ref = publish(root, DATA)
    blobs = Blobs(root, cache_in(tmp_path))
    for start, stop in ((5, 9), (20 * LEAF_BYTES, 21 * LEAF_BYTES)):
        blobs.read_many([(ref, start, stop)])
    assert blobs.cache is not None
    blobs.cache.flush()
    root.requested.clear()
    assert read_all(Blobs(root, blobs.cache), ref) == DATA
    leaves = [(1 * LEAF_BYTES, 20 * LEAF_BYTES), (21 * LEAF_BYTES, len(DATA))]
    assert [each[1:] for each in root.requested] == leaves
    assert read_all(Blobs(root, blobs.cache), ref) == DATA
    assert len(root.requested) == 2


POSITIONS = st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA)))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(POSITIONS, max_size=4), min_size=1, max_size=4))
def test_any_reads_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, calls: list[list[tuple[int, int]]]
) -> None:
    root, folder = CountingRoot(), tmp_path_factory.mktemp("cache")
    ref = publish(root, DATA)
    leaves: set[int] = set()
    for pairs in calls:
        ranges = [(min(pair), max(pair)) for pair in pairs]
        blobs = Blobs(root, cache_in(folder))
        root.requested.clear()
        found = blobs.read_many([(ref, start, stop) for start, stop in ranges], gap=0)
        assert [bytes(each) for each in found] == [DATA[start:stop] for start, stop in ranges]
        wanted = {
            leaf
            for start, stop in ranges
            if start < stop
            for leaf in range(start // LEAF_BYTES, -(-stop // LEAF_BYTES))
        }
        asked = {
            leaf
            for key, start, stop in root.requested
            if ref.digest in key
            for leaf in range(start // LEAF_BYTES, -(-stop // LEAF_BYTES))
        }
        assert asked == wanted - leaves
        leaves |= wanted
        assert blobs.cache is not None
        assert blobs.cache.flush(30)


def test_every_changed_byte_is_detected_and_fetched_again(
    root: CountingRoot, tmp_path: Path
) -> None:
    data = DATA[: MIB + 70_000]
    ref = publish(root, data)
    read_all(Blobs(root, cache_in(tmp_path)), ref)
    first, second = page_files(tmp_path)
    tables = [path for path in (tmp_path / "blobs" / "whole").rglob("*") if path.is_file()]
    for path in (first, second, *tables):
        size = path.stat().st_size
        for offset in sorted({*range(0, size, max(1, size // 23)), *range(size - 20, size)}):
            before = path.read_bytes()
            changed = bytearray(before)
            changed[offset] ^= 1 << offset % 8
            path.write_bytes(changed)
            # Also by a reader that has verified these pages before.
            assert read_all(Blobs(root, cache_in(tmp_path)), ref) == data
            assert read_all(Blobs(root, cache_in(tmp_path)), ref) == data
            assert path.read_bytes() == before


@pytest.mark.parametrize("length", [0, 1, 15, 16, 100, MIB])
def test_files_that_were_cut_are_fetched_again(
    root: CountingRoot, tmp_path: Path, length: int
) -> None:
    ref = publish(root, DATA)
    read_all(Blobs(root, cache_in(tmp_path)), ref)
    for path in [*page_files(tmp_path), *(tmp_path / "blobs" / "whole").rglob("*")]:
        if path.is_file():
            os.truncate(path, min(length, path.stat().st_size - 1))
    assert read_all(Blobs(root, cache_in(tmp_path)), ref) == DATA
    root.requested.clear()
    assert read_all(Blobs(root, cache_in(tmp_path)), ref) == DATA
    assert root.requested == []


def test_a_page_of_another_blob_is_not_accepted(root: CountingRoot, tmp_path: Path) -> None:
    refs = [publish(root, DATA), publish(root, DATA[::-1])]
    for ref in refs:
        read_all(Blobs(root, cache_in(tmp_path)), ref)
    base = tmp_path / "blobs"
    for page in range(3):
        paths = [Path(layout.page_path(base, ref.digest, page)) for ref in refs]
        paths[0].write_bytes(paths[1].read_bytes())
    assert read_all(Blobs(root, cache_in(tmp_path)), refs[0]) == DATA


def test_the_cache_is_found_by_a_copy(root: CountingRoot, tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    copy = pickle.loads(pickle.dumps(cache))  # noqa: S301 - our own data
    assert copy.settings == cache.settings
    assert copy.use.opened_ns == cache.use.opened_ns
    assert copy.disk is cache.disk
    assert str(tmp_path) in repr(copy)
    assert len(pickle.dumps(cache)) < 600


def test_the_cache_may_be_deleted_at_any_time(root: CountingRoot, tmp_path: Path) -> None:
    import shutil

    ref = publish(root, DATA)
    blobs = Blobs(root, cache_in(tmp_path / "cache"))
    for _ in range(3):
        assert read_all(blobs, ref) == DATA
        assert page_files(tmp_path / "cache")
        shutil.rmtree(tmp_path / "cache")
    assert read_all(blobs, ref) == DATA
    assert allocated(tmp_path / "cache") > len(DATA)


def test_pages_that_are_known_to_be_missing(root: CountingRoot, tmp_path: Path) -> None:
    ref = publish(root, DATA)
    blobs = Blobs(root, cache_in(tmp_path))
    assert blobs.cache is not None
    disk = blobs.cache.disk
    assert disk.missing(ref.digest, ref.nbytes, 0, ref.nbytes) == [(0, ref.nbytes)]
    blobs.read_many([(ref, MIB, MIB + 1), (ref, len(DATA) - 1, len(DATA))])
    blobs.cache.flush()
    last = len(DATA) // LEAF_BYTES * LEAF_BYTES
    assert disk.missing(ref.digest, ref.nbytes, 0, ref.nbytes) == [
        (0, MIB),
        (MIB + LEAF_BYTES, last),
    ]
    assert disk.missing(ref.digest, ref.nbytes, MIB, MIB + 5) == []


def test_what_waits_to_be_written_is_not_requested(
    root: CountingRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.store.cache.writer.START_S", 60.0)
    ref = publish(root, DATA)
    blobs = Blobs(root, cache_in(tmp_path))
    blobs.read_many([(ref, 0, len(DATA))])
    root.requested.clear()
    for start, stop in ((0, len(DATA)), (5, 9), (MIB - 3, MIB + 3), (len(DATA) - 1, len(DATA))):
        assert bytes(blobs.read_many([(ref, start, stop)])[0]) == DATA[start:stop]
    assert root.requested == []
    assert page_files(tmp_path) == []
    assert read_all(blobs, ref) == DATA
    assert len(page_files(tmp_path)) == 4
