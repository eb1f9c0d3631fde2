"""A database whose ids of runs are paths: nothing outside of its root is read, written or removed.

The checksums are right: whoever makes such a database computes them.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import relive
from relive.cli import main
from relive.errors import CorruptError, InvalidError
from relive.replay import (
    FrameResolver,
    ReplayRecorder,
    ReplayRoot,
    ReplayRun,
    TelemetryStore,
    archive,
    compact,
    delete,
    list_runs,
    prune,
    recover,
    validate,
)
from relive.replay.export import export_h5, export_parquet
from relive.replay.manage.compact import vacuum
from relive.replay.manage.runs import prunable, run_ids, unfinished_deletions
from relive.replay.migrate import migrate
from relive.replay.storage import tables
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path, lock_path, replacement_path

HOSTILE: Final = "../../other/replay/victim"
OWN: Final = "own"
COMMANDS: Final = (
    "replay ls {root}",
    "replay show {root} {hostile}",
    "replay show {root} -1",
    "replay rm {root} {hostile} --yes",
    "replay rm {root} {hostile} --yes --damaged --archived",
    "replay prune {root} --keep 0 --yes --interrupted",
    "replay compact {root}",
    "replay archive {root} {hostile}",
    "recover {root}",
    "validate {root} --level full",
    "info {root}",
    "head {root}",
    "stats {root}",
)


def rename(root: Path, old: str, new: Any, **values: Any) -> None:
    """Give a run another id and other values, with checksums that are right."""
    with (
        Database.create(database_path(root)) as database,
        database.transaction() as connection,
    ):
        known = tables.RunTables.read(connection, old)
        for table in ("runs", *tables.RUN_TABLES):
            connection.execute(
                f"UPDATE {table} SET run_id = ? WHERE run_id = ?",  # noqa: S608 - our names
                (new, old),
            )
        digest = known.run.digest
        for session in known.sessions:
            digest -= tables._session_crc(session.values())
            session.run_id = new
            digest += tables._session_crc(session.values())
        for episode in known.episodes:
            digest -= tables._episode_crc(episode.values())
            episode.run_id = new
            digest += tables._episode_crc(episode.values())
        for first, rows, crc in known.commits:
            found = connection.execute(
                f"SELECT {tables.STEPS} FROM steps WHERE run_id = ? AND row >= ? AND row < ? "  # noqa: S608
                "ORDER BY row",
                (new, first, first + rows),
            ).fetchall()
            made = tables.rows_checksum(found)
            connection.execute(
                "UPDATE commits SET crc = ? WHERE run_id = ? AND first_row = ?",
                (made[2], new, first),
            )
            digest += tables._commit_crc(*made) - tables._commit_crc(first, rows, crc)
        run = known.run
        run.run_id, run.digest = new, digest % 2**32
        for name, value in values.items():
            setattr(run, name, value)
        tables.write_run(connection, run)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with two roots: one to attack, and one with two runs of its own."""
    folder = tmp_path_factory.mktemp("roots")
    for root, run_id in (("other", "victim"), ("hostile", OWN), ("hostile", "x")):
        with ReplayRecorder(folder / root, run_id) as recorder:
            for number in range(3):
                recorder.step([0.5], number, 1.0, terminated=number == 2)
    (folder / "other" / "replay" / ".victim.1.h5").write_bytes(b"not to be removed")
    return folder


