"""A call continues where another one ended or was killed, and while others write."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relive.errors import InvalidError
from relive.replay import ReplayRun
from relive.replay.migrate import migrate
from tests.replay.migrate.original import (
    Original,
    checked,
    content,
    episodes_of,
    observation,
    old_program,
)


def test_open_episode_is_continued_by_the_next_call(original: Original, root: Path) -> None:
    for index in range(4):
        for episode in range(2):
            original.step(f"run-ep{episode}", index, observation=observation(index))
        report = checked(migrate(original.path, root))
        assert (report.copied, report.present) == (2, 2 * index)
        assert ReplayRun(root, "run").status == "finished"
    original.end("run-ep1", terminated=1)
    report = checked(migrate(original.path, root, verify=True))
    assert (report.copied, report.verified) == (0, 8)
    episodes = episodes_of(root)
    assert [episode["length"] for episode in episodes] == [4, 4]
    assert [episode.status for episode in episodes] == ["truncated", "terminated"]
    assert episodes[1]["metadata"]["end"]["total_reward"] == 1.5
    assert episodes[1].arrays()["step_index"].tolist() == [0, 1, 2, 3]


def test_calls_in_between_do_not_change_the_result(original: Original, tmp_path: Path) -> None:
    original.fill(runs=1, episodes=2, steps=4)
    original.step("run0-ep0002", 0, run_id="run0", observation=observation(1))
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    for last in (2, 3, 7, 9):
        path = tmp_path / f"{last}.sqlite"
        other = sqlite3.connect(path)
        original.connection.backup(other)
        other.execute("DELETE FROM steps WHERE rowid > ?", (last,))
        other.commit()
        other.close()
        checked(migrate(path, parts))
    checked(migrate(original.path, whole))
    assert content(parts) == content(whole)


def test_rows_of_a_live_writer_are_copied(original: Original, root: Path) -> None:
    counts = []
    with old_program(original.path, 400) as writer:
        while writer.poll() is None:
            counts.append(checked(migrate(original.path, root, verify=True)).copied)
    assert sum(map(bool, counts)) >= 2
    report = checked(migrate(original.path, root, verify=True))
    assert report.verified == 400
    assert sum(counts) + report.copied == 400
    run = ReplayRun(root, "run")
    assert [len(episode.rows) for episode in episodes_of(root)] == [50] * 8
    numbers = run.read("observations", np.arange(400))[:, 0]
    assert sorted(numbers.tolist()) == list(range(400))
    assert original.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert original.connection.execute("SELECT count(*) FROM steps").fetchall() == [(400,)]


def test_rows_that_are_deleted_during_a_call_are_left_out(original: Original, root: Path) -> None:
    original.fill(runs=1, episodes=2, steps=5)

    def delete(phase: str, done: int, total: int) -> None:
        if (phase, done) == ("scan", total):
            original.connection.execute("DELETE FROM steps WHERE episode_id = 'run0-ep0001'")

    report = checked(migrate(original.path, root, verify=True, progress=delete))
    assert (report.copied, report.deleted, report.verified) == (5, 5, 5)


def test_renumbered_rows_are_noticed(original: Original, root: Path) -> None:
    original.fill(runs=1, episodes=2, steps=5)
    original.connection.execute("DELETE FROM steps WHERE rowid = 1")

    def renumber(phase: str, done: int, total: int) -> None:
        if (phase, done) == ("scan", total):
            original.connection.execute("VACUUM")

    with pytest.raises(InvalidError, match="renumbered"):
        migrate(original.path, root, progress=renumber)
    assert checked(migrate(original.path, root, verify=True)).verified == 9


MEMORY = """
import resource, sys
from pathlib import Path
from relive.replay.migrate import migrate, target
target._COMMIT_BYTES, target._WRITE_BYTES = 4 << 20, 1 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = migrate(Path(sys.argv[1]), Path(sys.argv[2]), verify=True)
assert report.is_verified
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_depend_on_the_size_of_the_source(
    original: Original, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    grown = []
    for steps in (60, 240):
        original.connection.execute("BEGIN")
        while original.count < steps:
            payload = rng.integers(0, 256, (200, 200, 3), np.uint8)
            original.step("run-ep0", original.count, render_payload=payload)
        original.connection.execute("COMMIT")
        arguments = [original.path, tmp_path / f"root{steps}"]
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        grown.append(int(done.stdout))
    assert grown[1] < grown[0] + 10_000, grown  # the arrays of 180 steps have 21,100 KiB
