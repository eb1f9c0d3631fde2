"""SQLite with arrays as blobs: JSON with nested lists or base64, and PNG."""

from __future__ import annotations

import base64
import io
import json
import sqlite3
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import module
from benches.peers.replay_peer import ROWS_SQL, RUN_ID, Reader, ReplayPeer, Writer, episode_id
from benches.replay.scenes import FRAME, OBSERVATION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benches.replay.scenes import Pixels, Step

COMMIT_ROWS = 1000
FILE = "telemetry.sqlite"
FEWER = {"JSON lists": 40, "JSON base64": 4, "PNG": 4}

_TABLE = """
CREATE TABLE steps (
    run_id TEXT NOT NULL, episode_id TEXT NOT NULL, step_index INTEGER NOT NULL,
    action INTEGER, reward REAL NOT NULL, terminated INTEGER NOT NULL, truncated INTEGER NOT NULL,
    {columns}, timestamp TEXT NOT NULL, PRIMARY KEY (run_id, episode_id, step_index)
)
"""


class SqliteRun(ReplayPeer):
    """A row for each step with its arrays in one of the formats of `FEWER`."""

    family: ClassVar[str] = "sqlite"
    packages: ClassVar[tuple[str, ...]] = ("pillow",)

    def __init__(self, form: str) -> None:
        self._form = form
        self.name = f"SQLite, {form}"
        self.fewer = FEWER[form]

    def writer(self, root: Path, steps: int) -> Writer:
        """A table with two blobs."""
        del steps
        return _Writer(root, _ENCODERS[self._form])

    def reader(self, root: Path) -> Reader:
        """The same, decoded row by row."""
        return _Reader(root, _DECODERS[self._form])


class StepTable:
    """The table of steps, one commit per 1,000 rows, in write-ahead logging mode."""

    def __init__(self, root: Path, columns: Sequence[str], kind: str) -> None:
        self._database = sqlite3.connect(root / FILE, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute(
            _TABLE.format(columns=", ".join(f"{name} {kind}" for name in columns))
        )
        if "frame_ref" in columns:
            self._database.execute("CREATE INDEX idx_steps_frame_ref ON steps (frame_ref)")
            self._database.execute("CREATE INDEX idx_steps_run_id ON steps (run_id)")
        marks = ", ".join("?" * (8 + len(columns)))
        self._insert = f"INSERT INTO steps VALUES ({marks})"  # noqa: S608 - only question marks
        self._waiting = 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows that `row_of` made."""
        if not self._waiting:
            self._database.execute("BEGIN")
        self._database.executemany(self._insert, rows)
        self._waiting += len(rows)
        if self._waiting >= COMMIT_ROWS:
            self._commit()

    def close(self) -> None:
        """Commit and close; SQLite moves its log into the database then."""
        if self._waiting:
            self._commit()
        self._database.close()

    def _commit(self) -> None:
        self._database.execute("COMMIT")
        self._waiting = 0


def row_of(step: Step, *values: Any) -> tuple[Any, ...]:
    """A row of the table: the scalars of a step, and what its further columns have."""
    scalars = (step.step_index, step.action, step.reward, step.terminated, False)
    now = datetime.now(UTC).isoformat()
    return (RUN_ID, episode_id(step.episode), *scalars, *values, now)


def query_rows(database: sqlite3.Connection, episode: int) -> list[tuple[Any, ...]]:
    """The scalars of the steps of an episode."""
    return database.execute(ROWS_SQL, (RUN_ID, episode_id(episode))).fetchall()


class _Writer(Writer):
    def __init__(self, root: Path, encode: Callable[[Pixels], bytes]) -> None:
        self._table = StepTable(root, ("observation", "render_payload"), "BLOB")
        self._encode = encode

    def step(self, step: Step) -> None:
        encode = self._encode
        self._table.add([row_of(step, encode(step.observation), encode(step.frame))])

    def close(self) -> None:
        self._table.close()


class _Reader(Reader):
    def __init__(self, root: Path, decode: Callable[[bytes], Any]) -> None:
        self._database = sqlite3.connect(root / FILE)
        self._decode = decode

    def arrays(self, episode: int, first: int, count: int) -> tuple[Any, Any]:
        del first
        observations = np.empty((count, *OBSERVATION), np.uint8)
        frames = np.empty((count, *FRAME), np.uint8)
        found = self._database.execute(
            "SELECT step_index, observation, render_payload FROM steps "
            "WHERE run_id = ? AND episode_id = ? AND step_index < ?",
            (RUN_ID, episode_id(episode), count),
        )
        for index, observation, frame in found:
            observations[index] = self._decode(observation)
            frames[index] = self._decode(frame)
        return frames, observations

    def rows(self, episode: int) -> Any:
        return query_rows(self._database, episode)

    def close(self) -> None:
        self._database.close()


def _marked(array: Pixels, **rest: Any) -> bytes:
    head = {"__type__": "ndarray", "dtype": array.dtype.str, "shape": array.shape}
    return json.dumps({**head, **rest}).encode()


def _to_lists(array: Pixels) -> bytes:
    return _marked(array, data=array.tolist())


def _from_lists(blob: bytes) -> Any:
    found = json.loads(blob)
    return np.array(found["data"], found["dtype"])


def _to_base64(array: Pixels) -> bytes:
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return _marked(array, encoding="base64", data=data)


def _from_base64(blob: bytes) -> Any:
    found = json.loads(blob)
    return np.frombuffer(base64.b64decode(found["data"]), found["dtype"]).reshape(found["shape"])


def _to_png(array: Pixels) -> bytes:
    file = io.BytesIO()
    module("PIL.Image").fromarray(array).save(file, "PNG")
    return file.getvalue()


def _from_png(blob: bytes) -> Any:
    return np.asarray(module("PIL.Image").open(io.BytesIO(blob)))


_ENCODERS = {"JSON lists": _to_lists, "JSON base64": _to_base64, "PNG": _to_png}
_DECODERS = {"JSON lists": _from_lists, "JSON base64": _from_base64, "PNG": _from_png}
