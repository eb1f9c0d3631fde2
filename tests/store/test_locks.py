"""Locks of files and directories, and forked processes that inherit them."""

import subprocess
import sys
from pathlib import Path

import pytest

from relive.errors import LockedError
from relive.store.locks import FileLock, is_own, locked


@pytest.mark.parametrize("what", ["file", "directory"])
@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
def test_lock_excludes_others(tmp_path: Path, what: str, *, shared: bool) -> None:
    path = tmp_path / "x"
    path.mkdir() if what == "directory" else path.touch()
    with locked(path, shared=shared):
        with pytest.raises(LockedError), locked(path):
            pass
        if shared:
            with locked(path, shared=True):
                pass
    with locked(path):
        pass


def test_a_writer_of_this_process_is_known(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    with locked(path):  # for a moment, as `is_locked` does
        assert not is_own(path)
    lock = FileLock.take(path)
    assert is_own(path)
    assert not is_own(tmp_path)
    lock.release()
    assert not is_own(path)


FORKED = """
import os, sys, threading
from pathlib import Path
from relive.store.locks import FileLock, is_own, locked

holds, is_forked = threading.Event(), threading.Event()

def hold():
    with locked(Path(sys.argv[1])):
        holds.set()
        is_forked.wait()

thread = threading.Thread(target=hold)
thread.start()
holds.wait()
(begun, begin), (ended, end) = os.pipe(), os.pipe()
if not os.fork():
    os.close(end)
    os.write(begin, b"x")
    os.read(ended, 1)  # until the parent closes the pipe
    os._exit(0)
os.read(begun, 1)
is_forked.set()
thread.join()
with locked(Path(sys.argv[1])):  # the child is still running
    os.close(end)
    os.wait()
"""


def test_child_that_is_forked_meanwhile_does_not_hold_the_lock(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, tmp_path], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
