"""Every recorder of a run is a session of it: what it was given, and where its steps begin."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from relive.errors import CorruptError, InvalidTypeError
from relive.replay import (
    ReplayRecorder,
    ReplayRun,
    TelemetryStore,
    compact,
    delete,
    recover,
    validate,
)
from relive.replay.export import export_h5
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path
from relive.replay.writing import writer
from tests.golden.replay.assemble import unpack


def record(root: Path, steps: int = 2, run_id: str = "run", **about: Any) -> None:
    with ReplayRecorder(root, run_id, live=None, **about) as recorder:
        for number in range(steps):
            recorder.step([0.5], number, 1.0, terminated=number == steps - 1)


def sessions(path: Path, run_id: str | None = "run") -> list[tuple[Any, ...]]:
    run = ReplayRun(path, run_id)
    return [(each.first_row, each.steps, each.seed, each.metadata) for each in run.sessions]


def test_sessions_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = iter(["a" * 40, "b" * 40])
    monkeypatch.setattr(writer, "git_state", lambda _: {"commit": next(commits)})
    record(tmp_path, 2, seed=1, metadata={"lr": 0.1})
    record(tmp_path, 3, seed=2, metadata={"lr": 0.2}, resume=True)
    run = ReplayRun(tmp_path, "run")
    assert sessions(tmp_path) == [(0, 2, 1, {"lr": 0.1}), (2, 3, 2, {"lr": 0.2})]
    assert [each.number for each in run.sessions] == [0, 1]
    assert [each.git for each in run.sessions] == [{"commit": "a" * 40}, {"commit": "b" * 40}]
    created, continued = (each.started_ns for each in run.sessions)
    assert run.info["created_ns"] == created < continued < run.info["ended_ns"]
    assert (run.info["seed"], run.info["metadata"]) == (1, {"lr": 0.1})
    assert validate(tmp_path, "full").ok


def test_other_metadata_are_a_warning(tmp_path: Path) -> None:
    record(tmp_path, metadata={"lr": 0.1, "b": 1})
    record(tmp_path)
    record(tmp_path, metadata={"b": 1, "lr": 0.1})
    with pytest.warns(RuntimeWarning, match=r"run 'run' has the metadata .*resume=True") as caught:
        record(tmp_path, metadata={"lr": 0.2})
    assert caught[0].filename == __file__
    assert ReplayRun(tmp_path, "run").info["metadata"] == {"lr": 0.1, "b": 1}
    assert [each[3] for each in sessions(tmp_path)][1:] == [None, {"b": 1, "lr": 0.1}, {"lr": 0.2}]


def test_warning_that_is_an_error_leaves_the_run_free(tmp_path: Path) -> None:
    record(tmp_path, metadata={"lr": 0.1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            record(tmp_path, metadata={"lr": 0.2})
    with pytest.raises(InvalidTypeError, match="`resume` must be True or False"):
        ReplayRecorder(tmp_path, "other", resume="allow")  # type: ignore[arg-type]
    record(tmp_path)
    assert len(sessions(tmp_path)) == 2


def test_metadata_that_come_later_are_those_of_their_session(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path, metadata={"lr": 0.2}, seed=3)
    assert sessions(tmp_path) == [(0, 2, None, None), (2, 2, 3, {"lr": 0.2})]
    assert ReplayRun(tmp_path, "run").info["metadata"] == {"lr": 0.2}


def test_session_that_is_aborted_leaves_nothing(tmp_path: Path) -> None:
    record(tmp_path, seed=1)
    recorder = ReplayRecorder(tmp_path, "run", seed=2, live=None)
    recorder.step([0.5])
    recorder.flush()
    assert len(sessions(tmp_path)) == 2
    recorder.abort()
    assert sessions(tmp_path) == [(0, 2, 1, None)]
    assert validate(tmp_path, "full").ok


def test_recovery_and_compaction_are_no_sessions(tmp_path: Path) -> None:
    record(tmp_path, seed=1)
    recorder = ReplayRecorder(tmp_path, "run", seed=2, live=None)
    recorder.step([0.5])
    recorder.leave()
    expected = [(0, 2, 1, None), (2, 1, 2, None)]
    assert sessions(tmp_path) == expected
    assert [run.run_id for run in recover(tmp_path).runs] == ["run"]
    compact(tmp_path, "run", codec="deflate")
    assert sessions(tmp_path) == expected


def test_refresh_finds_the_sessions_that_were_begun(tmp_path: Path) -> None:
    record(tmp_path, seed=1)
    run = ReplayRun(tmp_path, "run")
    before = run.source
    record(tmp_path, seed=2)
    run.refresh()
    assert [each.seed for each in run.sessions] == [1, 2]
    assert run.source.continues(before)


@pytest.mark.needs("h5py", "hdf5plugin")
def test_copies_of_the_file_have_them(tmp_path: Path) -> None:
    record(tmp_path / "root", seed=1)
    record(tmp_path / "root", seed=2, metadata={"a": [1]})
    expected = [(0, 2, 1, None), (2, 2, 2, {"a": [1]})]
    shutil.copy(arrays_path(tmp_path / "root", "run"), tmp_path / "copy.h5")
    export_h5(tmp_path / "root", "run", tmp_path / "export.h5")
    for name in ("copy.h5", "export.h5"):
        assert sessions(tmp_path / name, None) == expected


@pytest.mark.parametrize(
    "change", ["UPDATE sessions SET seed = 9 WHERE number = 0", "DELETE FROM sessions"]
)
def test_changed_rows_are_damage(change: str, tmp_path: Path) -> None:
    record(tmp_path, seed=1)
    with Database.create(database_path(tmp_path)) as database:
        database.rows(change)
    with pytest.raises(CorruptError):
        ReplayRun(tmp_path, "run")
    assert not validate(tmp_path, "index").ok


def test_deleted_run_has_none(tmp_path: Path) -> None:
    record(tmp_path)
    delete(tmp_path, "run")
    with TelemetryStore(tmp_path, read_only=True) as store:
        assert store.query("SELECT * FROM sessions").num_rows == 0
    assert validate(tmp_path, "full").ok


def test_run_of_the_first_version_has_one_session_and_can_be_aborted(tmp_path: Path) -> None:
    root = unpack("closed", tmp_path)
    before = database_path(root).read_bytes()
    run = ReplayRun(root, "interleaved")
    (first,) = run.sessions
    assert (first.first_row, first.steps, first.seed) == (0, len(run), 7)
    assert (first.metadata, first.git) == (run.info["metadata"], run.info["git"])
    assert database_path(root).read_bytes() == before
    recorder = ReplayRecorder(root, "interleaved", live=None, seed=8)
    recorder.begin_episode("aborted")
    recorder.end_episode()
    recorder.flush()
    assert [each.seed for each in ReplayRun(root, "interleaved").sessions] == [7, 8]
    recorder.abort()
    assert [each.seed for each in ReplayRun(root, "interleaved").sessions] == [7]
    assert validate(root, "full").ok
