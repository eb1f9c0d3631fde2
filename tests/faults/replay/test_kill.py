"""A recorder that is killed loses at most its last second, and every row has its arrays.

`RELIVE_REPLAY_KILLS` says how many recorders of each kind are killed (`make faults`: 300): of one
environment, of a vector of 8, and of four processes that record into one root.
"""

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from relive.errors import NotFoundError, UnknownNameError
from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun, recover, validate
from relive.replay.storage.layout import database_path
from tests.faults.replay.programs.check import opens_in_h5py, steps_of
from tests.faults.replay.programs.steps import (
    FOREVER,
    Orders,
    complete_round,
    record_at_once,
    record_round,
    record_until_killed,
)
from tests.processes import running

Note = Callable[[str, object], None]
KILLS = int(os.environ.get("RELIVE_REPLAY_KILLS", "4"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
SAFE_AFTER_NS = 10**9
LIVES = 3
"""How often one run is recorded, one recorder after the other."""
STARTING_S = 60.0
RECORDERS = 4
pytestmark = pytest.mark.timeout(3600)


class Life:
    """One recorder, which is killed: while it begins, while it records, or while it closes."""

    def __init__(self, root: Path, run_id: str, envs: int, seed: int) -> None:
        rng = np.random.default_rng((SEED, envs, seed))
        self.run_id = run_id
        self.phase = str(rng.choice(["ready", "begun", "closing"], p=[0.25, 0.5, 0.25]))
        longest_s = 2.2 if self.phase == "begun" else 0.03
        self.pause_s = float(rng.uniform(0, longest_s))
        between_s = float(rng.choice([0.0, 0.001, 0.02]))
        rounds = int(rng.integers(1, 200 if between_s < 0.01 else 30))
        self.orders = Orders(
            root,
            run_id,
            envs,
            int(rng.choice([8, 64])),
            between_s,
            rounds if self.phase == "closing" else FOREVER,
        )
        self.log = root / f"{run_id}-{seed}.log"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([record_until_killed.__module__])
        self.pipe, theirs = context.Pipe(duplex=False)
        task = (self.orders, self.log, theirs)
        self.process = context.Process(target=record_until_killed, args=task, daemon=True)
        self.process.start()
        theirs.close()
        self.said: list[str] = []
        self.until = time.monotonic() + STARTING_S

    def is_due(self) -> bool:
        """Check whether the moment has come at which it is killed."""
        while self.phase not in self.said and self.pipe.poll():
            self.said.append(self.pipe.recv())
            if self.said[-1] == self.phase:
                self.until = time.monotonic() + self.pause_s
        return time.monotonic() >= self.until

    def kill(self) -> tuple[int, int]:
        """Kill it; return how many steps it must have, and how many it can have."""
        killed_ns = time.monotonic_ns()
        self.process.kill()
        self.process.join()
        assert self.process.exitcode == -9, (self.orders, self.said, self.process.exitcode)
        self.process.close()
        while self.pipe.poll():
            try:
                self.said.append(self.pipe.recv())
            except EOFError:
                break
        self.pipe.close()
        assert self.phase in self.said, (self.orders, self.said)
        least = rounds = 0
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        for moment, done, committed in (map(int, line.split()) for line in lines):
            rounds = done
            least = max(least, committed)
            if moment < killed_ns - SAFE_AFTER_NS or "closed" in self.said:
                least = max(least, done * self.orders.envs)
        return least, rounds * self.orders.envs


@pytest.mark.parametrize("kind", ["one", "vector", "four"])
def test_killed_at_any_moment(kind: str, tmp_path: Path, record_property: Note) -> None:
    envs = 8 if kind == "vector" else 1
    run_ids = [f"run-{number}" for number in range(RECORDERS if kind == "four" else 1)]
    kills = kept = readable = roots = 0
    while kills < KILLS:
        root = tmp_path / str(roots)
        root.mkdir()
        known = dict.fromkeys(run_ids, (0, 0))
        for life in range(LIVES):
            lives = [
                Life(root, run_id, envs, roots * 100 + life * 10 + number)
                for number, run_id in enumerate(run_ids)
            ]
            for each in _killed_one_by_one(lives):
                # The others go on meanwhile.
                known[each.run_id] = _checked(each, known[each.run_id])
                readable += opens_in_h5py(root / "replay" / f"{each.run_id}.h5", envs)
                kills += 1
        for run_id in run_ids:
            _continues(root, run_id, envs, recovers=roots % 2 == 1)
        kept += sum(found for found, _ in known.values())
        roots += 1
    record_property(
        "figure",
        f"replay: {kills} recorders of {kind} killed, {kept} steps checked, {readable} frames "
        "with h5py",
    )


def test_recorders_that_begin_a_root_at_the_same_moment(
    tmp_path: Path, record_property: Note
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([record_at_once.__module__])
    roots = max(4, KILLS // 3)
    for number in range(roots):
        root = tmp_path / str(number)
        begin = context.Barrier(RECORDERS)
        orders = [Orders(root, f"run-{each}", 1, 8, 0.0, 3) for each in range(RECORDERS)]
        processes = [
            context.Process(target=record_at_once, args=(each, begin), daemon=True)
            for each in orders
        ]
        with running(processes):
            for process in processes:
                process.join()
        assert [process.exitcode for process in processes] == [0] * RECORDERS
        assert [steps_of(root, each.run_id, 1) for each in orders] == [3] * RECORDERS
        shutil.rmtree(root)
    record_property("figure", f"replay: {roots} roots begun by {RECORDERS} recorders at once")


def _killed_one_by_one(lives: list[Life]) -> Iterator[Life]:
    waiting = list(lives)
    while waiting:
        for life in [each for each in waiting if each.is_due()]:
            waiting.remove(life)
            yield life
        time.sleep(0.0005)


def _checked(life: Life, known: tuple[int, int]) -> tuple[int, int]:
    """Check a run whose recorder was killed; return how many steps it has, and can have.

    A recorder that is killed between writing a commit and showing it to readers leaves a commit
    that SQLite finds when all connections to the database are closed, which is later than this.
    """
    least, recorded = life.kill()
    before, most = known[0], max(known[1], recorded)
    root, run_id, envs = life.orders[:3]
    # Before SQLite opens the database in this process. Others may be writing to it.
    if database_path(root).is_file():
        problems = validate(root, "index").problems
        # Killed before the tables were made, or before the first commit.
        is_empty = [problem.kind for problem in problems] == ["not-found"]
        assert is_empty or problems == (), (life.orders, life.said)
        assert not is_empty or max(before, least) == 0, (life.orders, life.said)
    try:
        found = steps_of(root, run_id, envs)
    except (NotFoundError, UnknownNameError):
        found = 0
    about = (life.orders, life.said, least, found, most)
    assert max(before, least) <= found, about
    # A round that the last recorder left half done, and one that is not in the log.
    assert found <= max(before + envs, most) + envs, about
    if found and "closed" not in life.said:
        assert ReplayRun(root, run_id).status in {"interrupted", "finished"}, about
    return found, most


def _continues(root: Path, run_id: str, envs: int, *, recovers: bool) -> None:
    """Complete the run, record further rounds, and check it all."""
    if recovers:
        found = recover(root)
        assert found.problems == found.locked == ()
        assert validate(root, "full").ok
    config = ReplayConfig(chunk_rows=16)
    with ReplayRecorder(root, run_id, config=config, live=None) as recorder:
        first = complete_round(recorder, envs)
        for number in range(first, first + 10):
            record_round(recorder, envs, number)
    wanted = (first + 10) * envs
    assert steps_of(root, run_id, envs) == wanted
    assert ReplayRun(root, run_id).status == "finished"
    assert opens_in_h5py(root / "replay" / f"{run_id}.h5", envs) == wanted
    assert validate(root / "replay" / f"{run_id}.h5", "full").ok
