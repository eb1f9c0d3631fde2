"""`validate` reports each kind of damage, at the level that reads it, and raises nothing."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relive.errors import InvalidError, NotFoundError
from relive.model.report import Level, Report
from relive.replay import ReplayRecorder, ReplayRun, validate
from relive.replay.manage.runs import delete
from relive.replay.storage import tables
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path
from tests.replay import toy_run

Damage = Callable[[Path], None]
LEVELS: tuple[Level, ...] = ("index", "sample", "full")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed run of 84 steps in 12 commits."""
    return toy_run.record(tmp_path_factory.mktemp("closed") / "root", "run", 12)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose recorder was killed, so that some arrays are in the database."""
    return toy_run.record(tmp_path_factory.mktemp("left") / "root", "run", 3, end="leave")


def chunk(root: Path, field: str, row: int) -> tuple[int, int]:
    """Return the offset and the bytes of a chunk."""
    with Database.open(database_path(root)) as database:
        found = database.rows(
            'SELECT "offset", bytes FROM chunks WHERE field = ? AND first_row = ?', (field, row)
        )
    return int(found[0][0]), int(found[0][1])


def metadata_offset(root: Path) -> int:
    """Return where the metadata of HDF5 is."""
    with Database.open(database_path(root)) as database:
        return int(database.rows("SELECT metadata_offset FROM runs")[0][0])


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0] ^ 1
        file.seek(offset)
        file.write(bytes([byte]))


def sql(statement: str) -> Damage:
    def execute(root: Path) -> None:
        client = sqlite3.connect(database_path(root))
        client.execute(statement)
        client.commit()
        client.close()

    return execute


def flipped_chunk(field: str, row: int) -> Damage:
    def change(root: Path) -> None:
        offset, size = chunk(root, field, row)
        flip(arrays_path(root, "run"), offset + size // 2)

    return change


def metadata(root: Path) -> None:
    with Database.open(database_path(root)) as database:
        offset = database.rows("SELECT metadata_offset FROM runs")[0][0]
    flip(arrays_path(root, "run"), offset + 20)


def forged(statement: str) -> Damage:
    """Change rows of `steps`, and make their checksums right again."""

    def change(root: Path) -> None:
        sql(statement)(root)
        with Database.create(database_path(root)) as database, database.transaction() as connection:
            run = tables.read_run(connection, "run")
            for made in connection.execute("SELECT first_row, rows, crc FROM commits").fetchall():
                rows = connection.execute(
                    f"SELECT {tables.STEPS} FROM steps "  # noqa: S608 - our names
                    "WHERE row >= ? AND row < ? ORDER BY row",
                    (made[0], made[0] + made[1]),
                ).fetchall()
                now = tables.rows_checksum(rows)
                connection.execute(
                    "UPDATE commits SET crc = ? WHERE first_row = ?", (now[2], now[0])
                )
                run.digest += tables._commit_crc(*now) - tables._commit_crc(*made)
            run.digest &= 0xFFFFFFFF
            tables.write_run(connection, run)

    return change


def page(root: Path) -> None:
    """Damage a page of an index of the database, whose rows are not read."""
    path = database_path(root)
    client = sqlite3.connect(path)
    client.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = client.execute("PRAGMA page_size").fetchone()[0]
    number = client.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'idx_steps_run_id'"
    ).fetchone()[0]
    client.close()
    with path.open("r+b") as file:
        file.seek((number - 1) * size + size - 10)
        file.write(bytes(10))


def cut(root: Path) -> None:
    offset, size = chunk(root, "observations/pose", 80)
    os.truncate(arrays_path(root, "run"), offset + size - 1)


CLOSED: dict[str, tuple[Damage, Level, str]] = {
    "the file is shorter": (cut, "index", "run.h5"),
    "the file is missing": (lambda root: arrays_path(root, "run").unlink(), "index", "run.h5"),
    "metadata of HDF5": (metadata, "index", "run.h5"),
    "superblock": (lambda root: flip(arrays_path(root, "run"), 20), "index", "run.h5"),
    "a run": (sql("UPDATE runs SET env_id = 'x'"), "index", "telemetry.sqlite"),
    "an episode": (sql("UPDATE episodes SET total_reward = 0 WHERE number = 1"), "index", "tele"),
    "an episode is missing": (sql("DELETE FROM episodes WHERE number = 3"), "index", "tele"),
    "a column": (sql("UPDATE columns SET spec = '{}' WHERE number = 0"), "index", "tele"),
    "an offset": (sql('UPDATE chunks SET "offset" = 60 WHERE first_row = 4'), "index", "tele"),
    "a chunk is missing": (sql("DELETE FROM chunks WHERE first_row = 4"), "index", "tele"),
    "a checksum of steps": (sql("UPDATE commits SET crc = 5 WHERE first_row = 7"), "index", "tele"),
    "no table": (sql("DROP TABLE chunks"), "index", "tele"),
    "frames": (flipped_chunk("frames", 40), "full", "run.h5"),
    "planes": (flipped_chunk("planes/observations.image", 16), "full", "run.h5"),
    "numbers of planes": (flipped_chunk("stacks/observations.image", 0), "full", "run.h5"),
    "last observations": (flipped_chunk("final/observations/pose", 4), "full", "run.h5"),
    "rewards": (flipped_chunk("rewards", 44), "full", "telemetry.sqlite"),
    "a step": (sql("UPDATE steps SET action = 3 WHERE row = 8"), "full", "tele"),
    "the info of a step": (sql("UPDATE steps SET info = '{}' WHERE row = 8"), "full", "tele"),
    "a step is missing": (sql("DELETE FROM steps WHERE row = 50"), "full", "tele"),
    "steps of another run": (
        sql("INSERT INTO steps SELECT 'x', episode_id, step_index, agent_id, row, action, "
            "action_ref, reward, terminated, truncated, frame_ref, obs_ref, info, ts_ns, timestamp "
            "FROM steps WHERE row < 3"),
        "full",
        "tele",
    ),
    "a reward differs from the arrays": (
        forged("UPDATE steps SET reward = 9 WHERE row = 8"), "full", "tele",
    ),
    "an action differs": (forged("UPDATE steps SET action = 9 WHERE row = 8"), "full", "tele"),
    "a time differs": (forged("UPDATE steps SET ts_ns = 9 WHERE row = 8"), "full", "tele"),
    "an episode differs": (
        forged("UPDATE steps SET episode_id = 'run-ep0000', step_index = 99 WHERE row = 8"),
        "full",
        "tele",
    ),
    "a frame is not referred to": (
        forged("UPDATE steps SET frame_ref = NULL WHERE row = 8"), "full", "tele",
    ),
    "a page of the database": (page, "full", "tele"),
}  # fmt: skip

LEFT: dict[str, tuple[Damage, Level, str]] = {
    "a tail": (sql("UPDATE tail SET data = zeroblob(length(data))"), "sample", "run.h5"),
    "a tail is missing": (sql("DELETE FROM tail WHERE field = 'frames'"), "index", "tele"),
    "the file is missing": (lambda root: arrays_path(root, "run").unlink(), "index", "run.h5"),
}


def check(root: Path, tmp_path: Path, damage: Damage, level: Level, path: str) -> None:
    """Damage a copy; the level and all above must report it, and none may raise an error."""
    copy = tmp_path / "root"
    shutil.copytree(root, copy)
    damage(copy)
    reports = {each: validate(copy, each) for each in LEVELS}
    for each in LEVELS[LEVELS.index(level) :]:
        problems = reports[each].problems
        assert problems, each
        assert any(path in problem.path for problem in problems), problems
        assert {problem.kind for problem in problems} <= {"corrupt", "not-found", "invalid"}
        assert not reports[each].ok
    for each in LEVELS[: LEVELS.index(level)]:
        if level != "full" or each == "index":
            assert reports[each].problems == (), each


@pytest.mark.parametrize("name", CLOSED)
def test_damage_of_a_closed_run_is_reported(closed: Path, tmp_path: Path, name: str) -> None:
    check(closed, tmp_path, *CLOSED[name])


@pytest.mark.parametrize("name", LEFT)
def test_damage_of_a_killed_run_is_reported(left: Path, tmp_path: Path, name: str) -> None:
    check(left, tmp_path, *LEFT[name])


def content(report: Report) -> tuple[Any, ...]:
    return report.ok, dict(report.checked), report.problems, report.unfinished, report.unchecked


@pytest.mark.parametrize("level", LEVELS)
def test_whole_runs_have_no_problems(closed: Path, level: Level) -> None:
    report = validate(closed, level)
    assert report.level == level
    ok, checked, problems, unfinished, unchecked = content(report)
    assert (ok, problems, unfinished, unchecked) == (True, (), (), ())
    assert checked["runs"] == 1
    assert checked["steps"] == {"index": 0, "full": 84}.get(level, checked["steps"])
    assert level != "sample" or 20 <= checked["steps"] <= 84
    with pytest.raises(InvalidError):
        validate(closed, "most")  # type: ignore[arg-type]


def test_unfinished_runs_are_not_problems(left: Path, tmp_path: Path) -> None:
    report = validate(left, "full")
    assert report.problems == ()
    assert [(one.path.name, one.reason) for one in report.unfinished] == [("run.h5", "left")]
    with ReplayRecorder(tmp_path, "live", live=None) as recorder:
        recorder.step([1.0])
        recorder.flush()
        report = validate(tmp_path, "full")
        assert report.problems == ()
        assert [one.reason for one in report.unfinished] == ["locked"]


def test_a_file_of_a_root_is_checked_with_its_database(closed: Path, tmp_path: Path) -> None:
    path = arrays_path(closed, "run")
    report = validate(path, "full")
    assert (dict(report.checked), report.unchecked) == ({"runs": 1, "steps": 84}, ())
    shutil.copytree(closed, tmp_path / "root")
    sql("UPDATE steps SET action = 3 WHERE row = 8")(tmp_path / "root")
    assert not validate(arrays_path(tmp_path / "root", "run"), "full").ok


def test_damage_of_a_file_without_its_database_is_reported(closed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.h5"
    shutil.copy(arrays_path(closed, "run"), copy)
    report = validate(copy, "full")
    assert (report.problems, report.unchecked) == ((), ())
    assert dict(report.checked) == {"runs": 1, "steps": 84}
    offset, size = chunk(closed, "frames", 40)
    flip(copy, offset + size // 2)
    assert {(p.path, p.field) for p in validate(copy, "full").problems} == {(str(copy), "frames")}
    offset, size = chunk(closed, "final/observations/pose", 4)
    flip(copy, offset + size - 1)
    fields = {problem.field for problem in validate(copy, "full").problems}
    assert fields == {"frames", "final.observations.pose"}
    shutil.copy(arrays_path(closed, "run"), copy)
    flip(copy, metadata_offset(closed) + 100)
    for level in LEVELS:
        (problem,) = validate(copy, level).problems
        assert (problem.path, problem.kind) == (str(copy), "corrupt")
    os.truncate(copy, 100)
    assert [problem.path for problem in validate(copy).problems] == [str(copy)]
    copy.write_bytes(b"x")
    assert not validate(copy).ok


def test_several_problems_are_reported_with_their_places(closed: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(closed, root)
    for damage in (flipped_chunk("frames", 8), flipped_chunk("actions", 60)):
        damage(root)
    sql("UPDATE steps SET info = '{}' WHERE row = 15")(root)
    problems = validate(root, "full").problems
    assert {problem.field for problem in problems} >= {"frames", "actions"}
    assert {problem.row for problem in problems if problem.field is None} >= {14}


def test_the_other_runs_of_a_root_are_checked_too(closed: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(closed, root)
    toy_run.record(root, "other", 2)
    toy_run.record(root, "gone", 1)
    delete(root, "gone")
    arrays_path(root, "run").unlink()
    done: list[tuple[int, int | None]] = []
    report = validate(root, "full", progress=lambda count, total: done.append((count, total)))
    assert {Path(problem.path).name for problem in report.problems} == {"run.h5"}
    assert dict(report.checked)["runs"] == 2
    assert done == [(1, 2), (2, 2)]
    assert validate(arrays_path(root, "other"), "full").ok


def test_runs_without_arrays_or_steps_have_no_problems(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "scalars", live=None, arrays=False) as recorder:
        for number in range(5):
            recorder.step([1.0], number, 0.5, terminated=number == 2)
    toy_run.record_nothing(tmp_path)
    toy_run.record_vector(tmp_path)
    with ReplayRecorder(tmp_path, "none", live=None):
        pass
    for level in LEVELS:
        assert validate(tmp_path, level).problems == ()
    assert len(ReplayRun(tmp_path, "empty")) == 0


def test_what_is_not_a_root_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFoundError):
            validate(path)
