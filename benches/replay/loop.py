"""The loop of an Atari environment, in turns with and without recording."""

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
    """A random policy at the defaults of the environment, with and without recording.

    The two loops take turns of a few seconds, so that a moment in which the machine is slow meets
    both. A turn that is recorded ends when its steps are committed, the last one when the run is
    closed.
    """
    rates: dict[str, list[float]] = {PLAIN: [], OURS: []}
    root = folder / "loop"
    shutil.rmtree(root, ignore_errors=True)
    loops = {PLAIN: _Loop(_made(GAMES[scene])), OURS: _Loop(_recorded(_made(GAMES[scene]), root))}
    for number in range(options.runs):
        note(f"replay: {scene}, loop, turn {number + 1} of {options.runs}")
        for name in (PLAIN, OURS) if number % 2 else (OURS, PLAIN):
            is_last = number == options.runs - 1
            rates[name].append(loops[name].play(options.seconds / options.runs, close=is_last))
    shutil.rmtree(root, ignore_errors=True)
    section = section_of(
        f"loop: {GAMES[scene]}", rates, {}, sum(loop.count for loop in loops.values())
    )
    kept = ratio(rates[OURS], rates[PLAIN])
    if kept is not None:
        share = loops[OURS].rate / loops[PLAIN].rate
        section.facts["kept share of steps/s"] = (
            f"{share:.1%} of all turns, median of turns {kept.median:.1%} "
            f"[{kept.low:.1%}-{kept.high:.1%}]"
        )
        ledger.least(f"loop: {scene}, kept share", share, LEAST, "of its own steps/s")
    yield section


class _Loop:
    """An environment and a random policy; counts its steps and the seconds that they took."""

    def __init__(self, env: Any) -> None:
        self.count = 0
        self._taken = 0.0
        self._env = env
        self._recorder = getattr(env, "recorder", None)
        env.action_space.seed(0)
        env.reset(seed=0)

    @property
    def rate(self) -> float:
        """Steps per second of all turns."""
        return self.count / self._taken

    def play(self, seconds: float, *, close: bool) -> float:
        """Step for about `seconds`, commit what is recorded, and return the steps per second."""
        env = self._env
        count = 0
        begin = perf_counter()
        while perf_counter() - begin < seconds:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            count += 1
            if terminated or truncated:
                env.reset()
        if close:
            env.close()
        elif self._recorder is not None:
            self._recorder.flush()
        taken = perf_counter() - begin
        self.count += count
        self._taken += taken
        return count / taken


def _made(env_id: str) -> Any:
    gymnasium = module("gymnasium")
    gymnasium.register_envs(module("ale_py"))
    return gymnasium.make(env_id)


def _recorded(env: Any, root: Path) -> Any:
    """The environment, recorded with the defaults: its observations are shown live."""
    return module("relive.replay.gym").Record(env, root)
