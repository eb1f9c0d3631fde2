"""Another process has the database locked: a recorder waits, and loses nothing that it accepted."""

import contextlib
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relive.errors import ClosedError, LockedError, OverloadError
from relive.replay import (
    ReplayConfig,
    ReplayRecorder,
    ReplayRun,
    TelemetrySink,
    TelemetryStore,
)
from relive.replay.storage import connection as connections
from relive.replay.writing.writer import RunWriter


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_BUSY_S", 0.05)


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold a write transaction, as a database browser does."""
    other = sqlite3.connect(
        root / "telemetry/telemetry.sqlite", isolation_level=None, check_same_thread=False
    )
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


def recorder_of(root: Path, **config: Any) -> ReplayRecorder:
    config = {"flush_s": 0.05, **config}
    return ReplayRecorder(root, "run", config=ReplayConfig(**config), live=None)


def actions(root: Path) -> list[Any]:
    run = ReplayRun(root, "run")
    assert run.status == "finished"
    found: list[Any] = run.steps["action"].to_pylist()
    return found


def test_a_recorder_waits_and_says_so_once(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    recorder.step([0.0], 0)
    recorder.sync()
    with warnings.catch_warnings(record=True) as found, locked(tmp_path):
        warnings.simplefilter("always")
        recorder.step([1.0], 1)
        for _ in range(2):
            with pytest.raises(LockedError, match=r"telemetry.sqlite` was locked by another"):
                recorder.flush()
            recorder.step([2.0], 2)
        with pytest.raises(LockedError):
            recorder.sync()
        for _ in range(50):
            recorder.step([3.0], 3, terminated=True)
        assert recorder.stats.committed == 1
    recorder.flush()
    assert recorder.stats.committed == 54
    recorder.close()
    assert actions(tmp_path) == [0, 1, 2, 2, *[3] * 50]
    (warning,) = found
    assert warning.category is RuntimeWarning
    assert "run 'run' waits: `" in str(warning.message)


@pytest.mark.filterwarnings("ignore:run 'run' waits")
@pytest.mark.parametrize("overload", ["drop", "raise", "block"])
def test_a_full_queue_is_handled_as_always(tmp_path: Path, overload: Any) -> None:
    recorder = recorder_of(tmp_path, overload=overload, queue_bytes=4000)
    recorder.step(action=0)
    recorder.sync()
    recorder.step(action=1)
    kept = [0, 1]
    thread = threading.Thread(
        target=lambda: [recorder.step(action=number) for number in range(2, 60)]
    )
    with locked(tmp_path):
        with pytest.raises(LockedError):
            recorder.flush()
        if overload == "block":
            thread.start()
            time.sleep(0.2)
            assert thread.is_alive()
            kept = list(range(60))
        else:
            for number in range(2, 60):
                with contextlib.suppress(OverloadError):
                    if recorder.step(action=number) is not None:
                        kept.append(number)
            assert len(kept) < 30
    if overload == "block":
        thread.join()
    recorder.close()
    assert actions(tmp_path) == kept
    assert recorder.stats.dropped == 60 - len(kept)


@pytest.mark.filterwarnings("ignore:run 'run' waits")
@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_close_that_failed_can_be_called_again(
    tmp_path: Path,
    is_noticed: bool,  # noqa: FBT001
) -> None:
    recorder = recorder_of(tmp_path)
    with locked(tmp_path):
        for number in range(20):
            recorder.step([float(number)], number)
        if is_noticed:
            with pytest.raises(LockedError):
                recorder.flush()
        for _ in range(2):
            with pytest.raises(LockedError, match="call this again") as caught:
                recorder.close()
            assert not getattr(caught.value, "__notes__", [])
        recorder.step([20.0], 20)  # nothing has ended
        with pytest.raises(LockedError):
            recorder.leave()
    recorder.close()
    with pytest.raises(ClosedError):
        recorder.step([21.0], 21)
    assert actions(tmp_path) == [*range(21)]
    assert [len(episode.rows) for episode in ReplayRun(tmp_path, "run").episodes] == [21]


def test_a_close_that_failed_at_its_end_can_be_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is taken after everything was written, and before the file is complete."""
    recorder = recorder_of(tmp_path, flush_s=3600.0, sync_episodes=False)
    for number in range(5):
        recorder.step([float(number)], number)
    for name in ("_commit", "_commit_tables"):
        original = getattr(RunWriter, name)

        def then_locked(
            self: RunWriter, *, sync: bool, name: str = name, original: Any = original
        ) -> Any:
            monkeypatch.setattr(RunWriter, name, original)
            with locked(tmp_path):
                return original(self, sync=sync)

        monkeypatch.setattr(RunWriter, name, then_locked)
        with pytest.raises(LockedError, match="call this again"):
            recorder.close()
        with pytest.raises(ClosedError):
            recorder.step([5.0], 5)
    recorder.close()
    assert actions(tmp_path) == [*range(5)]
    with recorder_of(tmp_path) as recorder:
        recorder.step([5.0], 5)
    assert ReplayRun(tmp_path, "run").read("observations", range(6))[:, 0].tolist() == [*range(6)]


