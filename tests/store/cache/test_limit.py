"""The cache never exceeds its limit, and an epoch larger than it still finds what was kept."""

import errno
import fcntl
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from relive.errors import StorageError
from relive.store.blobs import LEAF_BYTES, BlobRef, Blobs
from relive.store.cache import disk as disk_module
from relive.store.cache import recency
from relive.store.cache.manage import cache_stats, shrink, verify
from tests.store.cache.blob_fixtures import (
    MIB,
    CountingRoot,
    Sampler,
    allocated,
    cache_in,
    page_files,
    publish,
    random_bytes,
    read_all,
)

TABLE = [random_bytes(2 * MIB, seed) for seed in range(8)]
SIZE = sum(map(len, TABLE))


@pytest.fixture
def root() -> CountingRoot:
    return CountingRoot()


def epoch(blobs: Blobs, refs: list[BlobRef], seed: int) -> None:
    """Read all pages once, in a random order."""
    assert blobs.cache is not None
    reads = [(ref, at, at + MIB) for ref in refs for at in range(0, ref.nbytes, MIB)]
    random.Random(seed).shuffle(reads)  # noqa: S311 - an order
    for ref, start, stop in reads:
        data = TABLE[refs.index(ref)][start:stop]
        assert bytes(blobs.read_many([(ref, start, stop)])[0]) == data
    assert blobs.cache.flush(30)


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("one_use_ns", [0, 10**10])
def test_half_of_a_table_is_kept(
    root: CountingRoot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    reopened: bool,
    one_use_ns: int,
) -> None:
    monkeypatch.setattr(recency, "_ONE_USE_NS", one_use_ns)
    refs = [publish(root, data) for data in TABLE]
    limit = SIZE // 2 + MIB // 2
    blobs = Blobs(root, cache_in(tmp_path, limit))
    with Sampler(tmp_path) as sampler:
        for number in range(5):
            if reopened:
                blobs = Blobs(root, cache_in(tmp_path, limit))
            assert blobs.cache is not None
            blobs.cache.owns(refs)
            root.requested.clear()
            epoch(blobs, refs, number)
            if number:
                assert root.nbytes < 0.7 * SIZE
    assert 0.4 * SIZE < sampler.most <= limit


def test_another_table_replaces_one_that_is_not_used(root: CountingRoot, tmp_path: Path) -> None:
    random.seed(1)  # what is replaced is drawn from a sample
    refs = [publish(root, data) for data in TABLE]
    limit = SIZE // 2 + MIB
    first = Blobs(root, cache_in(tmp_path, limit))
    for ref in refs[:4]:
        read_all(first, ref)
    second = Blobs(root, cache_in(tmp_path, limit))
    assert second.cache is not None
    second.cache.owns(refs[4:])
    for ref in refs[4:]:
        read_all(second, ref)
    root.requested.clear()
    for ref in refs[4:]:
        read_all(second, ref)
    assert root.nbytes < 0.5 * SIZE / 2
    assert allocated(tmp_path) <= limit


def test_columns_that_are_used_again_replace_others_of_the_table(
    root: CountingRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recency, "_ONE_USE_NS", 0)
    refs = [publish(root, data) for data in TABLE]
    blobs = Blobs(root, cache_in(tmp_path, 7 * MIB))
    assert blobs.cache is not None
    blobs.cache.owns(refs)
    for ref in refs[:3]:
        read_all(blobs, ref)
    time.sleep(0.2)
    for _ in range(12):
        blobs.cache.use.resume()
        for ref in refs[3:6]:
            read_all(blobs, ref)
    root.requested.clear()
    for ref in refs[3:6]:
        read_all(blobs, ref)
    assert root.nbytes < 4 * MIB


@pytest.mark.parametrize("limit", [0, 1000, 100_000, MIB, 2 * MIB])
def test_a_small_limit(root: CountingRoot, tmp_path: Path, limit: int) -> None:
    refs = [publish(root, data) for data in TABLE]
    blobs = Blobs(root, cache_in(tmp_path, limit))
    for ref, data in zip(refs, TABLE, strict=True):
        assert read_all(blobs, ref) == data
        # An empty cache has a file and a directory.
        assert allocated(tmp_path / "blobs") <= max(limit, 8192)


