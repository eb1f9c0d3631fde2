"""`recover` completes runs whose recorders were killed, and never removes the only copy."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.errors import NotFoundError, ReliveError, StorageError
from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun, TelemetryStore, recover, validate
from relive.replay.manage.runs import archive, delete
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path, lock_path, update_index
from relive.replay.writing.writer import RunWriter
from tests.replay import toy_run

ROOT = Path(__file__).parents[2]
CONSISTENCY_FLAGS = 11
"""The byte of an HDF5 superblock that says whether a program writes the file."""


def loaded(root: Path, run_id: str = "run") -> list[Any]:
    run = ReplayRun(root, run_id)
    return [run.episodes.episode_at(n).arrays() for n in range(len(run.episodes))]


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(found, expected, strict=True)


def read_by_h5py(root: Path, run_id: str = "run", **how: Any) -> dict[str, Any]:
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("hdf5plugin")
    with h5py.File(arrays_path(root, run_id), "r", **how) as file:
        return {
            "steps": int(file.attrs["total_steps"]),
            "status": file.attrs["status"],
            "actions": file["actions"][:].tolist(),
        }


def offset_of(root: Path, what: str = "metadata_offset") -> int:
    with Database.open(database_path(root)) as database:
        return int(database.rows(f"SELECT {what} FROM runs WHERE run_id = 'run'")[0][0])  # noqa: S608


def flip(path: Path, offset: int, count: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        data = bytes(byte ^ 0xFF for byte in file.read(count))
        file.seek(offset)
        file.write(data)


@pytest.mark.needs("h5py", "hdf5plugin")
def test_a_run_that_was_left_is_completed(tmp_path: Path) -> None:
    recorder = ReplayRecorder(tmp_path, "run", config=toy_run.SMALL, live=None)
    for number in range(30):
        recorder.step([number], number, 1.0, terminated=number == 20)
    recorder.leave()
    expected = loaded(tmp_path)
    assert ReplayRun(tmp_path, "run").status == "interrupted"
    found = recover(tmp_path)
    assert [(run.run_id, run.episodes, run.steps) for run in found.runs] == [("run", 2, 30)]
    assert found.runs[0].path == arrays_path(tmp_path, "run")
    assert (found.locked, found.problems, found.root) == ((), (), tmp_path)
    run = ReplayRun(tmp_path, "run")
    assert run.status == "interrupted"
    assert [episode["status"] for episode in run.episodes] == ["terminated", "truncated"]
    assert run.info["ended_ns"] is not None
    assert_same(loaded(tmp_path), expected)
    assert read_by_h5py(tmp_path) == {
        "steps": 30,
        "status": "interrupted",
        "actions": list(range(30)),
    }
    assert validate(tmp_path, "full").ok
    assert validate(tmp_path, "full").unfinished == ()
    assert recover(tmp_path).runs == ()
    with ReplayRecorder(tmp_path, "run", config=toy_run.SMALL, live=None) as recorder:
        recorder.step([30], 30, 1.0)
    assert ReplayRun(tmp_path, "run").read("actions", range(31)).tolist() == list(range(31))


@pytest.mark.needs("h5py", "hdf5plugin")
def test_a_killed_run_is_readable_with_swmr_until_it_is_recovered(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from relive.replay import ReplayConfig, ReplayRecorder\n"
        "config = ReplayConfig(chunk_rows=4, flush_s=3600)\n"
        "recorder = ReplayRecorder(sys.argv[1], 'run', config=config, live=None)\n"
        "for number in range(66):\n"
        "    recorder.step([number], number, 1.0)\n"
        "    if number % 8 == 7:\n"
        "        recorder.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, timeout=60)
    assert done.returncode == -9
    path = arrays_path(tmp_path, "run")
    live = read_by_h5py(tmp_path, swmr=True)
    assert live["actions"] == list(range(len(live["actions"])))
    assert live["actions"]
    recover(tmp_path)
    assert path.read_bytes()[CONSISTENCY_FLAGS] == 0
    assert read_by_h5py(tmp_path)["actions"] == list(range(64))
    assert len(ReplayRun(tmp_path, "run")) == 64


@pytest.mark.needs("h5py", "hdf5plugin")
@pytest.mark.parametrize("where", ["superblock", "flag", "magic", "metadata", "both", "cut"])
def test_damaged_metadata_of_hdf5_is_written_again(tmp_path: Path, where: str) -> None:
    toy_run.record(tmp_path, "run", 4)
    expected, before = loaded(tmp_path), ReplayRun(tmp_path, "run").info
    path = arrays_path(tmp_path, "run")
    if where in {"superblock", "both"}:
        flip(path, 12, 36)
    if where == "flag":  # as of a program that was killed while it wrote the file
        flip(path, CONSISTENCY_FLAGS)
    if where == "magic":
        flip(path, 0, 8)
    if where in {"metadata", "both"}:
        flip(path, offset_of(tmp_path) + 100, 30)
    if where == "cut":
        os.truncate(path, offset_of(tmp_path) + 10)
    assert_same(loaded(tmp_path), expected)  # read without it
    assert [run.steps for run in recover(tmp_path).runs] == [28]
    assert_same(loaded(tmp_path), expected)
    assert read_by_h5py(tmp_path)["actions"] == [row % 4 for row in range(28)]
    assert ReplayRun(tmp_path, "run").info == before  # also when it ended
    assert path.read_bytes()[CONSISTENCY_FLAGS] == 0
    assert validate(tmp_path, "full").ok
    copy = tmp_path / "copy.h5"
    shutil.copy(path, copy)
    assert len(ReplayRun(copy)) == 28
    assert recover(tmp_path).runs == ()


def test_a_run_that_is_being_recorded_is_not_changed(tmp_path: Path) -> None:
    toy_run.record(tmp_path, "run", 2, end="leave")
    recorder = ReplayRecorder(tmp_path, "live", config=toy_run.SMALL, live=None)
    for number in range(10):
        recorder.step([number], number)
    recorder.flush()
    before = arrays_path(tmp_path, "live").read_bytes()
    found = recover(tmp_path)
    assert [run.run_id for run in found.runs] == ["run"]
    assert (found.locked, found.problems) == (("live",), ())
    assert arrays_path(tmp_path, "live").read_bytes() == before
    recorder.step([10], 10)
    recorder.close()
    assert ReplayRun(tmp_path, "live").read("actions", range(11)).tolist() == list(range(11))


def test_runs_that_ended_are_not_changed(tmp_path: Path) -> None:
    toy_run.record(tmp_path, "run", 2)
    toy_run.record_nothing(tmp_path)
    with ReplayRecorder(tmp_path, "scalars", live=None, arrays=False) as recorder:
        recorder.step(action=1)
    toy_run.record(tmp_path, "gone", 1)
    delete(tmp_path, "gone")
    before = {path: path.read_bytes() for path in tmp_path.glob("replay/*.h5")}
    runs = TelemetryStore(tmp_path).runs()
    found = recover(tmp_path)
    assert (found.runs, found.locked, found.problems) == ((), (), ())
    assert {path: path.read_bytes() for path in tmp_path.glob("replay/*.h5")} == before
    assert TelemetryStore(tmp_path).runs() == runs


def test_a_run_without_arrays_is_completed(tmp_path: Path) -> None:
    recorder = ReplayRecorder(tmp_path, "run", live=None, arrays=False)
    recorder.step(action=1, reward=2.0)
    recorder.leave()
    assert [run.steps for run in recover(tmp_path).runs] == [1]
    assert ReplayRun(tmp_path, "run").episodes[0]["status"] == "truncated"
    assert not arrays_path(tmp_path, "run").exists()


def last_chunk(root: Path) -> int:
    """Return where the last chunk of actions is, which is not full."""
    with Database.open(database_path(root)) as database:
        rows = database.rows(
            "SELECT \"offset\" FROM chunks WHERE field = 'actions' ORDER BY first_row DESC LIMIT 1"
        )
    return int(rows[0][0])


@pytest.mark.parametrize("what", ["chunk", "file", "tail", "row", "archived"])
def test_what_cannot_be_completed_is_reported_and_kept(tmp_path: Path, what: str) -> None:
    end = "close" if what in {"chunk", "archived"} else "leave"
    toy_run.record(tmp_path, "run", 3, end=end)
    toy_run.record(tmp_path, "other", 1, end="leave")
    path = arrays_path(tmp_path, "run")
    if what == "chunk":  # the last one has to be continued
        flip(path, last_chunk(tmp_path) + 3)
        flip(path, offset_of(tmp_path))
    elif what == "archived":
        archive(tmp_path, "run")
        flip(path, offset_of(tmp_path))
    elif what == "file":
        path.rename(tmp_path / "kept.h5")
    else:
        client = sqlite3.connect(database_path(tmp_path))
        if what == "tail":
            client.execute("UPDATE tail SET data = zeroblob(length(data)) WHERE run_id = 'run'")
        else:
            client.execute("UPDATE runs SET seed = 5 WHERE run_id = 'run'")
        client.commit()
        client.close()
    before = path.read_bytes() if path.exists() else None
    tables = content(tmp_path)
    found = recover(tmp_path)
    assert [run.run_id for run in found.runs] == ["other"]
    assert len(found.problems) == 1
    assert found.problems[0].startswith("run 'run': ")
    assert (path.read_bytes() if path.exists() else None) == before
    assert content(tmp_path) == tables
    if what == "file":  # it was only moved
        (tmp_path / "kept.h5").rename(path)
        assert [run.steps for run in recover(tmp_path).runs] == [21]
        assert validate(tmp_path, "full").ok


@pytest.mark.parametrize("how", ["recover", "continue", "abort"])
def test_a_file_without_chunks_is_made_again(tmp_path: Path, how: str) -> None:
    recorder = ReplayRecorder(tmp_path, "run", live=None)
    for number in range(3):
        recorder.step(np.full(4, number), number)
    recorder.leave()
    path = arrays_path(tmp_path, "run")
    path.unlink()  # all rows are in the database
    if how == "abort":
        recorder = ReplayRecorder(tmp_path, "run", live=None, config=ReplayConfig(chunk_rows=1))
        recorder.step(np.full(4, 3), 3)
        recorder.flush()
        recorder.abort()
    if how == "recover":
        assert [run.steps for run in recover(tmp_path).runs] == [3]
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step(np.full(4, 3), 3)
    run = ReplayRun(tmp_path, "run")
    assert run.read("observations", range(4))[:, 0].tolist() == [0, 1, 2, 3]
    assert validate(tmp_path, "full").ok
    assert read_by_h5py(tmp_path)["actions"] == [0, 1, 2, 3]


def test_a_run_whose_file_is_missing_is_not_continued(tmp_path: Path) -> None:
    toy_run.record(tmp_path, "run", 3, end="leave")
    path = arrays_path(tmp_path, "run")
    path.unlink()
    with pytest.raises(NotFoundError, match="is missing: run 'run' has arrays") as caught:
        ReplayRecorder(tmp_path, "run", live=None)
    assert str(path) in caught.value.message
    assert "relive replay rm" in (caught.value.hint or "")
    assert not path.exists()


def content(root: Path) -> dict[str, list[Any]]:
    """Return everything that the database has about one run."""
    with Database.open(database_path(root)) as database:
        names = ("runs", "steps", "episodes", "columns", "chunks", "tail", "commits")
        return {
            name: database.rows(f"SELECT * FROM {name} WHERE run_id = 'run'")  # noqa: S608 - ours
            for name in names
        }


def test_files_of_unknown_runs_are_kept(tmp_path: Path) -> None:
    toy_run.record(tmp_path, "run", 1, end="leave")
    folder = tmp_path / "replay"
    shutil.copy(folder / "run.h5", folder / "copy.h5")
    (folder / "notes.h5").write_bytes(b"mine")
    recover(tmp_path)
    assert (folder / "notes.h5").read_bytes() == b"mine"
    assert (folder / "copy.h5").exists()


def test_a_recovery_that_fails_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_run.record(tmp_path, "run", 3, end="leave")
    expected = loaded(tmp_path)
    finish = RunWriter.finish

    def failing(self: RunWriter, *args: Any) -> None:
        self.commit(sync=True)
        raise StorageError("the disk is full")

    monkeypatch.setattr(RunWriter, "finish", failing)
    assert recover(tmp_path).problems == ("run 'run': the disk is full",)
    assert_same(loaded(tmp_path), expected)
    monkeypatch.setattr(RunWriter, "finish", finish)
    assert [run.steps for run in recover(tmp_path).runs] == [21]
    assert_same(loaded(tmp_path), expected)
    assert validate(tmp_path, "full").ok


def test_a_root_without_a_database_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        recover(tmp_path)
    toy_run.record(tmp_path, "run", 1)
    flip(database_path(tmp_path), 0, 16)
    with pytest.raises(ReliveError):
        recover(tmp_path)


class TestIndex:
    """`index.json` lists the files of runs for other programs, and relive never reads it."""

    def index(self, root: Path) -> dict[str, str]:
        found: dict[str, str] = json.loads((root / "replay" / "index.json").read_bytes())
        return found

    def test_recording_and_deleting_write_it(self, tmp_path: Path) -> None:
        toy_run.record(tmp_path, "a", 1)
        assert self.index(tmp_path) == {"a": "a.h5"}
        toy_run.record(tmp_path, "b.1", 1)
        assert self.index(tmp_path) == {"a": "a.h5", "b.1": "b.1.h5"}
        delete(tmp_path, "a")
        assert self.index(tmp_path) == {"b.1": "b.1.h5"}
        delete(tmp_path, "b.1")
        assert not (tmp_path / "replay" / "index.json").exists()

    def test_an_aborted_run_is_not_in_it(self, tmp_path: Path) -> None:
        toy_run.record(tmp_path, "a", 1)
        toy_run.record(tmp_path, "b", 1, end="abort")
        assert self.index(tmp_path) == {"a": "a.h5"}

    @pytest.mark.parametrize("content", [None, b"", b"{", b'{"x": "x.h5"}', b"\xff"])
    def test_it_is_rebuilt(self, tmp_path: Path, content: bytes | None) -> None:
        toy_run.record(tmp_path, "a", 1)
        path = tmp_path / "replay" / "index.json"
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
        assert list(ReplayRun(tmp_path, "a").episodes)  # whatever the index has
        assert validate(tmp_path, "full").ok
        recover(tmp_path)
        assert self.index(tmp_path) == {"a": "a.h5"}
        assert [path.name for path in tmp_path.glob("replay/.index*")] == []

    def test_it_is_written_only_when_it_changes(self, tmp_path: Path) -> None:
        toy_run.record(tmp_path, "a", 1)
        update_index(tmp_path)
        path = tmp_path / "replay" / "index.json"
        before = path.stat().st_ino, path.stat().st_mtime_ns
        update_index(tmp_path)
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == before

    def test_an_index_that_cannot_be_written_is_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "replay" / "index.json").mkdir(parents=True)
        toy_run.record(tmp_path, "a", 1)
        update_index(tmp_path)
        assert recover(tmp_path).problems == ()
        assert len(ReplayRun(tmp_path, "a")) == toy_run.STEPS
        update_index(tmp_path / "nowhere")

    def test_processes_that_end_at_once_are_all_in_it(self, tmp_path: Path) -> None:
        program = (
            "import sys\n"
            "from relive.replay import ReplayRecorder\n"
            "with ReplayRecorder(sys.argv[1], sys.argv[2], live=None) as recorder:\n"
            "    recorder.step([1.0])\n"
            "    sys.stdin.read()\n"
        )
        running = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(tmp_path), f"run{number}"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
            )
            for number in range(3)
        ]
        for process in running:
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait(60) for process in running] == [0, 0, 0]
        assert list(self.index(tmp_path)) == ["run0", "run1", "run2"]


def test_the_lock_of_a_killed_recorder_does_not_matter(tmp_path: Path) -> None:
    toy_run.record(tmp_path, "run", 1, end="leave")
    path = lock_path(tmp_path, "run")
    path.write_text("1")  # the number of another process
    assert [run.run_id for run in recover(tmp_path).runs] == ["run"]
    toy_run.record(tmp_path, "other", 1, end="leave")
    lock_path(tmp_path, "other").unlink()
    assert [run.run_id for run in recover(tmp_path).runs] == ["other"]


def test_recovering_uses_the_codecs_of_the_run(tmp_path: Path) -> None:
    config = ReplayConfig(codec={"observations": "raw", "*": "deflate:2"}, chunk_rows=4)
    recorder = ReplayRecorder(tmp_path, "run", config=config, live=None)
    for number in range(9):
        recorder.step([number], number)
    recorder.leave()
    expected = loaded(tmp_path)
    recover(tmp_path)
    assert_same(loaded(tmp_path), expected)
    fields = ReplayRun(tmp_path, "run").arrays.columns
    assert (fields["observations"].codec, fields["actions"].codec) == ("raw", "deflate")