@pytest.mark.filterwarnings("ignore:run 'run' waits")
def test_a_locked_recorder_can_be_aborted(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    recorder.step(action=0)
    recorder.sync()
    with locked(tmp_path):
        recorder.step(action=1)
        with pytest.raises(LockedError):
            recorder.abort()
    recorder.abort()
    assert not list((tmp_path / "replay").glob("*.h5"))


@pytest.mark.filterwarnings("ignore:run 'run' waits")
def test_a_sink_that_could_not_be_closed_can_be_closed_again(tmp_path: Path) -> None:
    with TelemetryStore(tmp_path, keep_blobs=True) as store:
        sink = TelemetrySink(store)
        sink.put({"run_id": "run", "action": 0})
        sink.flush()
        sink.put({"run_id": "run", "action": 1})
        with locked(tmp_path), pytest.raises(LockedError):
            sink.close()
        sink.close()
        sink.close()
    assert actions(tmp_path) == [0, 1]
    with contextlib.closing(sqlite3.connect(tmp_path / "telemetry/telemetry.sqlite")) as client:
        assert client.execute("SELECT action FROM original_steps").fetchall() == [(0,), (1,)]


PROGRAM = """
import sys
from relive.replay import ReplayConfig, ReplayRecorder
from relive.replay.storage import connection

connection._BUSY_S = 0.05

def main():
    recorder = ReplayRecorder(sys.argv[1], "run", config=ReplayConfig(flush_s=0.05), live=None)
    recorder.step([0.0], 0)
    recorder.sync()
    print("synced", flush=True)
    sys.stdin.readline()
    for number in range(1, 50):
        recorder.step([float(number)], number)
    if sys.argv[2] == "exit":
        sys.modules["kept"] = recorder

main()
print("ends", flush=True)
"""


@pytest.mark.parametrize("end", ["drop", "exit"])
def test_a_program_that_ends_waits_for_the_lock(end: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "synced\n"
        with locked(tmp_path):
            process.stdin.write("go on\n")
            process.stdin.flush()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1.0)
        assert process.stdout.readline() == "ends\n"
        assert process.wait(60) == 0
    run = ReplayRun(tmp_path, "run")
    assert run.status == "interrupted"
    assert run.steps["action"].to_pylist() == list(range(50))


@pytest.mark.filterwarnings("ignore:run 'run' waits", "ignore:the writer of:ResourceWarning")
def test_a_recorder_that_is_dropped_meanwhile_releases_its_run(tmp_path: Path) -> None:
    recorder = [recorder_of(tmp_path)]
    recorder[0].step([0.0], 0)
    recorder[0].sync()
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(tmp_path))
        recorder[0].step([1.0], 1)
        unlock = threading.Timer(0.3, stack.pop_all().close)
        unlock.start()
        recorder.clear()  # waits for it
        unlock.join()
    with recorder_of(tmp_path) as again:
        again.step([2.0], 2)
    assert actions(tmp_path) == [0, 1, 2]
