"""The runs, episodes and steps of the original, in the order in which they are copied."""

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from relive._arguments import INT64_MAX
from relive.errors import InvalidError
from relive.replay.migrate.rows import StepKey, as_document
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import check_run_id

_READ_ROWS: Final = 1000
_TABLES: Final = """
CREATE TABLE runs (number INTEGER PRIMARY KEY, run_id TEXT UNIQUE, is_real INTEGER);
CREATE TABLE episodes (
    number INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    episode_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    UNIQUE (run, episode_id, agent_id)
);
CREATE TABLE steps (
    episode INTEGER NOT NULL,
    step_index INTEGER NOT NULL,
    source INTEGER NOT NULL,
    PRIMARY KEY (episode, step_index, source)
) WITHOUT ROWID;
CREATE TABLE left_out (source INTEGER PRIMARY KEY);
CREATE TABLE ends (episode_id TEXT PRIMARY KEY, data TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class OriginalRun:
    """A run of the source."""

    number: int
    name: str
    """Its id in the source."""
    is_real: bool
    """Whether an action is a number with a fraction."""

    @property
    def run_id(self) -> str:
        """Its id in the root: the same, unless files cannot be named after it."""
        try:
            return check_run_id(self.name)
        except InvalidError:
            readable = re.sub(r"[^A-Za-z0-9_-]", "_", self.name)[:100]
            digest = hashlib.sha256(self.name.encode()).hexdigest()[:16]
            return f"{readable}-{digest}"


@dataclass(frozen=True, slots=True)
class OriginalEpisode:
    """An episode of one agent in the source."""

    number: int
    run: OriginalRun
    episode_id: str
    agent_id: str
    end: dict[str, Any] | None
    """Its row in `episodes`, which appears when it is over."""

    def segment(self, number: int) -> str:
        """Return its id in the root, after it ended `number` times."""
        return f"{self.episode_id}~{number}" if number else self.episode_id


class Catalog:
    """The steps of the source by run, episode and index, in a temporary database on the disk."""

    def __init__(self) -> None:
        connection = sqlite3.connect("", isolation_level=None)
        self._database = Database(Path("temporary database"), connection)
        with self._database.connection():
            connection.executescript(_TABLES)

    def add_ends(self, ends: Iterable[dict[str, Any]]) -> None:
        """Add rows of `episodes`."""
        with self._database.transaction() as connection:
            for end in ends:
                row = {name: as_document(value) for name, value in end.items()}
                connection.execute(
                    "INSERT OR REPLACE INTO ends VALUES (?, ?)",
                    (str(row["episode_id"]), json.dumps(row)),
                )

    def add(self, rows: Sequence[tuple[int, StepKey, bool]]) -> None:
        """Add rows of steps: rowid, key, and whether the action has a fraction."""
        with self._database.transaction() as connection:
            numbers: dict[tuple[str, str, str], int] = {}
            for rowid, key, is_real in rows:
                episode = (key.run, key.episode_id, key.agent_id)
                if episode not in numbers or is_real:
                    numbers[episode] = _add_episode(connection, *episode, is_real=is_real)
                connection.execute(
                    "INSERT INTO steps VALUES (?, ?, ?)", (numbers[episode], key.step_index, rowid)
                )

    def counts(self) -> tuple[int, int, int, int]:
        """Return the number of runs, episodes, steps and rows."""
        found = self._database.rows(
            "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM episodes), "
            "(SELECT count(*) FROM (SELECT DISTINCT episode, step_index FROM steps)), "
            "(SELECT count(*) FROM steps)"
        )
        runs, episodes, steps, rows = found[0]
        return runs, episodes, steps, rows

    def runs(self) -> Iterator[OriginalRun]:
        """Iterate over the runs, in the order of their first rows."""
        sql = "SELECT number, run_id, is_real FROM runs WHERE number > ? ORDER BY number LIMIT ?"
        for number, name, is_real in self._parts(sql):
            yield OriginalRun(number, name, bool(is_real))

    def episodes(self, run: OriginalRun) -> Iterator[OriginalEpisode]:
        """Iterate over the episodes of a run, in the order of their first rows."""
        sql = (
            "SELECT number, episodes.episode_id, agent_id, data FROM episodes "
            "LEFT JOIN ends ON ends.episode_id = episodes.episode_id "
            "WHERE run = ? AND number > ? ORDER BY number LIMIT ?"
        )
        for number, episode_id, agent_id, data in self._parts(sql, run.number):
            end = None if data is None else json.loads(data)
            yield OriginalEpisode(number, run, episode_id, agent_id, end)

    def steps(self, episode: OriginalEpisode, after: int = -1) -> Iterator[tuple[int, int]]:
        """Iterate over the steps of an episode: index, and first rowid."""
        sql = (
            "SELECT step_index, min(source) FROM steps "
            "WHERE episode = ? AND step_index > ? GROUP BY step_index ORDER BY step_index LIMIT ?"
        )
        return self._parts(sql, episode.number, after=after)

    def count(self, episode: OriginalEpisode, up_to: int = INT64_MAX) -> int:
        """Return how many steps an episode has, up to an index."""
        found = self._database.rows(
            "SELECT count(DISTINCT step_index) FROM steps WHERE episode = ? AND step_index <= ?",
            (episode.number, up_to),
        )
        return int(found[0][0])

    def rows(self, episode: OriginalEpisode, step_index: int) -> list[int]:
        """Return the rowids of a step; the first one counts."""
        return self._rows(episode.number, step_index)

    def repeated(self) -> Iterator[list[int]]:
        """Iterate over the steps that have several rows: the rowids of each; the first counts."""
        sql = (
            "SELECT episode, step_index FROM steps WHERE (episode, step_index) > (?, ?) "
            "GROUP BY episode, step_index HAVING count(*) > 1 ORDER BY episode, step_index LIMIT ?"
        )
        last = (-1, -1)
        while found := self._database.rows(sql, (*last, _READ_ROWS)):
            for number, step_index in found:
                yield self._rows(number, step_index)
            last = found[-1]

    def leave_out(self, rowid: int) -> None:
        """Take note of a row that no run has."""
        self._database.rows("INSERT OR IGNORE INTO left_out VALUES (?)", (rowid,))

    def leave_out_run(self, run: OriginalRun) -> None:
        """Take note that the root does not have any row of a run."""
        self._database.rows(
            "INSERT OR IGNORE INTO left_out SELECT source FROM steps "
            "WHERE episode IN (SELECT number FROM episodes WHERE run = ?)",
            (run.number,),
        )

    def left_out(self) -> Iterator[int]:
        """Iterate over the rowids of rows that no run has, in their order."""
        sql = "SELECT source FROM left_out WHERE source > ? ORDER BY source LIMIT ?"
        return (rowid for (rowid,) in self._parts(sql, after=-(1 << 63)))

    def has_episode(self, run: OriginalRun, episode_id: str) -> bool:
        """Check whether the source has an episode of this id."""
        sql = "SELECT 1 FROM episodes WHERE run = ? AND episode_id = ?"
        return bool(self._database.rows(sql, (run.number, episode_id)))

    def close(self) -> None:
        """Close and remove the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _rows(self, number: int, step_index: int) -> list[int]:
        found = self._database.rows(
            "SELECT source FROM steps WHERE episode = ? AND step_index = ? ORDER BY source",
            (number, step_index),
        )
        return [source for (source,) in found]

    def _parts(self, sql: str, *values: int, after: int = -1) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows of a statement, a part at a time, by their first value."""
        while rows := self._database.rows(sql, (*values, after, _READ_ROWS)):
            yield from rows
            after = rows[-1][0]


def _add_episode(
    connection: sqlite3.Connection, name: str, episode_id: str, agent_id: str, *, is_real: bool
) -> int:
    """Add an episode and its run, unless they are known; return the number of the episode."""
    connection.execute(
        "INSERT INTO runs (run_id, is_real) VALUES (?, ?) "
        "ON CONFLICT (run_id) DO UPDATE SET is_real = max(is_real, excluded.is_real)",
        (name, int(is_real)),
    )
    (run,) = connection.execute("SELECT number FROM runs WHERE run_id = ?", (name,)).fetchone()
    key = (run, episode_id, agent_id)
    connection.execute(
        "INSERT OR IGNORE INTO episodes (run, episode_id, agent_id) VALUES (?, ?, ?)", key
    )
    (number,) = connection.execute(
        "SELECT number FROM episodes WHERE run = ? AND episode_id = ? AND agent_id = ?", key
    ).fetchone()
    return int(number)
