"""`relive validate` and `relive recover` of a directory of runs, and of the file of one run."""

import os
import shutil
from pathlib import Path

import pytest

from relive.replay import ReplayRecorder, ReplayRun
from relive.replay.manage.runs import archive, delete
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path
from relive.replay.storage.tables import read_run, write_run
from relive.replay.storage.wal import wal_path
from tests.cli.conftest import Relive
from tests.replay.toy_run import STEPS, record


def flip(path: Path, offset: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def first_chunk(root: Path, run_id: str, field: str) -> int:
    """Return where the first chunk of a field is in the file of a run."""
    with Database.open(database_path(root)) as database:
        sql = 'SELECT "offset" FROM chunks WHERE run_id = ? AND field = ? ORDER BY first_row'
        return int(database.rows(sql, (run_id, field))[0][0])


@pytest.mark.parametrize("level", ["index", "sample", "full"])
def test_undamaged_runs(relive: Relive, root: Path, level: str) -> None:
    done = relive("validate", root, "--level", level)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{root}: ok ({level}, 2 runs")
    found = relive("validate", root, "--level", level, "--json").json
    assert (found["ok"], found["checked"]["runs"], found["problems"]) == (True, 2, [])


def test_one_run(relive: Relive, root: Path) -> None:
    path = arrays_path(root, "toy-1")
    done = relive("validate", path, "--level", "full")
    assert (done.status, done.out) == (0, f"{path}: ok (full, 1 run, 21 steps read)\n")
    copy = shutil.copy(path, root.parent / "copy.h5")
    done = relive("validate", copy, "--level", "full")
    assert (done.status, done.out) == (0, f"{copy}: ok (full, 1 run, 21 steps read)\n")
    assert done.err == ""
    flip(Path(copy), first_chunk(root, "toy-1", "frames"))
    done = relive("validate", copy, "--level", "full")
    assert (done.status, "frames" in done.out) == (1, True)
    pattern = f"{root}/replay/*.h5"  # each is checked by itself
    assert relive("validate", pattern).out.count(": ok (sample, 1 run, ") == 2


def test_damaged_array_is_named(relive: Relive, root: Path) -> None:
    path = arrays_path(root, "toy-1")
    flip(path, first_chunk(root, "toy-1", "frames"))
    for target in (root, path):
        done = relive("validate", target, "--level", "full")
        assert done.status == 1
        *problems, last = done.out.splitlines()
        assert any("frames" in line and str(path) in line for line in problems)
        assert last.startswith(f"{target}: ")
        assert "problem" in last
    found = relive("validate", root, "--level", "full", "--json").json
    assert {problem["kind"] for problem in found["problems"]} == {"corrupt"}
    assert "frames" in {problem["field"] for problem in found["problems"]}
    assert relive("validate", arrays_path(root, "vector-1"), "--level", "full").status == 0


def test_damaged_database_is_reported(relive: Relive, root: Path) -> None:
    with Database.create(database_path(root)) as database:
        database.rows("UPDATE steps SET reward = 99 WHERE run_id = 'toy-1' AND row = 3")
    done = relive("validate", root, "--level", "full")
    assert done.status == 1
    path = database_path(root)
    assert done.out.startswith(f"`{path}`: step 0: run 'toy-1': steps 0 to 6 are damaged in the ")
    database_path(root).write_bytes(b"no database".ljust(8192, b"!"))
    done = relive("validate", root)
    assert done.status == 1
    assert "is damaged" in done.out
    done = relive("recover", root)
    assert (done.status, done.out) == (1, "")
    assert "is damaged" in done.err


def test_unfinished_runs_are_checked_and_named(relive: Relive, root: Path) -> None:
    record(root, "left", 1, end="leave")
    with ReplayRecorder(root, "open", live=None) as recorder:
        recorder.step([1.0])
        recorder.flush()
        done = relive("validate", root)
    assert (done.status, done.out) == (0, f"{root}: ok (sample, 4 runs, 59 steps read)\n")
    left, going = done.err.splitlines()
    assert left == (
        f"`{arrays_path(root, 'left')}` was interrupted; what is committed was checked, and "
        "`relive recover` finishes it"
    )
    path = arrays_path(root, "open")
    assert going == f"`{path}` is being recorded; what is committed was checked"


def test_runs_of_killed_recorders_are_finished(relive: Relive, root: Path) -> None:
    for run_id in ("left", "other"):
        record(root, run_id, 1, end="leave")
    with ReplayRecorder(root, "open", live=None) as recorder:
        recorder.step([1.0])
        recorder.flush()
        done = relive("recover", root)
        assert done.status == 0
        assert done.out.splitlines() == [
            f"{arrays_path(root, run_id)}: {run_id}, 1 episode, {STEPS} steps"
            for run_id in ("left", "other")
        ]
        assert done.err == "run 'open' is being recorded and was not changed\n"
        again = relive("recover", root)
        assert again.out == f"{root}: nothing to recover; 1 run being recorded\n"
        alone = relive("recover", arrays_path(root, "open"))
        assert (alone.status, alone.out) == (1, "")
        assert "'open' is being recorded" in alone.err
    assert relive("recover", root).out == f"{root}: nothing is unfinished\n"
    assert ReplayRun(root, "left").status == "interrupted"
    assert relive("validate", root, "--level", "full").status == 0


def test_root_is_named_by_its_parts(relive: Relive, root: Path) -> None:
    for path in (root / "replay", database_path(root)):
        record(root, path.name, 1, end="leave")
        assert relive("recover", path).out.startswith(f"{arrays_path(root, path.name)}: ")
        assert len(relive("replay", "ls", path, "--json").json) >= 3


def test_one_run_is_finished(relive: Relive, root: Path) -> None:
    for run_id in ("left", "other"):
        record(root, run_id, 1, end="leave")
    path = arrays_path(root, "left")
    found = relive("recover", path, "--json").json
    assert [each["run_id"] for each in found["runs"]] == ["left"]
    assert (found["runs"][0]["steps"], found["problems"]) == (STEPS, [])
    assert relive("recover", path).out == f"{path}: nothing is unfinished\n"
    with Database.open(database_path(root)) as database, database.snapshot() as connection:
        assert read_run(connection, "other").status == "recording"


def test_damaged_metadata_is_written_again(relive: Relive, root: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = arrays_path(root, "toy-1")
    flip(path, 9)
    assert relive("validate", root).status == 1
    done = relive("recover", root)
    assert (done.status, done.out) == (0, f"{path}: toy-1, 3 episodes, 21 steps\n")
    with h5py.File(path) as file:
        assert len(file["frames"]) == 21
    assert relive("validate", root, "--level", "full").status == 0


def test_run_that_cannot_be_finished_is_reported(relive: Relive, root: Path) -> None:
    record(root, "left", 1, end="leave")
    with Database.create(database_path(root)) as database:
        database.rows("UPDATE runs SET env_id = 'Other-v0' WHERE run_id = 'toy-1'")
    done = relive("recover", root)
    assert done.status == 3
    assert done.out == f"{arrays_path(root, 'left')}: left, 1 episode, {STEPS} steps\n"
    assert done.err == "warning: run 'toy-1': run 'toy-1' has a wrong checksum in the database\n"


def test_commits_that_cannot_be_used(relive: Relive, root: Path) -> None:
    with ReplayRecorder(root, "left", live=None) as recorder:
        for _ in range(3):
            recorder.step([1.0])
            recorder.flush()
        killed = shutil.copytree(root, root.with_name("killed"))
    path = wal_path(database_path(killed))
    flip(path, path.stat().st_size - 1)
    for level in ("index", "full"):
        done = relive("validate", killed, "--level", level)
        assert done.status == 1
        assert done.out.count("cannot be used: the file was damaged, or the power was cut") == 1
        assert str(path) in done.out
    done = relive("recover", killed)
    assert done.status == 3
    assert done.out == f"{arrays_path(killed, 'left')}: left, 1 episode, 2 steps\n"
    warning, note = done.err.splitlines()
    assert warning.startswith("warning: frame ")
    assert note == f"the file with the commits that were not recovered is `{path}.damaged-1`"
    assert relive("validate", killed, "--level", "full").status == 0
    assert relive("recover", killed).status == 0


def test_archived_and_deleted_runs(relive: Relive, root: Path) -> None:
    archive(root, "toy-1")
    delete(root, "vector-1")
    assert relive("recover", root).out == f"{root}: nothing is unfinished\n"
    assert relive("validate", root, "--level", "full").out == (
        f"{root}: ok (full, 1 run, 21 steps read)\n"
    )
    done = relive("recover", arrays_path(root, "vector-1"))
    assert (done.status, done.err) == (1, f"error: `{root}` has no run 'vector-1'\n")


def test_interrupted_deletion_is_named(relive: Relive, root: Path) -> None:
    with Database.create(database_path(root)) as database, database.transaction() as connection:
        run = read_run(connection, "toy-1")
        run.status = "deleted"
        write_run(connection, run)
    done = relive("recover", root)
    assert (done.status, done.out) == (0, f"{root}: nothing is unfinished\n")
    assert done.err == (
        f"the deletion of run 'toy-1' was interrupted; run `relive replay rm {root} toy-1 --yes` "
        "to finish it\n"
    )


def test_file_without_its_database_is_not_recovered(relive: Relive, root: Path) -> None:
    copy = shutil.copy(arrays_path(root, "toy-1"), root.parent / "copy.h5")
    done = relive("recover", copy)
    assert (done.status, done.out) == (1, "")
    assert "the database of the run is not there" in done.err
    assert done.err.splitlines()[-1].startswith("hint: ")


@pytest.mark.parametrize("more", [["--output", "x"], ["--overwrite"], ["--set-aside"]])
def test_options_of_other_kinds_are_refused(relive: Relive, root: Path, more: list[str]) -> None:
    for path in (root, arrays_path(root, "toy-1")):
        done = relive("recover", path, *more)
        assert (done.status, done.out) == (2, "")
        assert "runs are recovered in place" in done.err or "--set-aside applies only" in done.err


def test_a_pipe_in_place_of_the_database_is_an_error(relive: Relive, tmp_path: Path) -> None:
    database = database_path(tmp_path)
    database.parent.mkdir()
    os.mkfifo(database)
    done = relive("recover", tmp_path)
    text = f"error: `{database}` is a named pipe, expected a file\n"
    assert (done.status, done.out, done.err) == (1, "", text)
