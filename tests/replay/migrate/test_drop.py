"""Columns with arrays are removed only after everything was verified."""

from pathlib import Path

import numpy as np
import pytest

from relive.errors import InvalidError
from relive.replay import ReplayRun
from relive.replay.migrate import migrate
from tests.replay.migrate.original import Original, arrays_at, checked, frame


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_columns_are_dropped_and_the_file_shrinks(
    original: Original, root: Path, journal: str
) -> None:
    original.connection.execute(f"PRAGMA journal_mode = {journal}")
    original.connection.execute("CREATE INDEX idx_steps_episode ON steps (episode_id, step_index)")
    for index in range(20):
        original.step("run-ep0", index, observation=np.zeros(3000), render_payload=frame(index))
    report = checked(migrate(original.path, root, drop_blobs=True))
    assert (report.verified, report.dropped) == (20, ("observation", "render_payload"))
    assert (report.bytes_before, report.bytes_after) == (None, None)
    assert not {"observation", "render_payload"} & set(original.columns)
    report = checked(migrate(original.path, root, compact=True))
    assert report.bytes_before is not None
    assert report.bytes_after is not None
    assert report.bytes_after < 40_000
    assert report.bytes_before > 200_000
    assert original.path.stat().st_size == report.bytes_after
    assert original.connection.execute("SELECT count(*), sum(reward) FROM steps").fetchall() == [
        (20, pytest.approx(190 / 3))
    ]
    run = ReplayRun(root, "run")
    np.testing.assert_array_equal(arrays_at(run, "frames", 19), frame(19))
    original.step("run-ep0", 20)
    report = checked(migrate(original.path, root, verify=True, drop_blobs=True))
    assert (report.copied, report.verified, report.dropped) == (1, 21, ())


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_columns_stay_if_another_process_writes(
    original: Original, root: Path, journal: str
) -> None:
    original.connection.execute(f"PRAGMA journal_mode = {journal}")
    original.fill(runs=1, episodes=1, steps=5)

    def insert(phase: str, done: int, total: int) -> None:
        if (phase, done) == ("verify", total):
            original.step("run0-ep0001", original.count, run_id="run0")

    with pytest.raises(InvalidError, match=r"another process changed .*nothing was removed"):
        migrate(original.path, root, drop_blobs=True, progress=insert)
    assert "observation" in original.columns
    assert checked(migrate(original.path, root, drop_blobs=True)).verified == 7


def test_columns_stay_if_something_else_needs_them(original: Original, root: Path) -> None:
    original.fill(runs=1, episodes=1, steps=2)
    original.connection.execute("CREATE INDEX i ON steps (render_payload)")
    with pytest.raises(InvalidError, match="render_payload"):
        migrate(original.path, root, drop_blobs=True)
    assert "observation" in original.columns


def test_conflicting_rows_keep_their_arrays(original: Original, root: Path) -> None:
    for value in ([1.0], [2.0], [1.0]):
        original.step("run-ep0", 0, observation=value, timestamp="2024-01-01", action=1)
    report = checked(migrate(original.path, root, drop_blobs=True, compact=True))
    assert (report.duplicates, report.conflicting, report.kept) == (2, 1, 1)
    left_out = original.connection.execute("SELECT observation FROM left_out_steps").fetchall()
    assert left_out == [(b"[2.0]",)]


def test_duplicates_and_conflicts_are_counted_by_the_first_copy(
    original: Original, root: Path
) -> None:
    for value in ([1.0], [2.0], [1.0]):
        original.step("run-ep0", 0, observation=value, timestamp="2024-01-01", action=1)
    for _ in range(2):
        original.step("run-ep0", 1, observation=[3.0], timestamp="2024-01-01")
    report = checked(migrate(original.path, root))
    assert (report.copied, report.duplicates, report.conflicting) == (2, 3, 1)
    report = checked(migrate(original.path, root, verify=True))
    assert (report.present, report.duplicates, report.conflicting) == (2, 3, 1)


def test_arrays_that_are_gone_are_not_called_the_same(original: Original, root: Path) -> None:
    original.fill(runs=1, episodes=1, steps=3)
    report = checked(migrate(original.path, root, drop_blobs=True))
    assert (report.is_verified, report.uncompared) == (True, ())
    for drops in (False, True):
        report = checked(migrate(original.path, root, verify=True, drop_blobs=drops))
        assert (report.verified, report.dropped) == (3, ())
        assert report.uncompared == ("observation", "render_payload")
        assert not report.is_verified


def test_source_that_never_had_frames_is_verified(original: Original, root: Path) -> None:
    original.connection.execute("ALTER TABLE steps DROP COLUMN render_payload")
    original.step("run-ep0", 0, observation=[1.0])
    report = checked(migrate(original.path, root, verify=True))
    assert (report.is_verified, report.uncompared) == (True, ())


def test_drop_can_be_repeated_while_others_write(original: Original, root: Path) -> None:
    original.fill(runs=1, episodes=1, steps=3)
    checked(migrate(original.path, root, drop_blobs=True))

    def insert(phase: str, done: int, total: int) -> None:
        if (phase, done) in {("copy", total), ("verify", total)}:
            original.step("run0-ep0001", original.count, run_id="run0")

    report = checked(migrate(original.path, root, drop_blobs=True, progress=insert))
    assert (report.verified, report.dropped) == (3, ())


def test_row_that_is_added_while_others_are_copied_keeps_its_arrays(
    original: Original, root: Path
) -> None:
    original.fill(runs=1, episodes=1, steps=3)

    def insert(phase: str, done: int, total: int) -> None:
        if (phase, done) == ("copy", total):
            original.step("run0-ep0001", original.count, run_id="run0", observation=[1.0])

    with pytest.raises(InvalidError, match=r"another process changed .*nothing was removed"):
        migrate(original.path, root, drop_blobs=True, progress=insert)
    assert "observation" in original.columns
