"""Verification finds every difference between a database and a root."""

import contextlib
import itertools
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from relive.errors import AlreadyExistsError, CorruptError
from relive.replay import ReplayRecorder
from relive.replay.migrate import migrate
from relive.replay.storage.layout import arrays_path, database_path
from tests.replay.migrate.original import (
    Original,
    blob,
    checked,
    content,
    frame,
    observation,
)

CHANGES = {
    "render_payload = :frame": "`frames` has another value",
    "observation = :text": "`observation` is None, expected 'text'",
    "observation = NULL": "the root has a value of `observations`, but the source has none",
    "observation = :image": "`observations` has other keys",
    "render_payload = NULL": "`render_payload` is {'mode': 'rgb_array', 'rgb': {'__type__'",
    "info = '{\"number\": 3.0}'": "info['number'] is 3, expected 3.0",
    "info = 'x'": "`info` is not JSON",
    "reward = 1.0000000000000002": "`reward` is 1.0, expected 1.0000000000000002",
    "terminated = 1": "`terminated` is 0, expected True",
    "timestamp = '2024-01-01'": "`ts_ns` is 17",
    "action = 2": "`action` is 3, expected 2",
    "time_step = 4": "`time_step` is 3, expected 4",
}


def test_verify_finds_what_was_changed(original: Original, root: Path) -> None:
    for run, index in itertools.product(range(len(CHANGES)), range(5)):
        original.step(
            f"run{run}-ep0",
            index,
            observation=observation(index),
            render_payload={"mode": "rgb_array", "rgb": frame(index)},
            info={"number": index},
            time_step=index,
        )
    assert checked(migrate(original.path, root, verify=True)).is_verified
    changed = frame(3)
    changed[1, 2, 0] ^= 1
    values = {
        "frame": blob({"mode": "rgb_array", "rgb": changed}),
        "text": blob("text"),
        "image": blob({"image": np.zeros((6, 6, 4), np.float32)}),
    }
    for run, change in enumerate(CHANGES):
        used = {name: value for name, value in values.items() if f":{name}" in change}
        where = f"episode_id = 'run{run}-ep0' AND step_index = 3"
        original.connection.execute(f"UPDATE steps SET {change} WHERE {where}", used)  # noqa: S608
    report = migrate(original.path, root, verify=True)
    assert not report.is_verified
    assert report.problem_count == len(CHANGES)
    for run, (problem, message) in enumerate(zip(report.problems, CHANGES.values(), strict=True)):
        assert (problem.run_id, problem.step_index) == (f"run{run}", 3)
        assert message in problem.message
    with pytest.raises(CorruptError, match=r"differ in 12 steps; nothing was removed.*step 3"):
        migrate(original.path, root, drop_blobs=True)
    assert "observation" in original.columns


def test_verify_finds_damage_in_the_root(original: Original, root: Path) -> None:
    original.fill(runs=2, episodes=1, steps=40)
    migrate(original.path, root)
    path = arrays_path(root, "run0")
    data = bytearray(path.read_bytes())
    (offset,) = (
        sqlite3.connect(database_path(root))
        .execute("SELECT \"offset\" FROM chunks WHERE run_id = 'run0' AND field = 'frames'")
        .fetchone()
    )
    data[offset + 20] ^= 1
    path.write_bytes(data)
    report = migrate(original.path, root, verify=True)
    assert {problem.run_id for problem in report.problems} == {"run0"}
    assert report.problem_count > 0
    with pytest.raises(CorruptError, match="nothing was removed"):
        migrate(original.path, root, drop_blobs=True)


def test_verify_finds_rows_that_were_changed_in_the_root(original: Original, root: Path) -> None:
    original.fill(runs=1, episodes=1, steps=5)
    migrate(original.path, root)
    with contextlib.closing(sqlite3.connect(database_path(root))) as connection:
        connection.execute("UPDATE steps SET reward = 0.5 WHERE step_index = 2")
        connection.commit()
    report = migrate(original.path, root, verify=True)
    assert report.problem_count == 5
    assert "damaged" in report.problems[0].message


def test_steps_that_only_the_root_has_are_counted(original: Original, root: Path) -> None:
    original.fill(runs=1, episodes=2, steps=5)
    migrate(original.path, root)
    original.connection.execute("DELETE FROM steps WHERE rowid > 7")
    report = checked(migrate(original.path, root, verify=True))
    assert (report.present, report.verified, report.extra) == (7, 7, 3)


def test_recorded_run_is_compared_but_not_changed(original: Original, root: Path) -> None:
    with ReplayRecorder(root, "run") as recorder:
        recorder.begin_episode("run-ep0")
        for index in range(3):
            original.step("run-ep0", index, observation=[index, 1.5], render_payload=frame(index))
            recorder.step(
                np.array([index, 1.5]),
                index % 4,
                index / 3,
                frame=frame(index),
                ts_ns=1_714_557_600_000_000_000 + index * 1000 + 7,
            )
    before = content(root)
    report = checked(migrate(original.path, root, verify=True))
    assert (report.present, report.verified) == (3, 3)
    assert content(root) == before
    original.connection.execute("UPDATE steps SET observation = '[2, 1.25]' WHERE step_index = 2")
    report = migrate(original.path, root, verify=True)
    assert [problem.message for problem in report.problems] == ["`observations` has another value"]
    original.step("run-ep0", 3)
    with pytest.raises(AlreadyExistsError, match="was not migrated from"):
        migrate(original.path, root)
    assert content(root) == before


def test_recorded_run_without_arrays_differs(original: Original, root: Path) -> None:
    with ReplayRecorder(root, "run", arrays=False) as recorder:
        recorder.begin_episode("run-ep0")
        recorder.step(action=0, reward=0.0, ts_ns=1_714_557_600_000_000_000)
    original.step("run-ep0", 0, observation=[1.5])
    report = migrate(original.path, root, verify=True)
    assert (report.present, report.problem_count) == (1, 1)
    assert "unknown field" in report.problems[0].message
