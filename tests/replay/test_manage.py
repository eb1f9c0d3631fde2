"""Runs are listed, archived and deleted; a deletion that was interrupted can be finished."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.errors import (
    CorruptError,
    InvalidError,
    LockedError,
    NotFoundError,
    ReadOnlyError,
    UnfinishedError,
    UnknownNameError,
)
from relive.replay.manage import runs as manage
from relive.replay.manage.runs import (
    archive,
    delete,
    list_runs,
    load_tables,
    prunable,
    prune,
    run_ids,
    unfinished_deletions,
)
from relive.replay.recorder import ReplayRecorder
from relive.replay.run import ReplayRun
from relive.replay.storage import tables
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path, lock_path
from relive.replay.storage.tables import RunTables
from relive.store.locks import FileLock
from tests.replay.toy_run import STEPS, record, reward

TABLES = ("steps", "commits", "episodes", "columns", "chunks", "tail")


def count_rows(root: Path, run_id: str) -> dict[str, int]:
    """Return how many rows each table has of a run."""
    database = Database.open(database_path(root))
    try:
        return {
            table: database.rows(
                f"SELECT count(*) FROM {table} WHERE run_id = ?",  # noqa: S608 - our names
                (run_id,),
            )[0][0]
            for table in TABLES
        }
    finally:
        database.close()


def tombstone(root: Path, run_id: str) -> RunTables:
    """Return what the database has about a run, also about a deleted one, checked."""
    database = Database.open(database_path(root))
    try:
        return RunTables.load(database, run_id)
    finally:
        database.close()


def change(root: Path, sql: str) -> None:
    """Change the database behind the back of relive."""
    database = Database.create(database_path(root))
    try:
        database.rows(sql)
    finally:
        database.close()


def test_runs_are_listed_in_their_order(tmp_path: Path) -> None:
    record(tmp_path, "b", env_id="Toy-v0")
    record(tmp_path, "a", 1)
    first, second = list_runs(tmp_path)
    assert run_ids(tmp_path) == [first.run_id, second.run_id] == ["b", "a"]
    assert (first.status, first.env_id, first.episodes, first.steps) == (
        "finished", "Toy-v0", 3, 3 * STEPS,
    )  # fmt: skip
    returns = [
        sum(reward(row) or 0.0 for row in range(start, start + STEPS))
        for start in range(0, 3 * STEPS, STEPS)
    ]
    assert first.mean_return == pytest.approx(np.mean(returns))
    (last, _) = list_runs(tmp_path, last_episodes=1)
    assert last.mean_return == pytest.approx(returns[-1])
    assert first.file_bytes == arrays_path(tmp_path, "b").stat().st_size
    assert first.created_ns < first.changed_ns < second.created_ns
    assert first.problem is None
    with pytest.raises(InvalidError, match="last_episodes"):
        list_runs(tmp_path, last_episodes=0)


def test_status_tells_whether_a_run_is_being_recorded(tmp_path: Path) -> None:
    record(tmp_path, "left", end="leave")
    with contextlib.suppress(ZeroDivisionError), ReplayRecorder(tmp_path, "failed") as recorder:
        recorder.step(reward=1.0)
        raise ZeroDivisionError
    with ReplayRecorder(tmp_path, "open") as recorder:
        recorder.step(reward=1.0)
        recorder.flush()
        found = {run.run_id: run for run in list_runs(tmp_path)}
    assert {name: run.status for name, run in found.items()} == {
        "left": "interrupted", "failed": "failed", "open": "recording",
    }  # fmt: skip
    assert found["open"].mean_return is None
    assert found["left"].created_ns < found["left"].changed_ns < found["open"].created_ns


def test_empty_root_has_no_runs(tmp_path: Path) -> None:
    Database.create(database_path(tmp_path)).close()
    assert list_runs(tmp_path) == []
    assert prune(tmp_path, 0) == []
    for missing in (tmp_path / "no", tmp_path / "telemetry"):
        for call in (list_runs, run_ids, unfinished_deletions):
            with pytest.raises(NotFoundError, match="is not a directory of runs"):
                call(missing)
        with pytest.raises(NotFoundError, match="is not a directory of runs"):
            delete(missing, "x")
        assert not (missing / "replay").exists()


def test_damaged_run_is_listed_with_the_problem(tmp_path: Path) -> None:
    record(tmp_path, "good")
    record(tmp_path, "bad")
    change(tmp_path, "UPDATE runs SET steps = steps + 1 WHERE run_id = 'bad'")
    good, bad = list_runs(tmp_path)
    assert (good.status, good.problem) == ("finished", None)
    assert (bad.status, bad.steps) == ("damaged", 0)
    assert bad.problem is not None
    assert "checksum" in bad.problem
    assert [run.run_id for run in prunable(tmp_path, 0)] == ["good"]
    with pytest.raises(CorruptError) as caught:
        delete(tmp_path, "bad")
    assert caught.value.hint == "pass damaged=True to delete the run"
    assert count_rows(tmp_path, "bad")["steps"] == 3 * STEPS


def test_archived_run_is_read_only(tmp_path: Path) -> None:
    record(tmp_path)
    archive(tmp_path, "toy-1")
    archive(tmp_path, "toy-1")
    assert list_runs(tmp_path)[0].status == ReplayRun(tmp_path, "toy-1").status == "archived"
    assert len(ReplayRun(tmp_path, "toy-1").episode("toy-1-ep0002").load()["steps"]) == STEPS
    with pytest.raises(ReadOnlyError, match="archived"):
        ReplayRecorder(tmp_path, "toy-1")
    with pytest.raises(ReadOnlyError, match="archived"):
        delete(tmp_path, "toy-1")
    assert prune(tmp_path, 0) == []
    assert delete(tmp_path, "toy-1", archived=True).steps == 3 * STEPS


def test_only_a_closed_run_can_be_archived(tmp_path: Path) -> None:
    record(tmp_path, "left", end="leave")
    with pytest.raises(UnfinishedError, match="'left' was interrupted"):
        archive(tmp_path, "left")
    with ReplayRecorder(tmp_path, "open") as recorder:
        recorder.step(reward=1.0)
        recorder.flush()
        with pytest.raises(LockedError, match=f"process {os.getpid()}"):
            archive(tmp_path, "open")
    archive(tmp_path, "open")
    delete(tmp_path, "left")
    for unknown in ("left", "no"):
        with pytest.raises(UnknownNameError):
            archive(tmp_path, unknown)


def test_deleted_run_leaves_only_a_tombstone(tmp_path: Path) -> None:
    record(tmp_path, "kept")
    record(tmp_path, "gone", env_id="Toy-v0", metadata={"a": 1})
    before = load_tables(tmp_path, "gone").run
    size = arrays_path(tmp_path, "gone").stat().st_size
    done: list[tuple[int, int | None]] = []
    found = delete(tmp_path, "gone", progress=lambda *each: done.append(each))
    assert (found.run_id, found.steps, found.file_bytes) == ("gone", 3 * STEPS, size)
    assert done == [(0, 3 * STEPS)]
    assert set(count_rows(tmp_path, "gone").values()) == {0}
    assert not arrays_path(tmp_path, "gone").exists()
    assert not lock_path(tmp_path, "gone").exists()
    left = tombstone(tmp_path, "gone").run
    assert (left.status, left.steps, left.episodes, left.digest) == ("deleted", 0, 0, 0)
    assert (left.uid, left.created_ns, left.env_id) == (before.uid, before.created_ns, "Toy-v0")
    assert (left.metadata, left.config) == (None, None)
    assert run_ids(tmp_path) == ["kept"]
    assert len(ReplayRun(tmp_path, "kept").episode("kept-ep0001").load()["steps"]) == STEPS


def test_id_of_a_deleted_run_is_not_used_again(tmp_path: Path) -> None:
    record(tmp_path)
    delete(tmp_path, "toy-1")
    with pytest.raises(ReadOnlyError, match="deleted"):
        ReplayRecorder(tmp_path, "toy-1")
    assert not arrays_path(tmp_path, "toy-1").exists()
    with pytest.raises(UnknownNameError, match="was deleted"):
        delete(tmp_path, "toy-1")
    with pytest.raises(UnknownNameError, match="was deleted"):
        load_tables(tmp_path, "toy-1")
    assert unfinished_deletions(tmp_path) == []


def test_unknown_run_is_not_locked(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(UnknownNameError, match="'no'"):
        delete(tmp_path, "no")
    with pytest.raises(InvalidError, match="run_id"):
        delete(tmp_path, "../toy-1")
    assert sorted(path.name for path in (tmp_path / "replay").iterdir()) == [
        ".toy-1.lock", "index.json", "toy-1.h5",
    ]  # fmt: skip


def test_run_that_is_being_recorded_is_not_deleted(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "open") as recorder:
        for _ in range(5):
            recorder.step(reward=1.0)
        recorder.flush()
        with pytest.raises(LockedError, match=f"'open' is being recorded.*{os.getpid()}"):
            delete(tmp_path, "open")
        assert prune(tmp_path, 0, interrupted=True) == []
        recorder.step(reward=1.0)
    assert list_runs(tmp_path)[0].steps == 6


def test_other_runs_are_recorded_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manage, "_STEPS_AT_ONCE", 1)
    with ReplayRecorder(tmp_path, "gone") as recorder:
        for _ in range(5):
            recorder.step(reward=1.0)
            recorder.flush()
    with ReplayRecorder(tmp_path, "kept") as recorder:

        def step(*_: object) -> None:
            recorder.step(reward=2.0)
            recorder.flush()
            assert tombstone(tmp_path, "gone").run.status == "deleted"  # and its checksums match

        delete(tmp_path, "gone", progress=step)
    assert ReplayRun(tmp_path, "kept").steps["reward"].to_pylist() == [2.0] * 5


class Cut(BaseException):
    """Ends a deletion, as a kill does."""


def cut_before(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """End the deletion at the n-th time that it is about to change something."""
    left = iter(range(call))

    def counted(original: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise Cut
            return original(*arguments, **options)

        return called

    monkeypatch.setattr(manage, "_unlink", counted(manage._unlink))
    monkeypatch.setattr(tables, "write_run", counted(tables.write_run))
    monkeypatch.setattr(tables, "delete", counted(tables.delete))


@pytest.mark.parametrize("call", range(8))
def test_interrupted_deletion_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    record(tmp_path, "kept", 1)
    record(tmp_path)
    path = arrays_path(tmp_path, "toy-1")
    with monkeypatch.context() as patch:
        patch.setattr(manage, "_STEPS_AT_ONCE", STEPS)
        cut_before(patch, call)
        with pytest.raises(Cut):
            delete(tmp_path, "toy-1")
    assert path.exists() == (call < 7)  # no step refers to a file that does not exist
    left = tombstone(tmp_path, "toy-1")  # the checksums are right
    assert left.run.steps == count_rows(tmp_path, "toy-1")["steps"]
    if call == 0:
        assert left.run.status == "finished"
        assert run_ids(tmp_path) == ["kept", "toy-1"]
        assert unfinished_deletions(tmp_path) == []
    else:
        assert left.run.status == "deleted"
        assert run_ids(tmp_path) == ["kept"]
        assert unfinished_deletions(tmp_path) == ["toy-1"]
        with pytest.raises(ReadOnlyError):
            ReplayRecorder(tmp_path, "toy-1")
    delete(tmp_path, "toy-1")
    assert set(count_rows(tmp_path, "toy-1").values()) == {0}
    assert not path.exists()
    assert unfinished_deletions(tmp_path) == []
    assert len(ReplayRun(tmp_path, "kept")) == STEPS


def test_killed_deletion_is_finished_by_prune(tmp_path: Path) -> None:
    record(tmp_path)
    program = (
        "import os, sys\n"
        "from relive.replay.manage import runs as manage\n"
        "manage._unlink = lambda path: os._exit(9)\n"
        "manage.delete(sys.argv[1], 'toy-1')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True)
    assert done.returncode == 9, done.stderr
    assert unfinished_deletions(tmp_path) == ["toy-1"]
    assert arrays_path(tmp_path, "toy-1").exists()
    assert [each.run_id for each in prune(tmp_path, 5)] == ["toy-1"]
    assert not arrays_path(tmp_path, "toy-1").exists()


def test_prune_keeps_the_runs_that_ended_last(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "continued") as recorder:
        recorder.step(reward=1.0)
    for number in range(4):
        record(tmp_path, f"run-{number}", 1)
    with ReplayRecorder(tmp_path, "continued") as recorder:
        recorder.step(reward=1.0)
    archive(tmp_path, "run-0")
    record(tmp_path, "left", 1, end="leave")
    assert [run.run_id for run in prunable(tmp_path, 2)] == ["run-1", "run-2"]
    assert [run.run_id for run in prunable(tmp_path, 0, interrupted=True)] == [
        "run-1", "run-2", "run-3", "continued", "left",
    ]  # fmt: skip
    assert prunable(tmp_path, 9) == []
    assert [each.run_id for each in prune(tmp_path, 2)] == ["run-1", "run-2"]
    assert run_ids(tmp_path) == ["continued", "run-0", "run-3", "left"]
    assert prune(tmp_path, 2) == []
    with pytest.raises(InvalidError, match="keep"):
        prune(tmp_path, -1)


def test_file_that_cannot_be_deleted_is_an_error_and_tried_again(tmp_path: Path) -> None:
    record(tmp_path)
    path = arrays_path(tmp_path, "toy-1")
    path.unlink()
    path.mkdir()  # which `unlink` does not remove
    with pytest.raises(OSError, match="cannot delete"):
        delete(tmp_path, "toy-1")
    assert unfinished_deletions(tmp_path) == ["toy-1"]
    path.rmdir()
    assert unfinished_deletions(tmp_path) == ["toy-1"]
    delete(tmp_path, "toy-1")
    assert unfinished_deletions(tmp_path) == []


def test_file_that_is_restored_after_a_deletion_is_kept(tmp_path: Path) -> None:
    record(tmp_path / "root")
    path = arrays_path(tmp_path / "root", "toy-1")
    shutil.copy(path, tmp_path / "backup.h5")
    delete(tmp_path / "root", "toy-1")
    shutil.copy(tmp_path / "backup.h5", path)
    assert unfinished_deletions(tmp_path / "root") == []
    assert prune(tmp_path / "root", 0) == []
    with pytest.raises(UnknownNameError, match="was deleted"):
        delete(tmp_path / "root", "toy-1")
    assert path.read_bytes() == (tmp_path / "backup.h5").read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET env_id = 'other'",
        "UPDATE runs SET uid = x'ff', created_ns = 'x', metadata = '{', arrays_version = 'x'",
        (
            "UPDATE runs SET steps = 'many', arrays_end = -1, arrays_pending = 1; "
            "UPDATE commits SET rows = 'x', crc = x'00'; DELETE FROM episodes; "
            "UPDATE steps SET row = -row"
        ),
    ],
)
def test_damaged_run_is_deleted_on_request(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, "bad", env_id="Toy-v0")
    for statement in damage.split("; "):
        change(tmp_path, statement)
    record(tmp_path, "kept")
    monkeypatch.setattr(manage, "_STEPS_AT_ONCE", 5)
    assert {run.status for run in list_runs(tmp_path)} == {"damaged", "finished"}
    with pytest.raises(CorruptError, match="'bad' has a wrong checksum"):
        delete(tmp_path, "bad")
    assert delete(tmp_path, "bad", damaged=True).steps == 3 * STEPS
    assert set(count_rows(tmp_path, "bad").values()) == {0}
    assert not arrays_path(tmp_path, "bad").exists()
    assert tombstone(tmp_path, "bad").run.status == "deleted"
    assert (run_ids(tmp_path), unfinished_deletions(tmp_path)) == (["kept"], [])
    assert delete(tmp_path, "kept", damaged=True).steps == 3 * STEPS  # which is not


def test_deletion_of_a_damaged_run_is_finished_by_prune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in range(4):
        root = tmp_path / str(call)
        record(root)
        change(root, "UPDATE runs SET env_id = 'other'")
        with monkeypatch.context() as patch:
            cut_before(patch, call + 1)
            with pytest.raises(Cut):
                delete(root, "toy-1", damaged=True)
        assert unfinished_deletions(root) == ["toy-1"]
        assert [each.run_id for each in prune(root, 5)] == ["toy-1"]
        assert set(count_rows(root, "toy-1").values()) == {0}
        assert not arrays_path(root, "toy-1").exists()


def test_damaged_run_that_is_archived_or_recorded_is_not_deleted(tmp_path: Path) -> None:
    record(tmp_path)
    archive(tmp_path, "toy-1")
    change(tmp_path, "UPDATE runs SET env_id = 'other'")
    with pytest.raises(ReadOnlyError, match="archived"):
        delete(tmp_path, "toy-1", damaged=True)
    assert count_rows(tmp_path, "toy-1")["commits"] == 3
    lock = FileLock.take(lock_path(tmp_path, "toy-1"), create=True)
    with pytest.raises(LockedError):
        delete(tmp_path, "toy-1", damaged=True, archived=True)
    lock.release()
    assert delete(tmp_path, "toy-1", damaged=True, archived=True).steps == 3 * STEPS


def test_json_of_a_deleted_run_is_deleted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, "a")
    monkeypatch.setattr(manage, "_STEPS_AT_ONCE", 2)
    change(tmp_path, "CREATE TABLE original_steps (episode_id, observation, run_id)")
    gone = [("x", "a"), ("a-ep0", None), ("a-ep", ""), ("a", None), ("b-ep1", "a")]
    kept = [
        ("x", "b"), ("a-ep0", "b"), ("b-ep0", None), ("a-ep0-ep1", None), ("aa-ep0", None),
        ("A-ep0", None), (None, None), ("", ""), ("-ep0", None),
    ]  # fmt: skip
    with Database.create(database_path(tmp_path)) as database, database.transaction() as connection:
        connection.executemany(
            "INSERT INTO original_steps VALUES (?, x'00', ?)", [*gone, *kept, *gone]
        )
    delete(tmp_path, "a")
    with Database.open(database_path(tmp_path)) as database:
        assert database.rows("SELECT episode_id, run_id FROM original_steps") == kept


def test_json_of_a_migrated_run_is_found_by_its_first_id(tmp_path: Path) -> None:
    with ReplayRecorder(
        tmp_path, "a_b", metadata={"migrated": {"run_id": "a/b"}}, live=None
    ) as recorder:
        recorder.step(reward=1.0)
    change(tmp_path, "CREATE TABLE original_steps (episode_id)")
    change(tmp_path, "INSERT INTO original_steps VALUES ('a/b-ep0'), ('a_b-ep0')")
    delete(tmp_path, "a_b")
    with Database.open(database_path(tmp_path)) as database:
        assert database.rows("SELECT * FROM original_steps") == [("a_b-ep0",)]
