"""Life cycle of episode writers: commit, Ctrl-C, exceptions, leave, abort and processes."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from relive.episodes import DiskEpisodeWriter, recover
from relive.episodes.read.episode import DiskEpisode
from relive.errors import ClosedError, LockedError, ReliveError, UnfinishedError
from relive.store.locks import is_locked

FRAME = np.zeros((16, 16, 3), np.uint8)


class TeleopError(Exception):
    """An exception raised by a user's block."""


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def record_and_raise(path: Path, error: BaseException, on_error: str | None = None) -> None:
    with DiskEpisodeWriter(path, on_error=on_error) as writer:
        writer.set_static("task", "pick")
        writer.append("state", np.zeros(3), 1)
        writer.append("cam", FRAME, 1)
        raise error


def test_episode_is_invisible_until_closed(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.append("state", 1.0, 1)
        writer.sync()
        with pytest.raises(UnfinishedError, match="being recorded"):
            DiskEpisode(tmp_path / "ep")
    assert len(DiskEpisode(tmp_path / "ep")["state"]) == 1


def test_closed_writer_raises(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.append("state", 1.0, 1)
        writer.append("cam", FRAME, 1)
        writer.close()
    before = names_in(tmp_path / "ep")
    writer.close()
    for call in (
        writer.abort,
        writer.flush,
        writer.sync,
        writer.leave,
        writer.__enter__,
        lambda: writer.append("state", 1.0, 2),
        lambda: writer.append("cam", FRAME, 2),
        lambda: writer.append("other", 1.0, 2),
        lambda: writer.set_static("task", 1),
        lambda: writer.describe("state", unit="m"),
    ):
        with pytest.raises(ClosedError, match="is closed"):
            call()
    assert names_in(tmp_path / "ep") == before


def test_aborted_episode_is_removed(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.append("state", 1.0, 1)
        writer.append("cam", FRAME, 1)
        writer.abort()
    writer.abort()
    with pytest.raises(ClosedError, match="aborted"):
        writer.append("state", 1.0, 2)
    assert names_in(tmp_path) == []


def test_ctrl_c_commits(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        record_and_raise(tmp_path / "ep", KeyboardInterrupt())
    episode = DiskEpisode(tmp_path / "ep")
    assert episode.meta["outcome"]["ended"] == "interrupted"
    assert len(episode["cam"]) == 1


def test_exception_keeps_the_episode_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "ep"
    with pytest.raises(TeleopError) as raised:
        record_and_raise(path, TeleopError("the arm fell off"))
    assert raised.value.__notes__ == [
        f"`{path}` is unfinished, run `relive recover {path}` to finish it"
    ]
    assert {".unfinished", ".state.parquet.tape", ".cam.mp4.tape"} <= set(names_in(path))
    assert not is_locked(path / ".unfinished")
    with pytest.raises(UnfinishedError, match="relive recover"):
        DiskEpisode(path)
    (found,) = recover(path).episodes
    assert found.signals == {"cam": 1, "state": 1}
    assert DiskEpisode(path)["task"] == "pick"


def test_exception_with_on_error_commit(tmp_path: Path) -> None:
    with pytest.raises(TeleopError):
        record_and_raise(tmp_path / "ep", TeleopError("the arm fell off"), "commit")
    outcome = DiskEpisode(tmp_path / "ep").meta["outcome"]
    assert outcome["ended"] == "error"
    assert outcome["error"] == "TeleopError: the arm fell off"


def test_exception_with_on_error_abort(tmp_path: Path) -> None:
    with pytest.raises(TeleopError):
        record_and_raise(tmp_path / "ep", TeleopError(), "abort")
    assert names_in(tmp_path) == []


def test_leave_keeps_the_episode_unfinished(tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep")
    writer.append("state", 1.0, 1)
    writer.leave()
    with pytest.raises(ClosedError, match="left"):
        writer.append("state", 1.0, 2)
    writer.abort()
    assert names_in(tmp_path) == []


def test_lock_is_held_until_the_writer_ends(tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep")
    assert is_locked(tmp_path / "ep" / ".unfinished")
    with pytest.raises(LockedError, match=f"is still being recorded by process {os.getpid()}"):
        recover(tmp_path / "ep")
    writer.close()
    assert not (tmp_path / "ep" / ".unfinished").exists()


def test_deleted_writer_releases_its_lock(tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep")
    writer.append("state", np.zeros(3), 1)
    writer.append("cam", FRAME, 1)
    threads = [each for each in threading.enumerate() if each.name == "relive-encode-cam"]
    with pytest.warns(ResourceWarning, match="was not closed"):
        del writer
    assert not is_locked(tmp_path / "ep" / ".unfinished")
    assert [thread.is_alive() for thread in threads] == [False]
    (found,) = recover(tmp_path / "ep").episodes
    assert found.signals == {"cam": 1, "state": 1}


def test_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time, numpy as np
from relive.errors import ClosedError
from relive.episodes import DiskEpisodeWriter
with DiskEpisodeWriter(sys.argv[1]) as writer:
    writer.append("state", np.zeros(3), 1)
    writer.append("cam", np.zeros((16, 16, 3), np.uint8), 1)
    writer.flush()
    if not os.fork():
        for name, data in (("state", np.zeros(3)), ("cam", np.zeros((16, 16, 3), np.uint8))):
            try:
                writer.append(name, data, 2)
                os._exit(3)
            except ClosedError:
                pass
        try:
            raise KeyError   # leaving the block in the child does nothing
        finally:
            writer.__exit__(KeyError, KeyError(), None)
            print("child", flush=True)
            sys.stdout.close()
            time.sleep(60)
    time.sleep(60)
"""
    path = tmp_path / "ep"
    process = subprocess.Popen(
        [sys.executable, "-c", script, path], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"child\n"
        process.kill()
        process.wait()
        (found,) = recover(path).episodes
        assert found.signals == {"cam": 1, "state": 1}
    finally:
        process.stdout.close()  # type: ignore[union-attr]
        os.killpg(process.pid, 9)


def test_open_episode_is_kept_at_interpreter_exit(tmp_path: Path) -> None:
    script = """
import sys, numpy as np
from relive.episodes import DiskEpisodeWriter
writer = DiskEpisodeWriter(sys.argv[1])
for number in range(20):
    writer.append("state", np.zeros(3), number)
    writer.append("cam", np.zeros((64, 64, 3), np.uint8), number)
"""
    path = tmp_path / "ep"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = recover(path).episodes
    assert found.signals == {"cam": 20, "state": 20}


def test_unwritable_path_raises(tmp_path: Path) -> None:
    script = """
import email.parser, os, sys
from relive.errors import AccessDeniedError
from relive.episodes import DiskEpisodeWriter, LocalDatasetWriter
if not os.getuid():
    os.setgid(12345)
    os.setuid(12345)
root = sys.argv[1]
for make in (lambda: DiskEpisodeWriter(root + "/ep"), LocalDatasetWriter(root).new_episode):
    try:
        make()
    except AccessDeniedError as error:
        assert isinstance(error, PermissionError)
        assert root in str(error)
    else:
        raise SystemExit("it was written")
"""
    # Only their owner may enter the directories of tests.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        root = Path(name) / "root"
        root.mkdir(mode=0o555)
        done = subprocess.run([sys.executable, "-c", script, root], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert names_in(root) == []


def test_vanished_directory_is_reported(tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep")
    writer.append("state", 1.0, 1)
    (tmp_path / "ep").rename(tmp_path / "elsewhere")
    with pytest.raises(ReliveError):
        writer.append("other", 1.0, 1)
    with pytest.raises(ReliveError):
        writer.close()
    (found,) = recover(tmp_path / "elsewhere").episodes  # nothing is lost
    assert found.signals == {"state": 1}


MANY_SIGNALS = """
import os, resource, sys
import numpy as np
from relive.episodes import DiskEpisode, DiskEpisodeWriter, recover

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
for name, end in (("closed", DiskEpisodeWriter.close), ("left", DiskEpisodeWriter.leave)):
    folder = f"{sys.argv[1]}/{name}"
    writer = DiskEpisodeWriter(folder)
    for row in range(2):
        for number in range(1000):
            writer.append(f"s{number}", np.full(3, number + row), row)
    writer.set_static("task", "pick")
    writer.sync()
    files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]]
    held = [path for path in files if path.startswith(folder)]
    assert len(held) == 1001, len(held)  # a tape for each signal, and the marker
    end(writer)
    if name == "left":
        assert recover(folder).problems == ()
    episode = DiskEpisode(folder)
    assert [len(signal) for signal in episode.signals.values()] == [2] * 1000
    assert episode["s999"][1][0].tolist() == [1000] * 3
"""


def test_a_thousand_signals_at_the_usual_limit_of_open_files() -> None:
    # In memory if possible: thousands of files are synced.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a fresh directory in it
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, "-c", MANY_SIGNALS, folder],
            capture_output=True,
            check=False,
            text=True,
        )
    assert done.returncode == 0, done.stderr
