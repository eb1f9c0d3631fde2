"""Directory roots: whole files, nothing outside of the directory, nothing left after an error."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relive import errors
from relive.store.roots import open_root

_WRITER = """
import sys
from relive import errors
from relive.store.roots import open_root
root, me = open_root(sys.argv[1]), sys.argv[2]
won = 0
while True:
    found = root.get("count")
    value = int(found.data)
    if value >= 60:
        break
    try:
        root.replace("count", str(value + 1).encode(), found.tag)
        won += 1
    except errors.ConflictError:
        pass
print(won)
"""


def test_processes_count_together(tmp_path: Path) -> None:
    root = open_root(tmp_path / "root")
    root.create("count", b"0")
    command = [sys.executable, "-c", _WRITER, os.fspath(tmp_path / "root")]
    writers = [subprocess.Popen([*command, str(each)], stdout=subprocess.PIPE) for each in range(3)]
    won = [int(writer.communicate(timeout=60)[0]) for writer in writers]
    assert sum(won) == 60
    assert root.get("count").data == b"60"


_PUTTER = """
import sys
from relive.store.roots import open_root
root = open_root(sys.argv[1])
print(flush=True)
turn = 0
while True:
    turn += 1
    root.put("a/object", bytes([turn % 256]) * 100_000, immutable=False)
    root.replace("a/pointer", b"%09d" % turn, root.get("a/pointer").tag)
"""


def test_killed_writer_leaves_whole_objects_and_no_lock(tmp_path: Path) -> None:
    root = open_root(tmp_path / "root")
    root.put("a/object", b"x" * 100_000)
    root.create("a/pointer", b"start")
    for pause in (0.01, 0.03, 0.05):
        writer = subprocess.Popen(
            [sys.executable, "-c", _PUTTER, os.fspath(tmp_path / "root")], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(pause)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        data = root.get("a/object").data
        assert len(data) == 100_000
        assert len(set(data)) == 1
        root.replace("a/pointer", b"start", root.get("a/pointer").tag)  # the lock is free
        assert {entry.key for entry in root.list()} == {"a/object", "a/pointer"}


def test_temporary_and_hidden_files_are_not_objects(tmp_path: Path) -> None:
    root = open_root(tmp_path)
    root.put("a/b", b"1")
    root.replace("a/b", b"2", root.get("a/b").tag)
    (tmp_path / "a" / ".b.1234abcd").write_bytes(b"half")
    (tmp_path / ".git").mkdir()
    assert [entry.key for entry in root.list()] == ["a/b"]


def test_disk_that_is_full_leaves_the_old_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = open_root(tmp_path)
    root.put("a", b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for write in (lambda: root.put("a", b"new"), lambda: root.create("b", b"new")):
        with pytest.raises(errors.StorageError, match="No space left on device"):
            write()
    monkeypatch.undo()
    assert root.get("a").data == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_key_below_an_object_does_not_exist(tmp_path: Path) -> None:
    root = open_root(tmp_path)
    root.put("a", b"1")
    assert root.get_many(["a/b"]) == [None]
    assert root.exists(["a/b"]) == [False]
    with pytest.raises(errors.NotFoundError):
        root.read_ranges([("a/b", 0, 1)])
    root.delete(["a/b"])
    with pytest.raises(errors.ReliveError, match="cannot create"):
        root.put("a/b", b"1")
