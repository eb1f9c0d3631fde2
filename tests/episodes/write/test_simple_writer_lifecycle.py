"""Life cycle of a writer of one signal: close, abort, leave and recovery."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relive.episodes import SimpleSignalWriter, recover
from relive.episodes.read.simple_signal import SimpleSignal
from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidError,
    LockedError,
    NotFoundError,
    TooLargeError,
)

NOTHING: list[str] = []


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def begin_and_raise(path: Path, error: BaseException) -> None:
    with SimpleSignalWriter(path) as writer:
        writer.append(1.5, 1)
        raise error


def test_closed_writer_raises(tmp_path: Path) -> None:
    writer = SimpleSignalWriter(tmp_path / "a.parquet")
    with writer:
        writer.append(np.zeros(3), 1)
        writer.close()
    assert names_in(tmp_path) == ["a.parquet"]
    writer.close()
    calls = (writer.abort, writer.flush, writer.sync, writer.leave, writer.describe)
    for call in (*calls, lambda: writer.append(np.zeros(3), 2), lambda: writer.append("a", 2)):
        with pytest.raises(ClosedError, match="is closed"):
            call()
    assert len(SimpleSignal(tmp_path / "a.parquet")) == 1


def test_aborted_writer_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"old")
    with SimpleSignalWriter(path, overwrite=True) as writer:
        writer.append(1.0, 1)
        writer.sync()
        writer.abort()
    writer.abort()
    with pytest.raises(ClosedError, match="aborted"):
        writer.append(1.0, 2)
    assert names_in(tmp_path) == ["a.parquet"]
    assert path.read_bytes() == b"old"


def test_existing_file_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"old")
    with pytest.raises(AlreadyExistsError) as refused:
        SimpleSignalWriter(path)
    assert refused.value.hint == "pass overwrite=True to replace it"
    with SimpleSignalWriter(path, overwrite=True) as writer:
        writer.append(1.5, 1)
        assert path.read_bytes() == b"old"
    assert SimpleSignal(path)[0] == (1.5, 1)
    assert names_in(tmp_path) == ["a.parquet"]


def test_exception_in_the_block_leaves_it_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(KeyError) as raised:
        begin_and_raise(path, KeyError("mine"))
    assert raised.value.__notes__ == [
        f"`{path}` is unfinished, run `relive recover {path}` to finish it"
    ]
    assert names_in(tmp_path) == [".a.parquet.tape"]
    with pytest.raises(AlreadyExistsError, match="unfinished recording"):
        SimpleSignalWriter(path)
    assert recover(path).signals == {"a": 1}
    assert recover(path).signals == {}
    assert SimpleSignal(path)[0] == (1.5, 1)


def test_ctrl_c_closes_the_writer(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        begin_and_raise(tmp_path / "a.parquet", KeyboardInterrupt())
    assert len(SimpleSignal(tmp_path / "a.parquet")) == 1


def test_file_being_written_is_not_recovered(tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "a.parquet") as writer:
        writer.append(1.5, 1)
        with pytest.raises(LockedError):
            recover(tmp_path / "a.parquet")
        with pytest.raises(LockedError):
            recover(tmp_path / ".a.parquet.tape")
    with pytest.raises(NotFoundError):
        recover(tmp_path / "b.parquet")


def test_forked_child_cannot_write_and_the_parent_continues(tmp_path: Path) -> None:
    script = """
import os, sys, numpy as np
from relive.errors import ClosedError
from relive.episodes import SimpleSignalWriter
with SimpleSignalWriter(sys.argv[1]) as writer:
    writer.append(np.zeros(3), 1)
    if not (child := os.fork()):
        try:
            writer.append(np.zeros(3), 2)
        except ClosedError as error:
            assert "fork" in str(error), error
            sys.exit(7)  # out of the block, which must not close it
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    writer.append(np.zeros(3), 3)
"""
    path = tmp_path / "a.parquet"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SimpleSignal(path).timestamps.tolist() == [1, 3]


def test_open_signal_is_kept_at_interpreter_exit(tmp_path: Path) -> None:
    script = """
import sys
from relive.episodes import SimpleSignalWriter
writer = SimpleSignalWriter(sys.argv[1])
writer.append(1.5, 1)
"""
    path = tmp_path / "a.parquet"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert recover(path).signals == {"a": 1}


def test_missing_directory_raises(tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "none" / "a.parquet") as writer:
        with pytest.raises(NotFoundError):
            writer.append(1.0, 1)
        writer.abort()
    with pytest.raises(InvalidError, match="is a directory"):
        SimpleSignalWriter(tmp_path)


def test_record_over_the_limit_raises(tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "joint.parquet") as writer:
        with pytest.raises(TooLargeError, match="joint"):
            writer.append(np.zeros(65 << 20, np.uint8), 1)
        assert names_in(tmp_path) == NOTHING
        writer.abort()
