"""The loop of an Atari environment, alternating with and without recording."""

from __future__ import annotations

import shutil
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benches.peers import module
from benches.replay.contest import OURS, ratio, section_of
from benches.replay.scenes import GAMES
from benches.report import note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benches.episodes.promises import Ledger
    from benches.options import Options
    from benches.report import Section

PLAIN = "without recording"
LEAST = 0.85
"""The share of its own steps per second that a loop keeps while it is recorded."""


def loop_part(scene: str, options: Options, ledger: Ledger, folder: Path) -> Iterator[Section]:
    """A random policy at the defaults of the environment; closing the recording is included."""
    seconds = options.seconds / options.runs
    rates: dict[str, list[float]] = {PLAIN: [], OURS: []}
    steps = 0
    for number in range(options.runs):
        note(f"replay: {scene}, loop, run {number + 1} of {options.runs}")
        for name in (PLAIN, OURS) if number % 2 else (OURS, PLAIN):
            root = folder / "loop"
            shutil.rmtree(root, ignore_errors=True)
            env = _made(GAMES[scene])
            count, taken = _play(env if name == PLAIN else _recorded(env, root), seconds, number)
            rates[name].append(count / taken)
            steps += count
    shutil.rmtree(folder / "loop", ignore_errors=True)
    section = section_of(f"loop: {GAMES[scene]}", rates, {}, steps)
    kept = ratio(rates[OURS], rates[PLAIN])
    if kept is not None:
        section.facts["kept share of steps/s"] = (
            f"{kept.median:.1%} [{kept.low:.1%}-{kept.high:.1%}]"
        )
        ledger.least(f"loop: {scene}, kept share", kept.median, LEAST, "of its own steps/s")
    yield section


def _play(env: Any, seconds: float, seed: int) -> tuple[int, float]:
    """Step for about `seconds` and close; return the steps and the seconds."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    count = 0
    begin = perf_counter()
    while perf_counter() - begin < seconds:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        count += 1
        if terminated or truncated:
            env.reset()
    env.close()
    return count, perf_counter() - begin


def _made(env_id: str) -> Any:
    gymnasium = module("gymnasium")
    gymnasium.register_envs(module("ale_py"))
    return gymnasium.make(env_id)


def _recorded(env: Any, root: Path) -> Any:
    """The environment, recorded with the defaults: its observations are shown live."""
    return module("relive.replay.gym").Record(env, root)
