"""A DQN that is killed while it records and learns continues from its checkpoint.

`RELIVE_LEARNING_KILLS` says how often it is killed (`make faults`: 100).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pytest

from relive.errors import NotFoundError, UnknownNameError
from relive.replay import ReplayRun, validate

Note = Callable[[str, object], None]
KILLS = int(os.environ.get("RELIVE_LEARNING_KILLS", "3"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
ROOT = Path(__file__).resolve().parents[3]
KILLS_OF_ONE = 10
"""How often one training is killed at most."""
SAFE_AFTER_NS = 10**9
LONGEST_S = 1.5
STARTING_S = 120.0
RUN_ID = "dqn"
TOTAL, STARTS, EVERY, UPDATES, BATCH, N_STEP, CHECKPOINT = 5_000, 500, 20, 20, 64, 3, 500
MARGIN = 50.0
"""That of the example."""
pytestmark = [pytest.mark.needs("torch", "gymnasium"), pytest.mark.timeout(3600)]


class Life(NamedTuple):
    """What a process did, by its log, and how many steps the run had after it."""

    steps: list[tuple[int, int]]
    """The time and the number of each step."""
    draws: list[tuple[int, int]]
    """The number of the step, and the checksum of the rows, of each batch."""
    returns: tuple[float, float] | None
    killed_ns: int
    code: int
    recorded: int


class Starter:
    """Starts trainings, and kills them."""

    def __init__(self, pipe: "subprocess.Popen[str]") -> None:
        assert pipe.stdin is not None
        assert pipe.stdout is not None
        self._requests: IO[str] = pipe.stdin
        self._answers: IO[str] = pipe.stdout

    def live(self, settings: dict[str, Any], log: Path, pause_s: float | None) -> tuple[int, int]:
        """Train until killed, after a pause from the first step on; return when, and its code."""
        self._requests.write(json.dumps([settings, str(log)]) + "\n")
        self._requests.flush()
        process = int(self._answers.readline())
        if pause_s is not None:
            until = time.monotonic() + STARTING_S
            while not (log.exists() and log.stat().st_size) and time.monotonic() < until:
                time.sleep(0.005)
            time.sleep(pause_s)
            os.kill(process, signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        assert self._answers.readline() == "ended\n"
        self._requests.write("go on\n")
        self._requests.flush()
        return killed_ns, int(self._answers.readline())


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    command = [sys.executable, "-m", "tests.faults.replay.programs.learning"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Starter(process)
        assert process.stdin is not None
        process.stdin.close()


def test_a_killed_dqn_continues_with_the_same_draws_and_learns(
    tmp_path: Path, starter: Starter, record_property: Note
) -> None:
    kills, returns = 0, list[float]()
    while kills < KILLS:
        root = tmp_path / str(len(returns))
        at_most = min(KILLS_OF_ONE, KILLS - kills)
        lives = _train(starter, root, seed=SEED * 1000 + kills, kills=at_most)
        _check_run(root)
        _check_draws(ReplayRun(root, RUN_ID), SEED * 1000 + kills, lives)
        last = lives[-1].returns
        assert last is not None
        assert last[1] >= last[0] + MARGIN, last
        returns.append(last[1])
        kills += len(lives) - 1
    record_property(
        "figure",
        f"replay: a DQN killed {kills} times while it recorded and learned, in {len(returns)} "
        f"trainings; their mean returns are {min(returns):.0f} to {max(returns):.0f}",
    )


def _train(starter: Starter, root: Path, *, seed: int, kills: int) -> list[Life]:
    """Train to the end, killed at most so many times; check each time what is kept."""
    moments = random.Random(seed)  # noqa: S311 - repeatable
    settings = {
        "root": str(root),
        "run_id": RUN_ID,
        "seed": seed,
        "total_steps": TOTAL,
        "checkpoint_every": CHECKPOINT,
    }
    lives: list[Life] = []
    while not lives or lives[-1].code != 0:
        log = root.with_name(f"{root.name}-{len(lives)}.log")
        pause_s = moments.uniform(0, LONGEST_S) if len(lives) < kills else None
        killed_ns, code = starter.live(settings, log, pause_s)
        assert code == 0 or (code == -9 and pause_s is not None), (log, code)
        life = _read(log, killed_ns, code, _recorded(root))
        _check_life(lives, life)
        lives.append(life)
    return lives


def _check_life(before: list[Life], life: Life) -> None:
    """Check that a process began at the checkpoint, and what it kept when it was killed."""
    numbers = [step for _, step in life.steps] or [TOTAL + 1]  # killed while it was evaluated
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    # A step after a checkpoint means that this was saved; one may be saved without a step after it.
    reached = max((step for each in before for _, step in each.steps), default=0)
    saved = (reached - 1) // CHECKPOINT * CHECKPOINT if reached else 0
    assert numbers[0] - 1 in {saved, min(saved + CHECKPOINT, TOTAL)}, (numbers[0], reached)
    old = [step for moment, step in life.steps if moment < life.killed_ns - SAFE_AFTER_NS]
    assert life.recorded >= max(old, default=0), (life.recorded, old[-1:], numbers[-1])
    assert life.recorded <= max(reached, numbers[-1]) + 1
    assert life.recorded >= max((each.recorded for each in before), default=0)


def _check_run(root: Path) -> None:
    """Check that the run has every step once."""
    run = ReplayRun(root, RUN_ID)
    assert len(run) == TOTAL
    steps = run.steps.select(["episode_id", "step_index"]).to_pylist()
    assert len({(step["episode_id"], step["step_index"]) for step in steps}) == TOTAL
    assert validate(root, "full").ok


def _check_draws(run: ReplayRun, seed: int, lives: list[Life]) -> None:
    """Compare all draws over steps that were kept with those of one process that never stopped."""
    steps = run.steps.select(["episode_id", "terminated", "truncated"]).to_pylist()
    follows = [
        step["terminated"] or step["truncated"] or step["episode_id"] == after["episode_id"]
        for step, after in zip(steps, [*steps[1:], steps[-1]], strict=True)
    ]
    generator = np.random.default_rng((seed, 1))
    wanted: dict[int, list[int]] = {}
    for step in range(EVERY, TOTAL + 1, EVERY):
        if step > STARTS:
            known = np.flatnonzero(follows[: step - N_STEP])
            drawn = (known[generator.integers(len(known), size=BATCH)] for _ in range(UPDATES))
            wanted[step] = [zlib.crc32(rows.tobytes()) for rows in drawn]
    for life in lives:
        found: dict[int, list[int]] = {}
        for step, checksum in life.draws:
            found.setdefault(step, []).append(checksum)
        for step, checksums in found.items():
            if step <= life.recorded:
                assert checksums == wanted[step][: len(checksums)], step
    last = lives[-1]
    begun = last.steps[0][1] if last.steps else TOTAL + 1
    assert [step for step, _ in last.draws[::UPDATES]] == [step for step in wanted if step >= begun]


def _read(log: Path, killed_ns: int, code: int, recorded: int) -> Life:
    """Read a log, without a line that was not completed."""
    life = Life([], [], None, killed_ns, code, recorded)
    for line in log.read_text().split("\n")[:-1]:
        kind, *numbers = line.split()
        if kind == "step":
            life.steps.append((int(numbers[0]), int(numbers[1])))
        elif kind == "draw":
            life.draws.append((int(numbers[0]), int(numbers[1])))
        else:
            life = life._replace(returns=(float(numbers[0]), float(numbers[1])))
    return life


def _recorded(root: Path) -> int:
    try:
        return len(ReplayRun(root, RUN_ID))
    except (NotFoundError, UnknownNameError):
        return 0
