"""Rows become steps of runs, episodes and agents."""

import itertools
from pathlib import Path

import pytest

from relive.errors import CorruptError, LockedError
from relive.replay import ReplayRecorder, ReplayRoot, ReplayRun
from relive.replay.manage import runs as manage
from relive.replay.migrate import migrate
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import database_path
from tests.replay.migrate.original import Original, checked, episodes_of, restored


def test_row_without_a_run_belongs_to_the_one_in_its_episode(
    original: Original, root: Path
) -> None:
    for run_id, episode_id in [
        (None, "run-ep0001"),
        ("", "run-ep0002"),
        ("run", "other-ep0003"),
        (None, "my-epic-run-ep0001"),
        (None, "single"),
    ]:
        original.step(episode_id, 0, run_id=run_id)
    checked(migrate(original.path, root))
    found = {name: [e.episode_id for e in episodes_of(root, name)] for name in ReplayRoot(root)}
    assert found == {
        "run": ["run-ep0001", "run-ep0002", "other-ep0003"],
        "my-epic-run": ["my-epic-run-ep0001"],
        "single": ["single"],
    }


def test_runs_that_files_cannot_be_named_after_get_another_id(
    original: Original, root: Path
) -> None:
    names = ["a/b", "a_b", "é" * 200, ".hidden", "a b"]
    for name in names:
        original.step("e-ep0", 0, run_id=name, observation=[1.0, 2.0])
    assert checked(migrate(original.path, root, verify=True)).runs == 5
    runs = ReplayRoot(root)
    assert "a_b" in runs
    assert {run.info["metadata"]["migrated"]["run_id"] for run in runs.values()} == set(names)
    assert checked(migrate(original.path, root)).present == 5


def test_first_row_of_a_step_counts(original: Original, root: Path) -> None:
    for index in (0, 1, 1, 2, 0):
        original.step("run-ep0", index, observation=[float(original.count)], timestamp="2024-01-01")
    original.step("run-ep0", 2, observation=[3.0], timestamp="2024-01-01")
    report = checked(migrate(original.path, root, verify=True))
    assert (report.copied, report.duplicates, report.conflicting) == (3, 3, 2)
    values = episodes_of(root)[0].arrays("observations")["observations"]
    assert values.tolist() == [[0.0], [1.0], [3.0]]
    original.step("run-ep0", 1, observation=[9.0])
    report = checked(migrate(original.path, root, verify=True))
    assert (report.copied, report.present, report.duplicates) == (0, 3, 4)


def test_steps_are_in_order_and_keep_their_index(original: Original, root: Path) -> None:
    for index in (7, 2, 11, 3):
        original.step("run-ep0", index, observation=index)
    checked(migrate(original.path, root, verify=True))
    episode = episodes_of(root)[0]
    assert episode.arrays()["step_index"].tolist() == [2, 3, 7, 11]
    assert episode.arrays()["observations"].tolist() == [2, 3, 7, 11]


def test_agents_of_an_episode_are_kept_apart(original: Original, root: Path) -> None:
    for index, agent in itertools.product(range(3), (None, "red", "blue")):
        original.step("run-ep0", index, agent_id=agent, observation=f"{agent} {index}")
    checked(migrate(original.path, root, verify=True))
    run = ReplayRun(root, "run")
    episodes = episodes_of(root)
    assert [episode.agent_id for episode in episodes] == ["", "red", "blue"]
    for episode, agent in zip(episodes, (None, "red", "blue"), strict=True):
        rows = episode.rows
        assert [restored(run, int(row)) for row in rows] == [f"{agent} {i}" for i in range(3)]


def test_episode_that_goes_on_after_its_end_is_split(original: Original, root: Path) -> None:
    for index in range(5):
        original.step("run-ep0", index, terminated=int(index in {1, 3}))
        if index == 2:
            migrate(original.path, root)
    report = checked(migrate(original.path, root, verify=True))
    assert (report.split, report.episodes, report.verified) == (1, 1, 5)
    episodes = episodes_of(root)
    assert [(e.episode_id, len(e.rows)) for e in episodes] == [
        ("run-ep0", 2),
        ("run-ep0~1", 2),
        ("run-ep0~2", 1),
    ]
    assert episodes[2]["metadata"]["continues"] == "run-ep0~1"
    assert [e.status for e in episodes] == ["terminated", "terminated", "truncated"]


def test_late_rows_are_counted_and_found(original: Original, root: Path) -> None:
    original.step("run-ep0", 0)
    original.step("run-ep0", 2)
    migrate(original.path, root)
    original.step("run-ep0", 1)
    original.step("run-ep0", 3)
    report = migrate(original.path, root, verify=True)
    assert (report.copied, report.present, report.late) == (1, 2, 1)
    assert (checked(report).verified, report.is_verified) == (3, True)


