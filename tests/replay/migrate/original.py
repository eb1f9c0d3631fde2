"""Databases as the original writes them, and what a migration makes of them."""

import base64
import contextlib
import itertools
import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relive.replay import ReplayEpisode, ReplayRoot, ReplayRun
from relive.replay.migrate import ORIGINAL, MigrationReport
from tests.replay.migrate import old_program as old_program_script

Encoding = Literal["base64", "lists", "plain"]


STEPS = """CREATE TABLE steps (
    episode_id TEXT NOT NULL, step_index INTEGER NOT NULL, action INTEGER, observation BLOB,
    reward REAL NOT NULL, terminated INTEGER NOT NULL, truncated INTEGER NOT NULL, info BLOB,
    render_payload BLOB, timestamp TEXT NOT NULL, agent_id TEXT, render_hint BLOB, frame_ref TEXT,
    payload_version INTEGER NOT NULL DEFAULT 0, run_id TEXT, worker_id TEXT, space_signature BLOB,
    vector_metadata BLOB, time_step INTEGER, game_id TEXT, episode_seed INTEGER)"""


EPISODES = """CREATE TABLE episodes (
    episode_id TEXT PRIMARY KEY, total_reward REAL NOT NULL, steps INTEGER NOT NULL,
    terminated INTEGER NOT NULL, truncated INTEGER NOT NULL, metadata BLOB,
    timestamp TEXT NOT NULL, agent_id TEXT, run_id TEXT, worker_id TEXT)"""


