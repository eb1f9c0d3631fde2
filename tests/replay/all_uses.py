"""Uses a root of runs in every way, in one process that also records.

Run as `python -m tests.replay.all_uses FOLDER`. It prints each time that Python opened a file of a
database itself, and then `done`; it ends as a killed process does.
"""

import contextlib
import io
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np

import relive
from relive import replay
from relive.cli import main
from relive.replay.manage.compact import vacuum
from relive.replay.migrate import migrate
from relive.replay.storage.layout import arrays_path, database_path

DATABASES = ("telemetry.sqlite", "old.sqlite")
LIVE_STEPS = 30


def watch(folder: Path, opened: list[str]) -> None:
    """Note every database in a folder that is opened, but not by SQLite.

    A WAL may be read: SQLite has no locks on it that closing it would drop.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        name = os.fsdecode(arguments[0])
        is_read_wal = name.endswith("-wal") and arguments[2] & os.O_ACCMODE == os.O_RDONLY
        is_of_database = name.startswith(str(folder)) and Path(name).name.startswith(DATABASES)
        if is_of_database and not is_read_wal:
            opened.append(name)

    sys.addaudithook(hook)


def command(*arguments: object) -> None:
    """Run a command of relive, which must succeed."""
    with contextlib.redirect_stdout(io.StringIO()):
        status = main([str(argument) for argument in arguments])
    assert status == 0, arguments


def record(recorder: replay.ReplayRecorder, first: int, count: int) -> None:
    for number in range(first, first + count):
        recorder.step(
            np.array([number]), number, 0.5, number % 7 == 6, frame=np.zeros((2, 2, 3), np.uint8)
        )
    recorder.flush()


def read(root: Path) -> None:
    opened = relive.open(root)
    assert isinstance(opened, replay.ReplayRoot)
    for run_id, run in opened.items():
        assert run.steps.num_rows == len(run)
        assert [episode.load() for episode in map(run.episodes.episode_at, range(2))], run_id
    assert isinstance(relive.open(arrays_path(root, "done")), replay.ReplayRun)
    with replay.TelemetryStore(root, read_only=True) as store:
        assert len(store.recent_steps(5, resolve=True)) == 5
        assert store.query("SELECT count(*) AS n FROM steps")["n"][0].as_py() >= LIVE_STEPS
    with replay.FrameResolver(root / "replay") as resolver:
        assert resolver.resolve("h5://live/frames/3") is not None
        resolver.list_runs()
    replay.ReplayReader("done", root / "replay").get_step(1)
    replay.list_runs(root)


def old_database(path: Path) -> None:
    client = sqlite3.connect(path)
    client.execute("PRAGMA journal_mode = WAL")
    client.execute(
        "CREATE TABLE steps (episode_id TEXT, step_index INTEGER, action INTEGER, observation BLOB,"
        " reward REAL, terminated INTEGER, truncated INTEGER, info BLOB, render_payload BLOB,"
        " timestamp TEXT, agent_id TEXT, render_hint BLOB, frame_ref TEXT, payload_version INTEGER,"
        " run_id TEXT, worker_id TEXT, space_signature BLOB, vector_metadata BLOB,"
        " time_step INTEGER, game_id TEXT, episode_seed INTEGER)"
    )
    client.execute(
        "CREATE TABLE episodes (episode_id TEXT, total_reward REAL, steps INTEGER, run_id TEXT)"
    )
    client.execute(
        "INSERT INTO steps (episode_id, step_index, action, observation, reward, terminated,"
        " truncated, timestamp) VALUES ('old-ep0000', 0, 1, ?, 1.0, 1, 0, ?)",
        (b"[1.0, 2.0]", "2024-01-01T00:00:00+00:00"),
    )
    client.commit()
    client.close()


def use(folder: Path) -> replay.ReplayRecorder:
    root = folder / "root"
    live = replay.ReplayRecorder(root, "live", config=replay.ReplayConfig(flush_s=3600), live=None)
    record(live, 0, LIVE_STEPS)
    with replay.ReplayRecorder(root, "done", live=None) as recorder:
        record(recorder, 0, 20)
    left = replay.ReplayRecorder(root, "left", live=None)
    record(left, 0, 20)
    left.leave()
    read(root)
    for name in ("info", "head", "stats"):
        for path in (root, arrays_path(root, "done")):
            command(name, path)
    for path in (root, arrays_path(root, "live"), arrays_path(root, "done")):
        command("validate", path, "--level", "full")
    command("recover", root)
    command("replay", "ls", root)
    command("replay", "show", root, "done")
    command("replay", "query", root, "SELECT count(*) FROM steps")
    command("replay", "export", "parquet", root, "--output", folder / "steps.parquet")
    command("replay", "export", "h5", root, "done", "--output", folder / "done.h5")
    shutil.copy(arrays_path(root, "done"), folder / "copy.h5")
    command("info", folder / "copy.h5")
    replay.compact(root, "done")
    replay.archive(root, "done")
    replay.delete(root, "done", archived=True)
    old_database(folder / "old.sqlite")
    migrate(folder / "old.sqlite", root, verify=True, drop_blobs=True, compact=True)
    other = folder / "other"
    with replay.ReplayRecorder(other, "run", live=None) as recorder:
        record(recorder, 0, 10)
    vacuum(other)
    return live


def run() -> None:
    folder = Path(sys.argv[1])
    opened: list[str] = []
    watch(folder, opened)
    live = use(folder)
    sys.stdout.writelines(f"opened {name}\n" for name in opened)
    # As another client that disconnects: a process that has lost its locks loses the journal.
    client = sqlite3.connect(database_path(folder / "root"))
    client.execute("SELECT count(*) FROM steps").fetchall()
    client.close()
    record(live, LIVE_STEPS, 10)
    sys.stdout.write("done\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    run()