def test_late_rows_keep_their_arrays(original: Original, root: Path) -> None:
    for index in (0, 2):
        original.step("run-ep0", index, observation=[float(index)])
    migrate(original.path, root)
    original.step("run-ep0", 1, observation=[1.0])
    report = checked(migrate(original.path, root, drop_blobs=True))
    assert (report.late, report.kept) == (1, 1)
    assert report.dropped == ("observation", "render_payload")
    left_out = original.connection.execute("SELECT step_index, observation FROM left_out_steps")
    assert left_out.fetchall() == [(1, b"[1.0]")]
    report = checked(migrate(original.path, root, drop_blobs=True))
    assert (report.late, report.kept, report.dropped) == (1, 0, ())


def test_steps_that_the_root_lost_are_not_late(original: Original, root: Path) -> None:
    for index in range(3):
        original.step("run-ep0", index)
    migrate(original.path, root)
    with Database.create(database_path(root)) as database:
        database.rows("DELETE FROM steps WHERE step_index = 1")
    with pytest.raises(CorruptError, match="nothing was removed"):
        migrate(original.path, root, drop_blobs=True)
    assert "observation" in original.columns


def test_table_without_rows_makes_an_empty_root(original: Original, root: Path) -> None:
    report = checked(migrate(original.path, root, verify=True, compact=True))
    assert (report.rows, report.verified) == (0, 0)
    assert list(ReplayRoot(root)) == []


def test_run_that_is_being_written_is_locked(original: Original, root: Path) -> None:
    original.fill(runs=1, episodes=1, steps=2)
    with ReplayRecorder(root, "run0"), pytest.raises(LockedError, match="run0"):
        migrate(original.path, root)


def test_archived_and_deleted_runs_are_left_out(original: Original, root: Path) -> None:
    original.fill(runs=3, episodes=1, steps=3)
    migrate(original.path, root)
    manage.archive(root, "run0")
    manage.archive(root, "run1")
    manage.delete(root, "run2")
    original.step("run1-ep0001", 0, run_id="run1")
    original.step("run3-ep0001", 0, run_id="run3")
    report = migrate(original.path, root, verify=True)
    assert report.skipped_runs == ["run1", "run2"]
    assert (report.copied, report.present) == (1, 6)
    assert {problem.run_id for problem in report.problems} == {"run1"}
    with pytest.raises(CorruptError, match="differ in 1 step"):
        migrate(original.path, root, drop_blobs=True)


def test_rows_of_a_deleted_run_keep_their_arrays(original: Original, root: Path) -> None:
    original.fill(runs=2, episodes=2, steps=3)
    original.step(
        "run1-ep0000", 0, run_id="run1", observation=[1.0]
    )  # a second row of its first step
    migrate(original.path, root)
    manage.delete(root, "run1")
    report = migrate(original.path, root, verify=True)
    assert (report.verified, report.is_verified, report.skipped_runs) == (6, True, ["run1"])
    report = migrate(original.path, root, drop_blobs=True)
    assert (report.kept, report.dropped) == (7, ("observation", "render_payload"))
    left_out = original.connection.execute(
        "SELECT run_id, count(*), count(observation) FROM left_out_steps GROUP BY 1"
    )
    assert left_out.fetchall() == [("run1", 7, 7)]


def test_deletion_that_was_interrupted_is_a_deleted_run(
    original: Original, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original.fill(runs=1, episodes=1, steps=3)
    migrate(original.path, root)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(manage, "_delete_steps", killed)
        with pytest.raises(KeyboardInterrupt):
            manage.delete(root, "run0")
    report = migrate(original.path, root, verify=True)
    assert (report.present, report.verified, report.skipped_runs) == (0, 0, ["run0"])


def test_progress_goes_through_all_phases(original: Original, root: Path) -> None:
    original.fill(runs=1, episodes=2, steps=50)
    calls: list[tuple[str, int, int]] = []
    migrate(
        original.path,
        root,
        drop_blobs=True,
        compact=True,
        progress=lambda *call: calls.append(call),
    )
    phases = ["scan", "copy", "verify", "drop", "compact"]
    assert [name for name, _ in itertools.groupby(calls, lambda call: call[0])] == phases
    for phase in phases:
        done = [call[1:] for call in calls if call[0] == phase]
        assert done == sorted(done)
        assert done[-1][0] == done[-1][1]
    assert ("copy", 64, 100) in calls