def encoded(value: Any, encoding: Encoding = "base64") -> Any:
    """Return a value as the original's JSON has it."""
    if isinstance(value, np.ndarray):
        return encoded_array(value, encoding)
    if isinstance(value, tuple | set):
        items = [encoded(item, encoding) for item in value]
        return {"__type__": type(value).__name__, "data": items}
    if isinstance(value, list):
        return [encoded(item, encoding) for item in value]
    if isinstance(value, dict):
        return {key: encoded(item, encoding) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        value = {"__type__": "float", "value": repr(value)}
    elif isinstance(value, bytes):
        value = {"__type__": "bytes", "data": base64.b64encode(value).decode()}
    elif isinstance(value, datetime):
        value = {"__type__": "datetime", "value": value.isoformat()}
    return value


def encoded_array(array: npt.NDArray[Any], encoding: Encoding) -> Any:
    if encoding == "plain":
        return array.tolist()
    made = {"__type__": "ndarray", "dtype": str(array.dtype), "shape": list(array.shape)}
    if encoding == "lists" and array.dtype.kind != "c":
        return {**made, "data": array.tolist()}
    return {**made, "encoding": "base64", "data": base64.b64encode(array.tobytes()).decode()}


def blob(value: Any, encoding: Encoding = "base64") -> bytes | None:
    return None if value is None else json.dumps(encoded(value, encoding)).encode()


class Original:
    """Writes databases as the original does."""

    BLOBS = ("observation", "info", "render_payload", "render_hint", "space_signature")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(STEPS)
        self.connection.execute(EPISODES)
        self.count = 0

    def step(
        self, episode_id: str, step_index: int, *, encoding: Encoding = "base64", **columns: Any
    ) -> int:
        """Insert a step, and return its rowid."""
        row = {
            "episode_id": episode_id,
            "step_index": step_index,
            "action": step_index % 4,
            "reward": step_index / 3,
            "terminated": 0,
            "truncated": 0,
            "timestamp": f"2024-05-01T10:00:00.{self.count:06d}",
            **columns,
        }
        for name in (*self.BLOBS, "vector_metadata"):
            if name in row and not isinstance(row[name], bytes):
                row[name] = blob(row[name], encoding)
        self.count += 1
        names = ", ".join(row)
        marks = ", ".join("?" * len(row))
        sql = f"INSERT INTO steps ({names}) VALUES ({marks})"  # noqa: S608 - names of the test
        rowid = self.connection.execute(sql, tuple(row.values())).lastrowid
        assert rowid is not None
        return rowid

    def end(self, episode_id: str, *, terminated: int = 0, **columns: Any) -> None:
        """Insert the row of an episode that is over."""
        row = {
            "episode_id": episode_id,
            "total_reward": 1.5,
            "steps": 3,
            "terminated": terminated,
            "truncated": 1 - terminated,
            "metadata": blob({"player": "random"}),
            "timestamp": "2024-05-01T11:00:00",
            **columns,
        }
        names = ", ".join(row)
        marks = ", ".join("?" * len(row))
        sql = f"INSERT INTO episodes ({names}) VALUES ({marks})"  # noqa: S608 - names of the test
        self.connection.execute(sql, tuple(row.values()))

    @property
    def columns(self) -> list[str]:
        """The columns that the steps have now."""
        return [row[1] for row in self.connection.execute("PRAGMA table_info(steps)")]

    def fill(self, runs: int = 2, episodes: int = 3, steps: int = 5) -> int:
        """Insert steps of some runs, interleaved, and return how many."""
        for episode, index, run in itertools.product(range(episodes), range(steps), range(runs)):
            number = run * 100 + episode * 10 + index
            self.step(
                f"run{run}-ep{episode:04d}",
                index,
                run_id=f"run{run}",
                observation=observation(number),
                render_payload={"mode": "rgb_array", "rgb": frame(number)},
                info={"number": number},
                terminated=int(index == steps - 1),
                time_step=number,
                episode_seed=episode,
                game_id="Pong-v5",
            )
        return runs * episodes * steps


def frame(number: int) -> npt.NDArray[np.uint8]:
    return (np.arange(60).reshape(4, 5, 3) + number).astype(np.uint8)


def observation(number: int) -> dict[str, Any]:
    planes = [np.full((6, 6), max(0, number - back), np.float32) for back in (3, 2, 1, 0)]
    return {"image": np.stack(planes, axis=-1), "pose": (np.arange(3) + number / 7, number)}


def episodes_of(root: Path, run_id: str = "run") -> list[ReplayEpisode]:
    episodes = ReplayRun(root, run_id).episodes
    return [episodes.episode_at(position) for position in range(len(episodes))]


def arrays_at(run: ReplayRun, field: str, row: int) -> Any:
    """Return the value of a field in a row, nested as it is stored."""

    def first(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: first(value) for key, value in values.items()}
        return tuple(map(first, values)) if isinstance(values, tuple) else values[0]

    return first(run.read(field, [row]))


def columns_of(run: ReplayRun, row: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of the source that a step has as JSON, and the fields of its arrays."""
    step = run.step(row)
    episode = run.episode(step.episode_id, step.agent_id)
    own = step.info.get(ORIGINAL, {})
    shared = episode["metadata"]["columns"]
    return {**shared, **own.get("columns", {})}, own.get("fields", {})


def restored(run: ReplayRun, row: int, field: str = "observations") -> Any:
    """Return an observation or action as the source has it: JSON, with arrays in their places."""
    column = {"observations": "observation", "actions": "action"}[field]
    columns, fields = columns_of(run, row)
    rest = columns.get(column)
    place = fields.get(field, field)
    step = run.step(row)
    has_arrays = step.obs_ref is not None if field == "observations" else step.action is not None
    if place is None or not (has_arrays or field in fields):
        return rest
    stored = arrays_at(run, place, row)
    if rest is None:
        return stored

    def merged(rest: Any, stored: Any) -> Any:
        if rest == {"__type__": "stored"}:
            return stored
        if isinstance(rest, dict) and rest.get("__type__") == "tuple":
            return {**rest, "data": merged(rest["data"], stored)}
        if isinstance(rest, dict):
            inner = stored if isinstance(stored, dict) else {}
            return {key: merged(value, inner.get(key)) for key, value in rest.items()}
        if isinstance(rest, list):
            if isinstance(stored, tuple):
                stored = {str(place): value for place, value in enumerate(stored)}
            inner = stored or {}
            return [merged(value, inner.get(str(place))) for place, value in enumerate(rest)]
        return rest

    return merged(rest, stored)


def same(got: Any, document: Any) -> bool:
    """Compare what was restored with a document of the source."""
    if isinstance(got, np.ndarray | np.generic):
        return same_array(got, document)
    if isinstance(got, tuple):
        items = document["data"] if isinstance(document, dict) else document
        return len(got) == len(items) and all(map(same, got, items))
    if isinstance(got, dict) and isinstance(document, dict):
        return got.keys() == document.keys() and all(same(got[k], document[k]) for k in got)
    if isinstance(got, list) and isinstance(document, list):
        return len(got) == len(document) and all(map(same, got, document))
    return json.dumps(got) == json.dumps(document)


def same_array(got: Any, document: Any) -> bool:
    if not isinstance(document, dict) or document["__type__"] == "float":
        return bool(np.array_equal(got, numbers(document), equal_nan=got.dtype.kind == "f"))
    dtype = np.dtype(document["dtype"])
    if "encoding" in document:
        wanted = np.frombuffer(base64.b64decode(document["data"]), dtype)
    else:
        wanted = np.array(document["data"], dtype)
    wanted = wanted.reshape(document["shape"]).astype(dtype.newbyteorder("<"))
    return bool(got.shape == wanted.shape and got.tobytes() == wanted.tobytes())


def numbers(document: Any) -> Any:
    """Return nested lists with the numbers that JSON does not have."""
    if isinstance(document, dict):
        return float(document["value"])
    return list(map(numbers, document)) if isinstance(document, list) else document


def content(root: Path) -> dict[str, Any]:
    """Return everything that the runs of a root have, except uids and times of the migration."""
    found: dict[str, Any] = {}
    for run_id, run in sorted(ReplayRoot(root).items()):
        found[run_id] = {
            "status": run.status,
            "times": (run.info["created_ns"], run.info["ended_ns"]),
            "steps": run.steps.to_pylist(),
            "episodes": [dict(episode.statics) for episode in run.episodes],
            "arrays": {
                name: run.read(name, np.arange(len(run))).tobytes() for name in sorted(run.fields)
            },
        }
    return found


def checked(report: MigrationReport) -> MigrationReport:
    """Check that a report counts every row once, and that nothing differs."""
    counted = report.copied + report.present + report.duplicates + report.damaged
    assert report.rows == counted + report.late + report.deleted
    assert report.problems == []
    return report


@contextlib.contextmanager
def old_program(database: Path, steps: int) -> Iterator["subprocess.Popen[str]"]:
    """Let another process write steps as the original does; it is not to fail."""
    command = [sys.executable, old_program_script.__file__, str(database), str(steps)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        yield writer
    assert writer.returncode == 0