@pytest.fixture(params=["recording", "finished", "deleted", "replaced"])
def root(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a root with a run of its own, and one whose id is the path of another root's."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    found = tmp_path / "hostile"
    values = {"status": request.param}
    rename(found, "x", HOSTILE, **values if request.param != "replaced" else {"arrays_pending": 1})
    before = contents(tmp_path / "other")
    yield found
    assert contents(tmp_path / "other") == before
    assert {path.name for path in tmp_path.iterdir()} == {"hostile", "other"}
    assert not [path for path in (found / "replay").iterdir() if path.is_dir()]


@pytest.fixture
def status(root: Path) -> str:
    with Database.open(database_path(root)) as database:
        ((found,),) = database.rows("SELECT status FROM runs WHERE run_id = ?", (HOSTILE,))
    return str(found)


@pytest.mark.parametrize("path", [arrays_path, lock_path, replacement_path])
@pytest.mark.parametrize("run_id", ["../x", "/x", "", ".", "..", "a/b", "a\0", "é", b"x", 5, None])
def test_no_path_is_made_of_an_id_that_no_run_can_have(
    path: Callable[..., Path], run_id: Any, tmp_path: Path
) -> None:
    with pytest.raises(CorruptError, match="is stored as the id of a run, but cannot be one"):
        path(tmp_path, run_id, *[1][: path is replacement_path])


def test_lists_show_that_the_run_is_damaged(root: Path, status: str) -> None:
    damaged = [HOSTILE] if status != "deleted" else []
    assert [run.run_id for run in list_runs(root) if run.status == "damaged"] == damaged
    assert run_ids(root) == [OWN]
    with TelemetryStore(root, read_only=True) as store:
        assert [run["run_id"] for run in store.runs() if run["status"] == "damaged"] == damaged
        assert [step.run_id for step in store.recent_steps(run_id=OWN, resolve=True)] == [OWN] * 3
        with pytest.raises(CorruptError):
            store.run_status(HOSTILE)
    with FrameResolver(root / "replay") as resolver:
        assert resolver.list_runs() == [OWN, "x"]  # the file of x is still there
        assert resolver.get_run_info(HOSTILE) is None
        assert resolver.resolve(f"h5://{HOSTILE}/observations/0") is None
    opened = relive.open(root, errors="skip")
    assert (list(opened), len(opened.damaged)) == ([OWN], len(damaged))
    for run_id in damaged:
        with pytest.raises(CorruptError):
            ReplayRoot(root)[run_id]


def test_recovery_and_validation_report_the_run(root: Path, status: str) -> None:
    expected = int(status != "deleted")
    found = recover(root)
    assert (found.runs, found.compacted, len(found.problems)) == ((), (), expected)
    report = validate(root, "full")
    assert [problem.kind for problem in report.problems] == ["corrupt"] * expected


def test_nothing_is_deleted_or_rewritten(root: Path, tmp_path: Path) -> None:
    assert unfinished_deletions(root) == []
    assert [run.run_id for run in prunable(root, 0, interrupted=True)] == [OWN]
    assert [run.run_id for run in prune(root, 0, interrupted=True)] == [OWN]
    stored: tuple[Callable[[], object], ...] = (
        lambda: archive(root, HOSTILE),
        lambda: delete(root, HOSTILE, archived=True, damaged=True),
        lambda: compact(root, HOSTILE),
        lambda: compact(root, HOSTILE, dry_run=True),
    )
    for call in stored:
        with pytest.raises(CorruptError, match="is stored as the id of a run, but") as caught:
            call()
        assert str(database_path(root)) in caught.value.message
    for call in (
        lambda: ReplayRun(root, HOSTILE),
        lambda: archive(root, "../x"),  # which is not stored
        lambda: ReplayRecorder(root, HOSTILE),
        lambda: export_h5(root, HOSTILE, root / "x.h5"),
        lambda: export_parquet(root, root / "x.parquet", run_id=HOSTILE),
        lambda: migrate(database_path(root), root),
    ):
        with pytest.raises(InvalidError):
            call()


def test_all_runs_are_exported_only_if_all_can_be_read(root: Path, status: str) -> None:
    if status == "deleted":
        assert export_parquet(root, root / "x.parquet") == 3
    else:
        with pytest.raises(CorruptError, match="is stored as the id of a run, but") as caught:
            export_parquet(root, root / "x.parquet")
        assert caught.value.message.startswith(f"`{database_path(root)}`: ")
    if status != "recording":
        vacuum(root)


def test_commands_end_with_a_status(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        filled = [part.format(root=root, hostile=HOSTILE) for part in command.split()]
        assert main(filled) in {0, 1, 2, 3}, command
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("run_id", [b"x", "own/../own", "."])
def test_ids_of_any_type_are_reported(run_id: Any, tmp_path: Path) -> None:
    for name in (OWN, "x"):
        with ReplayRecorder(tmp_path, name) as recorder:
            recorder.step([0.5])
    rename(tmp_path, "x", run_id if isinstance(run_id, str) else "bytes")
    if isinstance(run_id, bytes):
        with Database.create(database_path(tmp_path)) as database:
            database.rows("UPDATE runs SET run_id = ? WHERE run_id = 'bytes'", (run_id,))
    assert [run.status for run in list_runs(tmp_path)] == ["finished", "damaged"]
    assert len(recover(tmp_path).problems) == 1
    assert not validate(tmp_path).ok


def test_version_of_a_file_that_is_a_path_is_damage(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "x") as recorder:
        recorder.step([0.5])
    rename(tmp_path, "x", "x", arrays_version="/../../other", arrays_pending=1)
    assert [run.status for run in list_runs(tmp_path)] == ["damaged"]
    assert len(recover(tmp_path).problems) == 1
