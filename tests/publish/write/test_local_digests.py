"""Digests of unchanged files are kept; of files that may have changed they are not."""

import hashlib
import json
import os
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from relive.publish.write.local_digests import LocalDigests
from relive.publish.write.parquet_files import FileIdentity
from relive.store.blobs import BlobRef, describe_file


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def make(path: Path, content: bytes = b"content", age_s: float = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def remember(cache: Path, *paths: Path) -> None:
    digests = LocalDigests(cache)
    for path in paths:
        digests.add(path, FileIdentity.of(path), describe_file(path)[0])
    digests.save()


def find(cache: Path, path: Path) -> BlobRef | None:
    return LocalDigests(cache).find(path, FileIdentity.of(path))


def test_unchanged_files_are_found(tmp_path: Path, cache: Path) -> None:
    paths = [make(tmp_path / "a", b"a"), make(tmp_path / "b", b"b" * 100_000)]
    paths.append(make(tmp_path / "other" / "a", b"c"))
    assert find(cache, paths[0]) is None
    remember(cache, *paths[:2])
    remember(cache, paths[2])
    for path in paths:
        assert find(cache, path) == describe_file(path)[0]


def test_changed_files_are_not_found(tmp_path: Path, cache: Path) -> None:
    path = make(tmp_path / "a")
    remember(cache, path)
    status = path.stat()
    make(path, b"CONTENT", age_s=50)
    assert find(cache, path) is None
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert find(cache, path) is None
    remember(cache, path)
    replacement = make(tmp_path / "b", b"another")
    os.utime(replacement, ns=(status.st_atime_ns, status.st_mtime_ns))
    replacement.rename(path)
    assert find(cache, path) is None


@pytest.mark.parametrize("age_s", [0, 1, -100])
def test_files_that_changed_just_now_are_not_kept(
    tmp_path: Path, cache: Path, age_s: float
) -> None:
    path = make(tmp_path / "a", age_s=age_s)
    remember(cache, path)
    assert find(cache, path) is None


def test_deleted_files_are_forgotten(tmp_path: Path, cache: Path) -> None:
    paths = [make(tmp_path / name) for name in "ab"]
    remember(cache, *paths)
    paths[0].unlink()
    remember(cache, make(tmp_path / "c"))
    (file,) = cache.iterdir()
    assert json.loads(file.read_bytes().partition(b"\n")[2])["files"].keys() == {"b", "c"}


def test_a_damaged_cache_is_ignored(tmp_path: Path, cache: Path) -> None:
    path = make(tmp_path / "a")
    remember(cache, path)
    (file,) = cache.iterdir()
    good = file.read_bytes()
    for place in range(0, len(good), 7):
        for bad in (good[:place], good[:place] + b"?" + good[place + 1 :]):
            file.write_bytes(bad)
            assert find(cache, path) is None
    remember(cache, path)
    assert file.read_bytes() == good


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{}",
        b'{"directory": "DIR", "files": []}',
        b'{"directory": "DIR", "files": {"a": 5}}',
        b'{"directory": "DIR", "files": {"a": [1, 2, 3, 4, "x", null]}}',
        b'{"directory": "/elsewhere", "files": {}}',
        b"\xff",
    ],
)
def test_a_cache_of_another_form_is_ignored(tmp_path: Path, cache: Path, content: bytes) -> None:
    path = make(tmp_path / "a")
    remember(cache, path)
    (file,) = cache.iterdir()
    body = content.replace(b"DIR", os.fsencode(tmp_path))
    file.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert find(cache, path) is None
    remember(cache, path)
    assert find(cache, path) is not None


def test_a_cache_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    blocked = make(tmp_path / "file")
    for cache in (blocked, blocked / "cache", Path("/proc/relive")):
        remember(cache, path)
        assert find(cache, path) is None


def test_the_cache_is_in_the_configured_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIVE_CACHE_DIR", str(tmp_path / "mine"))
    path = make(tmp_path / "a")
    digests = LocalDigests()
    digests.add(path, FileIdentity.of(path), describe_file(path)[0])
    digests.save()
    assert len(list((tmp_path / "mine" / "digests").iterdir())) == 1


def _remember_often(cache: Path, paths: list[Path]) -> None:
    for _ in range(20):
        remember(cache, *paths)


def test_several_processes_save_at_once(tmp_path: Path, cache: Path) -> None:
    paths = [make(tmp_path / f"{i}", b"%d" % i) for i in range(8)]
    context = get_context("spawn")
    processes = [
        context.Process(target=_remember_often, args=(cache, paths[i::2])) for i in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    found = [find(cache, path) for path in paths]
    assert sum(ref is not None for ref in found) >= 4
    for ref, path in zip(found, paths, strict=True):
        assert ref in {None, describe_file(path)[0]}
    assert len(list(cache.iterdir())) == 1
