"""Roots that this user may read, but not write: a mount, or the directory of a colleague."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import relive
from relive.errors import ReliveError, StorageError
from relive.replay import ReplayRecorder, ReplayRun, TelemetryStore, validate

NOBODY = 65534


def record(root: Path) -> None:
    with ReplayRecorder(root, "run", live=None) as recorder:
        for number in range(5):
            recorder.step([number], number, 0.5)


def record_followed(root: Path) -> None:
    """Record while somebody follows the run, who is still there when it is closed."""
    record(root)
    run = ReplayRun(root, "run")
    run.refresh()
    with ReplayRecorder(root, "run", live=None):
        run.refresh()


@pytest.fixture(params=[record, record_followed])
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A root with a closed run that only its owner may write."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        request.param(root)
        for path in (root, *root.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield root
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)


def read_all(root: Path) -> None:
    """Read the run in every way."""
    assert list(relive.open(root)) == ["run"]
    run = ReplayRun(root, "run")
    assert run.steps.column("action").to_pylist() == list(range(5))
    assert run.read("observations", range(5)).tolist() == [[number] for number in range(5)]
    with TelemetryStore(root, read_only=True) as store:
        assert store.query("SELECT count(*) AS n FROM steps").column("n").to_pylist() == [5]
    assert validate(root, "full").ok


def read_as_another_user(root: Path, other: Path) -> bool:
    """Read `root` as a user who may not write there; return whether recording is refused."""
    record(other)
    read_all(other)  # imports everything, which the user may not be allowed to
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    read_all(root)
    try:
        ReplayRecorder(root, "other", live=None)
    except ReliveError:
        return True
    return False


def error_as_another_user(root: Path, other: Path) -> tuple[str, str | None]:
    """Read `root` as a user who may not write there; return the error and its hint."""
    record(other)
    read_all(other)
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return error_of(lambda: ReplayRun(root, "run"))


def store_errors_as_another_user(root: Path) -> list[tuple[str, str | None]]:
    """Open the database as a user who may not write there; return the errors and their hints."""
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return [
        error_of(lambda: TelemetryStore(root, read_only=True)),
        error_of(lambda: TelemetryStore(root)),
    ]


def error_of(call: Callable[[], object]) -> tuple[str, str | None]:
    """Return the error of a call, and its hint."""
    try:
        call()
    except StorageError as error:
        return error.message, error.hint
    return "", None


@pytest.mark.parametrize("root", [record], indirect=True)
def test_commits_in_a_log_that_cannot_be_read_there_have_a_hint(root: Path, tmp_path: Path) -> None:
    database = root / "telemetry" / "telemetry.sqlite"
    with ReplayRecorder(tmp_path, "open", live=None) as recorder:
        recorder.step([1.0])
        recorder.flush()
        log = (tmp_path / "telemetry" / f"{database.name}-wal").read_bytes()
    database.parent.chmod(0o755)
    database.with_name(f"{database.name}-wal").write_bytes(log)
    database.parent.chmod(0o555)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(error_as_another_user, root, tmp_path / "other").result(timeout=60)
        stores = pool.submit(store_errors_as_another_user, root).result(timeout=60)
    message, hint = found
    assert stores == [found, (stores[1][0], "pass read_only=True to only read it")]
    assert message.startswith(f"cannot access `{database}`: it was not closed, and ")
    assert f"`{database.name}-shm`" in message
    assert hint is not None
    assert hint.startswith("copy the directory of the runs to where you may write, with its `-wal`")
    assert "relive recover" in hint


def test_a_root_that_cannot_be_written_can_be_read(root: Path, tmp_path: Path) -> None:
    before = {path.name: path.stat().st_size for path in (root / "telemetry").iterdir()}
    assert before.get("telemetry.sqlite-wal", 0) == 0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(read_as_another_user, root, tmp_path).result(timeout=60)
    assert {path.name: path.stat().st_size for path in (root / "telemetry").iterdir()} == before


@pytest.mark.parametrize("root", [record], indirect=True)
def test_a_root_that_was_closed_has_only_its_database(root: Path) -> None:
    assert [path.name for path in (root / "telemetry").iterdir()] == ["telemetry.sqlite"]
