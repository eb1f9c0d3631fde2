"""A migration that is killed at any moment loses nothing, and the next one continues it.

`RELIVE_MIGRATE_KILLS` says how many are killed (`make faults`: 300).
"""

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.replay import ReplayRun
from relive.replay.migrate import migrate
from relive.replay.storage.layout import database_path
from tests.faults.damage import memory_folder
from tests.faults.records.programs.syscalls import environment, python
from tests.faults.replay.programs import migrate as program
from tests.replay.migrate.original import Original, content, frame, observation, old_program

Note = Callable[[str, object], None]
KILLS = int(os.environ.get("RELIVE_MIGRATE_KILLS", "15"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
KILLS_OF_ONE = 5
"""How often the migration of one database is killed."""
LIVE_STEPS = 120
pytestmark = pytest.mark.timeout(3600)


class Migrations:
    """Starts migrations that are killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            python(Path(program.__file__)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def run(self, source: Path, root: Path, seconds: float, *, drop: bool) -> str:
        """Migrate, and kill it after some seconds; return `killed` or `done`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{source}\t{root}\t{'drop' if drop else 'keep'}\t{seconds}\n")
        self.process.stdin.flush()
        ended = self.process.stdout.readline().strip()
        assert ended in {"killed", "done"}, "see the traceback above"
        return ended


@pytest.fixture(scope="module")
def migrations() -> Iterator[Migrations]:
    """A process that migrates."""
    made = Migrations()
    yield made
    made.process.communicate()
    assert made.process.returncode == 0


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory."""
    with memory_folder() as folder:
        yield folder


@pytest.mark.parametrize("place", ["apart", "in place"])
def test_killed_at_any_moment(
    place: str, migrations: Migrations, memory: Path, record_property: Note
) -> None:
    template = memory / "template.sqlite"
    steps = _fill(template)
    migrate(template, memory / "whole")
    expected = content(memory / "whole")
    rng = np.random.default_rng((SEED, len(place)))
    seconds = _seconds(migrations, template, memory)
    kills = moved = number = 0
    while kills < KILLS // 3:
        folder = memory / str(number)
        number += 1
        root = folder / "root"
        source = database_path(root) if place == "in place" else folder / "old.sqlite"
        source.parent.mkdir(parents=True)
        shutil.copy(template, source)
        for _ in range(KILLS_OF_ONE):
            ended = migrations.run(source, root, float(rng.uniform(0, seconds)), drop=True)
            kills += ended == "killed"
            moved += _check(source, root, steps, expected)
        assert migrations.run(source, root, 60, drop=True) == "done"
        assert _check(source, root, steps, expected)
        shutil.rmtree(folder)
    assert moved < number * KILLS_OF_ONE, "nothing was killed before its end"
    record_property("figure", f"replay: {kills} migrations {place} killed, {number} databases")


def test_killed_while_the_old_program_writes(
    migrations: Migrations, memory: Path, record_property: Note
) -> None:
    rng = np.random.default_rng((SEED, 9))
    kills = number = 0
    while kills < KILLS // 3:
        root = memory / str(number)
        number += 1
        source = database_path(root)
        source.parent.mkdir(parents=True)
        Original(source).connection.close()
        with old_program(source, LIVE_STEPS) as writer:
            while writer.poll() is None:
                ended = migrations.run(source, root, float(rng.uniform(0, 0.15)), drop=False)
                kills += ended == "killed"
        assert migrations.run(source, root, 60, drop=True) == "done"
        run = ReplayRun(root, "run")
        numbers = run.read("observations", np.arange(len(run)))[:, 0]
        assert sorted(numbers.tolist()) == list(range(LIVE_STEPS))
    record_property("figure", f"replay: {kills} migrations beside a writer killed")


def _fill(path: Path) -> int:
    """Make a database with steps of two runs and two agents; return how many."""
    original = Original(path)
    steps = original.fill(runs=2, episodes=2, steps=12)
    for index in range(5):
        for agent in ("red", "blue"):
            original.step(
                "run1-ep0009",
                index,
                run_id="run1",
                agent_id=agent,
                observation=observation(index),
                render_payload=frame(index),
            )
            steps += 1
    original.end("run1-ep0009", run_id="run1", terminated=1)
    original.connection.close()
    return steps


def _seconds(migrations: Migrations, template: Path, memory: Path) -> float:
    """Return how long a migration takes that is not killed."""
    source = memory / "timed.sqlite"
    shutil.copy(template, source)
    began = time.monotonic()
    assert migrations.run(source, memory / "timed", 60, drop=True) == "done"
    return time.monotonic() - began


def _check(source: Path, root: Path, steps: int, expected: dict[str, Any]) -> bool:
    """Check that the source has its arrays, or the root has all of them; return which."""
    with closing(sqlite3.connect(source)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        table = "original_steps" if "original_steps" in names else "steps"
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        is_dropped = "observation" not in columns
        counted = "*" if is_dropped else "observation"
        sql = f"SELECT count({counted}) FROM {table}"  # noqa: S608 - names of the test
        assert connection.execute(sql).fetchall() == [(steps,)]
    if is_dropped:
        assert content(root) == expected
    return is_dropped
