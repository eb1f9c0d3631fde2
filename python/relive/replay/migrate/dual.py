"""Writes steps a second time, as the original does: with their arrays as JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from relive.errors import InvalidError, LockedError
from relive.replay.migrate import blobs
from relive.replay.migrate.rows import BLOBS
from relive.replay.storage.connection import Database
from relive.replay.storage.values import stored_action

_Values: TypeAlias = tuple[Any, ...]
"""Action, observation, reward, flags, info and frame of a step; all but numbers as JSON."""

_WRITE_STEPS: Final = 64
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS original_steps (
    episode_id TEXT NOT NULL,
    step_index INTEGER NOT NULL,
    action,
    observation BLOB,
    reward REAL,
    terminated INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    info BLOB,
    render_payload BLOB,
    timestamp TEXT NOT NULL,
    agent_id TEXT,
    render_hint BLOB,
    frame_ref TEXT,
    payload_version INTEGER NOT NULL DEFAULT 0,
    run_id TEXT,
    worker_id TEXT,
    space_signature BLOB,
    vector_metadata BLOB,
    time_step INTEGER,
    game_id TEXT,
    episode_seed INTEGER
)
"""
_INSERT: Final = """
INSERT INTO original_steps (
    episode_id, step_index, action, observation, reward, terminated, truncated, info,
    render_payload, timestamp, agent_id, frame_ref, run_id, episode_seed
)
SELECT s.episode_id, s.step_index, ?, ?, ?, ?, ?, ?, ?,
    s.timestamp, nullif(s.agent_id, ''), s.frame_ref, s.run_id, e.seed
FROM steps AS s
JOIN episodes AS e USING (run_id, episode_id, agent_id)
WHERE s.run_id = ? AND s.row = ?
"""


class BlobWriter:
    """Writes the JSON of steps to `original_steps`, in the database that has the steps.

    A step is written after it was committed, so that no row here is without its step after a kill
    or a power cut. One thread.
    """

    def __init__(self, path: Path) -> None:
        self._waiting: dict[str, list[tuple[int, _Values]]] = {}
        self._database = Database.create(path)
        try:
            self._create(path)
        except BaseException:
            self._database.close()
            raise

    def put(self, run_id: str, row: int, payload: Mapping[str, Any], committed: int) -> None:
        """Take a step that was recorded; `committed` steps of its run are committed."""
        waiting = self._waiting.setdefault(run_id, [])
        waiting.append((row, _values(payload)))
        if waiting[0][0] + _WRITE_STEPS <= committed:
            ready = [item for item in waiting if item[0] < committed]
            self._write(run_id, ready)
            self._waiting[run_id] = waiting[len(ready) :]

    def write_all(self) -> None:
        """Write all steps; those that were never committed are left out."""
        for run_id in list(self._waiting):
            self._write(run_id, self._waiting[run_id])
            del self._waiting[run_id]

    def close(self) -> None:
        """Write all steps, and close the database. May be called again."""
        try:
            self.write_all()
        except LockedError:  # all that waits is written by the next call
            raise
        except BaseException:
            self._database.close()
            raise
        self._database.close()

    def _create(self, path: Path) -> None:
        with self._database.transaction() as connection:
            connection.execute(_CREATE)
            found = connection.execute("PRAGMA table_info(original_steps)").fetchall()
        if not {row[1] for row in found}.issuperset(BLOBS):
            raise InvalidError(
                f"the JSON of steps was removed from `{path}`",
                hint="open the store without keep_blobs",
            )

    def _write(self, run_id: str, steps: Sequence[tuple[int, _Values]]) -> None:
        with self._database.transaction() as connection:
            for row, values in steps:
                connection.execute(_INSERT, (*values, run_id, row))


def _values(payload: Mapping[str, Any]) -> _Values:
    """Return what the original stores of a step."""
    reward = payload.get("reward")
    return (
        _action(payload.get("action")),
        _blob(payload.get("observation")),
        None if reward is None else float(reward),
        int(bool(payload.get("terminated"))),
        int(bool(payload.get("truncated"))),
        _blob(payload.get("info")),
        _blob(payload.get("frame")),
    )


def _action(action: Any) -> int | float | bytes | None:
    """Return an action as SQLite has it: a number, or JSON."""
    stored, is_whole = stored_action(action)
    return stored if is_whole and not isinstance(stored, str) else blobs.dumps(action)


def _blob(value: Any) -> bytes | None:
    return None if value is None else blobs.dumps(value)
