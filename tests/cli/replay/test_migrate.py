"""`relive replay migrate`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from relive.replay import ReplayRoot
from relive.replay.manage.runs import archive
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import database_path
from tests.cli.conftest import Relive
from tests.replay.migrate.original import Original


@pytest.fixture
def original(tmp_path: Path) -> Iterator[Original]:
    """Return a database with 2 runs of 3 episodes of 5 steps."""
    made = Original(tmp_path / "old.sqlite")
    made.fill()
    yield made
    made.connection.close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return a directory for the runs, which does not exist."""
    return tmp_path / "new"


def test_steps_are_copied_once(relive: Relive, original: Original, target: Path) -> None:
    done = relive("replay", "migrate", original.path, target)
    assert (done.status, done.err) == (0, "")
    assert done.out == f"{target}: 2 runs, 6 episodes, 30 steps copied\n"
    assert list(ReplayRoot(target)) == ["run0", "run1"]
    original.step("run1-ep0009", 0, run_id="run1")
    done = relive("replay", "migrate", original.path, target, "--verify")
    assert done.out.splitlines() == [
        f"{target}: 2 runs, 7 episodes, 1 step copied, 30 already there",
        "31 steps compared: all are the same",
    ]
    found = relive("replay", "migrate", original.path, target, "--verify", "--json").json
    assert (found["root"], found["copied"], found["present"]) == (str(target), 0, 31)
    assert (found["verified"], found["is_verified"], found["problems"]) == (31, True, [])
    assert relive("validate", target, "--level", "full").status == 0


def test_columns_are_dropped_and_the_database_compacted(
    relive: Relive, original: Original, target: Path
) -> None:
    done = relive("replay", "migrate", original.path, target, "--drop-columns", "--compact")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[1:3] == [
        "30 steps compared: all are the same",
        "columns dropped: observation, render_payload",
    ]
    assert lines[3].startswith("database: ")
    assert "observation" not in original.columns
    done = relive("replay", "migrate", original.path, target, "--drop-columns")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[1] == (
        "30 steps compared, without observation and render_payload, which the database does not "
        "have: the rest is the same"
    )


def test_differences_are_printed_and_nothing_is_dropped(
    relive: Relive, original: Original, target: Path
) -> None:
    assert relive("replay", "migrate", original.path, target).status == 0
    original.connection.execute("UPDATE steps SET reward = 99 WHERE rowid IN (3, 4)")
    done = relive("replay", "migrate", original.path, target, "--verify")
    assert done.status == 1
    *problems, _, last = done.out.splitlines()
    assert len(problems) == 2
    assert all("reward" in problem and "step 1" in problem for problem in problems)
    assert last == "30 steps compared: 2 differ"
    found = relive("replay", "migrate", original.path, target, "--verify", "--json")
    assert (found.status, found.json["problem_count"], found.json["is_verified"]) == (1, 2, False)
    done = relive("replay", "migrate", original.path, target, "--drop-columns")
    assert (done.status, done.out) == (1, "")
    assert "nothing was removed" in done.err
    assert "observation" in original.columns


def test_damaged_row_stops_it_or_is_left_out(
    relive: Relive, original: Original, target: Path
) -> None:
    original.step("run1-ep0002", 5, run_id="run1", observation=b"{")
    done = relive("replay", "migrate", original.path, target)
    assert (done.status, done.out) == (1, "")
    assert done.err.splitlines()[1] == "hint: repair the row, or pass --errors skip to leave it out"
    done = relive("replay", "migrate", original.path, target, "--errors", "skip")
    assert done.status == 3
    assert done.err == "warning: 1 row left out: cannot be read\n"


def test_what_is_left_out_is_named(relive: Relive, original: Original, target: Path) -> None:
    original.step("run1-ep0002", 5, run_id="run1")
    original.step("run1-ep0002", 7, run_id="run1")
    original.step("run1-ep0002", 7, run_id="run1", reward=99.0)
    for arguments in ((), ("--verify",)):
        done = relive("replay", "migrate", original.path, target, *arguments)
        assert done.status == 3
        assert done.err == (
            "warning: 1 row left out: not the same as an earlier row of the same step\n"
        )
        assert done.out.splitlines()[0].endswith(", 1 duplicate row")
    original.step("run1-ep0002", 6, run_id="run1")
    assert "added after a later step" in relive("replay", "migrate", original.path, target).err
    archive(target, "run0")
    original.step("run0-ep0002", 5, run_id="run0")
    done = relive("replay", "migrate", original.path, target)
    assert done.status == 3
    assert "warning: run 'run0' left out: it is archived or deleted\n" in done.err


def test_database_of_the_root_itself(relive: Relive, tmp_path: Path) -> None:
    path = database_path(tmp_path)
    path.parent.mkdir()
    made = Original(path)
    made.fill(runs=1)
    made.connection.close()
    done = relive("info", tmp_path)
    assert done.status == 1
    assert "relive replay migrate" in done.err
    done = relive("replay", "migrate", path)
    assert done.status == 0
    assert done.out.startswith(f"{tmp_path}: 1 run, 3 episodes, 15 steps copied")
    assert done.err == (
        f"the runs are in `{path.parent / 'migrating'}`; --drop-columns moves them to the "
        "database\n"
    )
    done = relive("replay", "migrate", path, "--drop-columns")
    assert (done.status, done.err) == (0, "")
    assert list(ReplayRoot(tmp_path)) == ["run0"]


def test_wrong_input_fails(relive: Relive, original: Original, tmp_path: Path) -> None:
    Database.create(database_path(tmp_path / "runs")).close()
    (tmp_path / "a.txt").write_text("hello" * 1000)
    for path, message in (
        (tmp_path / "no.sqlite", "does not exist"),
        (tmp_path / "a.txt", "not a database"),
        (database_path(tmp_path / "runs"), "telemetry.sqlite"),
    ):
        done = relive("replay", "migrate", path, tmp_path / "new")
        assert (done.status, done.out) == (1, "")
        assert message in done.err
        assert "Traceback" not in done.err
    done = relive("replay", "migrate", original.path)
    assert done.status == 1
    assert done.err.endswith("hint: add the directory of the runs\n")
