"""A database that is where its root has its own: old programs use it until the runs are moved."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from relive.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    LockedError,
    UnsupportedError,
)
from relive.replay import (
    ReplayRecorder,
    ReplayRoot,
    ReplayRun,
    ReplayWriter,
    TelemetrySink,
    TelemetryStore,
    validate,
)
from relive.replay.migrate import in_place, migrate
from relive.replay.storage.layout import database_path
from tests.replay.migrate.original import Original, arrays_at, checked, content, frame, old_program


@pytest.fixture
def own(root: Path) -> Iterator[Original]:
    """A database of the original, at the place of that of the root."""
    path = database_path(root)
    path.parent.mkdir(parents=True)
    made = Original(path)
    yield made
    made.connection.close()


def tables(own: Original) -> set[str]:
    found = own.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    return {name for (name,) in found}


def test_runs_are_staged_while_the_old_program_goes_on(own: Original, root: Path) -> None:
    steps = own.fill()
    report = checked(migrate(own.path, root, verify=True))
    assert report.staged is not None
    assert (report.copied, report.is_verified) == (steps, True)
    assert tables(own) == {"steps", "episodes"}
    assert len(ReplayRun(report.staged, "run1")) == steps // 2
    with pytest.raises(UnsupportedError, match="not a replay database"):
        ReplayRoot(root)
    own.step("run0-ep0009", 0, run_id="run0")
    report = checked(migrate(own.path, root))
    assert (report.copied, report.present) == (1, steps)


def test_runs_are_moved_when_columns_are_dropped(own: Original, root: Path, tmp_path: Path) -> None:
    steps = own.fill()
    own.connection.execute("CREATE INDEX idx_steps_run_id ON steps (run_id)")
    own.connection.execute("CREATE TABLE runs (name)")
    own.connection.execute("PRAGMA user_version = 7")
    checked(migrate(own.path, tmp_path / "other"))
    checked(migrate(own.path, root))
    report = checked(migrate(own.path, root, drop_blobs=True, compact=True))
    assert (report.present, report.staged) == (steps, None)
    assert report.dropped == ("observation", "render_payload")
    assert {"steps", "chunks", "original_steps", "original_episodes", "original_runs"} <= tables(
        own
    )
    assert content(root) == content(tmp_path / "other")
    assert validate(root, "full").problems == ()
    assert sorted(path.name for path in own.path.parent.iterdir() if path.is_dir()) == []
    count = own.connection.execute("SELECT count(*), count(time_step) FROM original_steps")
    assert count.fetchall() == [(steps, steps)]
    with ReplayRecorder(root, "run0") as recorder:
        recorder.step(frame=frame(99), action=1, reward=0.5)
    np.testing.assert_array_equal(arrays_at(ReplayRun(root, "run0"), "frames", 15), frame(99))


def test_moved_tables_can_be_verified_again(own: Original, root: Path, tmp_path: Path) -> None:
    steps = own.fill()
    migrate(own.path, root, drop_blobs=True)
    report = checked(migrate(own.path, root, drop_blobs=True, compact=True))
    assert (report.present, report.verified, report.dropped) == (steps, steps, ())
    own.connection.execute("UPDATE original_steps SET reward = -1 WHERE rowid = 3")
    assert migrate(own.path, root, verify=True).problem_count == 1
    assert checked(migrate(own.path, tmp_path / "other")).copied == steps


def test_rows_that_are_added_later_are_copied_by_a_repeated_drop(own: Original, root: Path) -> None:
    steps = own.fill(runs=1, episodes=1)
    migrate(own.path, root, drop_blobs=True)
    own.connection.execute(
        "INSERT INTO original_steps (episode_id, step_index, reward, terminated, truncated, "
        "timestamp) VALUES ('run0-ep0009', 0, 1.0, 0, 0, '2024-05-02')"
    )
    report = checked(migrate(own.path, root, drop_blobs=True))
    assert (report.copied, report.present, report.dropped) == (1, steps, ())
    assert report.uncompared == ("observation", "render_payload")


def test_steps_that_were_written_twice_are_dropped_once(root: Path) -> None:
    with TelemetryStore(root, keep_blobs=True) as store:
        with TelemetrySink(store, ReplayWriter("run", root / "replay")) as sink:
            sink.put({"observation": np.zeros(3), "action": 1, "reward": 1.0})
        # Its run was not completed, so the call that drops the columns writes to it.
        killed = ReplayRecorder(root, "killed", live=None)
        killed.step(action=1)
        killed.leave()
    for dropped in (("observation", "render_payload"), ()):
        assert migrate(database_path(root), root, drop_blobs=True).dropped == dropped


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_nothing_is_moved_if_another_process_writes(
    own: Original, root: Path, journal: str
) -> None:
    own.connection.execute(f"PRAGMA journal_mode = {journal}")
    own.fill(runs=1, episodes=1)

    def insert(phase: str, done: int, total: int) -> None:
        if (phase, done) == ("verify", total):
            own.step("run0-ep0001", own.count, run_id="run0")

    with pytest.raises(InvalidError, match="another process changed"):
        migrate(own.path, root, drop_blobs=True, progress=insert)
    assert tables(own) == {"steps", "episodes"}
    assert "observation" in own.columns
    assert checked(migrate(own.path, root, drop_blobs=True)).verified == 7


def test_nothing_is_moved_if_a_step_differs(own: Original, root: Path) -> None:
    own.fill(runs=1, episodes=1)
    migrate(own.path, root)
    own.connection.execute("UPDATE steps SET reward = -1 WHERE rowid = 3")
    with pytest.raises(CorruptError, match="differ in 1 step; nothing was removed"):
        migrate(own.path, root, drop_blobs=True)
    assert "observation" in own.columns


def test_leftovers_of_a_killed_move_are_removed(own: Original, root: Path) -> None:
    own.fill(runs=1, episodes=1)
    migrate(own.path, root, drop_blobs=True)
    staged = in_place.staged_root(root)
    ReplayRun(root, "run0").read("frames", [0])
    migrate(own.path, root)
    assert not staged.exists()
    np.testing.assert_array_equal(arrays_at(ReplayRun(root, "run0"), "frames", 1), frame(1))


@pytest.mark.parametrize("version", [0, 1, 9])
def test_recorder_does_not_use_a_database_that_is_not_migrated(
    own: Original, root: Path, version: int
) -> None:
    own.connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(UnsupportedError, match="`relive replay migrate` copies older databases"):
        ReplayRecorder(root, "run")
    assert tables(own) == {"steps", "episodes"}


def test_old_program_that_adds_its_columns_does_no_harm(own: Original, root: Path) -> None:
    own.fill(runs=1, episodes=1)
    migrate(own.path, root, drop_blobs=True)
    with contextlib.closing(sqlite3.connect(own.path)) as old:
        old.execute("ALTER TABLE steps ADD COLUMN render_payload BLOB")
    with ReplayRecorder(root, "run0") as recorder:
        recorder.step(frame=frame(9), action=1, reward=0.5)
    assert len(ReplayRun(root, "run0")) == 6


def test_root_that_was_moved_is_continued(own: Original, root: Path, tmp_path: Path) -> None:
    steps = own.fill()
    migrate(own.path, root)
    own.connection.close()
    moved = root.rename(tmp_path / "moved")
    report = checked(migrate(database_path(moved), moved, drop_blobs=True))
    assert (report.present, report.verified) == (steps, steps)
    assert not root.exists()


def test_only_one_process_migrates_in_place(own: Original, root: Path) -> None:
    own.fill(runs=1, episodes=1)
    with in_place.locked(root), pytest.raises(LockedError, match="another process migrates"):
        migrate(own.path, root)


def test_arrays_of_others_are_not_replaced(own: Original, root: Path) -> None:
    own.fill(runs=1, episodes=1)
    (root / "replay").mkdir()
    foreign = root / "replay" / "run0.h5"
    foreign.write_bytes(b"\x89HDF\r\n\x1a\n and more")
    with pytest.raises(AlreadyExistsError, match="has no run 'run0'"):
        migrate(own.path, root)
    assert foreign.read_bytes().endswith(b"and more")


def test_live_writer_in_place_loses_nothing(own: Original, root: Path) -> None:
    own.fill(runs=1, episodes=1, steps=2)
    with old_program(own.path, 200) as writer:
        while writer.poll() is None:
            checked(migrate(own.path, root, verify=True))
    checked(migrate(own.path, root, drop_blobs=True, compact=True))
    run = ReplayRun(root, "run")
    assert sorted(run.read("observations", np.arange(200))[:, 0].tolist()) == list(range(200))
    with TelemetryStore(root, read_only=True) as store:
        assert len(store.recent_steps(1000)) == 202
    assert own.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