def test_what_the_disk_must_keep_free(root: CountingRoot, tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    ref = publish(root, TABLE[0])
    assert read_all(Blobs(root, cache_in(tmp_path, min_free=2 * free)), ref) == TABLE[0]
    assert page_files(tmp_path) == []
    assert read_all(Blobs(root, cache_in(tmp_path)), ref) == TABLE[0]
    assert len(page_files(tmp_path)) == 2
    other = publish(root, TABLE[1])
    assert read_all(Blobs(root, cache_in(tmp_path, min_free=2 * free)), other) == TABLE[1]
    assert page_files(tmp_path) == []  # the cache makes way for other programs


@pytest.mark.parametrize("after", [0, 1, 3, 5, 20])
def test_a_full_disk_stops_no_read(
    root: CountingRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    real, written = disk_module._write_all, 0

    def write(handle: int, data: Any) -> None:
        nonlocal written
        written += 1
        if written > after:
            real(handle, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "no space left on device")
        real(handle, data)

    monkeypatch.setattr(disk_module, "_write_all", write)
    refs = [publish(root, data) for data in TABLE[:2]]
    blobs = Blobs(root, cache_in(tmp_path))
    for _ in range(2):
        assert [read_all(blobs, ref) for ref in refs] == TABLE[:2]
    monkeypatch.undo()
    assert list((tmp_path / "blobs" / "tmp").iterdir()) == []
    again = Blobs(root, cache_in(tmp_path))
    assert [read_all(again, ref) for ref in refs] == TABLE[:2]
    root.requested.clear()
    assert [read_all(again, ref) for ref in refs] == TABLE[:2]
    assert root.requested == []


@pytest.mark.parametrize("directory", ["/proc/relive", "/dev/null/relive"])
def test_a_place_that_cannot_be_written(root: CountingRoot, directory: str) -> None:
    ref = publish(root, TABLE[0])
    blobs = Blobs(root, cache_in(Path(directory)))
    for _ in range(2):
        assert read_all(blobs, ref) == TABLE[0]


def test_a_read_only_cache_is_read(
    root: CountingRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = [publish(root, data) for data in TABLE[:2]]
    read_all(Blobs(root, cache_in(tmp_path)), refs[0])
    real = os.open

    def refuse(path: Any, flags: int, *mode: int, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(tmp_path) in os.fspath(path):
            raise OSError(errno.EROFS, "read-only file system")
        return real(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", refuse)
    blobs = Blobs(root, cache_in(tmp_path, min_free=1))
    root.requested.clear()
    assert read_all(blobs, refs[0]) == TABLE[0]
    assert root.requested == []
    assert read_all(blobs, refs[1]) == TABLE[1]


def test_a_cache_that_is_a_file_is_named_once_in_the_log(
    root: CountingRoot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    refs = [publish(root, data) for data in TABLE[:2]]
    blobs = Blobs(root, cache_in(tmp_path / "file"))
    for _ in range(2):
        assert [read_all(blobs, ref) for ref in refs] == TABLE[:2]
    (record,) = [each for each in caplog.records if each.name == "relive.publish"]
    assert record.levelname == "WARNING"
    assert f"cannot write to the cache in `{tmp_path / 'file'}`" in record.getMessage()
    assert blobs.cache is not None
    for command in (cache_stats, verify, lambda disk: shrink(disk, 0)):
        with pytest.raises(StorageError, match="is not a directory"):
            command(blobs.cache.disk)


@pytest.mark.parametrize("writes", [False, True])
def test_a_cache_without_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, writes: bool
) -> None:
    refused = os.W_OK if writes else os.R_OK
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & refused)  # tests may run as root
    disk = cache_in(tmp_path).disk
    if writes:
        with pytest.raises(StorageError, match="cannot be written"):
            cache_stats(disk)  # nor can it be created
    disk.base.mkdir()
    with pytest.raises(StorageError, match="cannot be written" if writes else "cannot be"):
        verify(disk)
    if writes:
        assert cache_stats(disk).pages == 0  # it is there, and read
    else:
        with pytest.raises(StorageError, match="cannot be read"):
            cache_stats(disk)


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOTSUP])
def test_a_disk_without_locks(
    root: CountingRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    ref = publish(root, TABLE[0])
    read_all(Blobs(root, cache_in(tmp_path)), ref)
    root.requested.clear()
    assert read_all(Blobs(root, cache_in(tmp_path)), ref) == TABLE[0]
    assert root.requested == []


def test_a_lock_that_is_held_stops_no_read(
    root: CountingRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.store.cache.usage._LOCK_S", 0.05)
    refs = [publish(root, data) for data in TABLE[:2]]
    read_all(Blobs(root, cache_in(tmp_path)), refs[0])
    with (tmp_path / "blobs" / "usage").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        blobs = Blobs(root, cache_in(tmp_path))
        assert [read_all(blobs, ref) for ref in refs] == TABLE[:2]


def test_shrinking_keeps_what_was_used_last(root: CountingRoot, tmp_path: Path) -> None:
    refs = [publish(root, data) for data in TABLE[:4]]
    cache = cache_in(tmp_path)
    for ref in refs:
        read_all(Blobs(root, cache), ref)
    for place, ref in enumerate(refs):  # the first was used last
        for page in range(2):
            _set_last(cache.disk, ref.digest, page, 1000 - place)
    assert shrink(cache.disk, 5 * MIB) <= 5 * MIB
    assert allocated(tmp_path) <= 5 * MIB
    left = [cache.disk.missing(ref.digest, ref.nbytes, 0, ref.nbytes) == [] for ref in refs]
    assert left[0]
    assert left[2:] == [False, False]
    assert shrink(cache.disk, 0) < 200_000
    assert page_files(tmp_path) == []


def _set_last(disk: Any, digest: str, page: int, last_ns: int) -> None:
    handle = disk.recency._open()
    os.pwrite(handle, last_ns.to_bytes(8, "little"), disk.recency._offset(digest, page))


def test_verify_finds_and_deletes_damaged_files(root: CountingRoot, tmp_path: Path) -> None:
    ref = publish(root, TABLE[0])
    cache = cache_in(tmp_path)
    read_all(Blobs(root, cache), ref)
    found = verify(cache.disk)
    assert (found.checked, found.damaged) == (3, ())
    (tmp_path / "blobs" / "seen").mkdir()
    for path in [*page_files(tmp_path), *(tmp_path / "blobs" / "whole").rglob("*")]:
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[LEAF_BYTES // 2 if len(data) > LEAF_BYTES else 5] ^= 1
            path.write_bytes(data)
    assert len(verify(cache.disk).damaged) == 3
    assert verify(cache.disk).checked == 0
    assert read_all(Blobs(root, cache), ref) == TABLE[0]
    assert cache_stats(cache.disk).pages == 2
