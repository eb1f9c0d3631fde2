"""Recording and sampling at once: what each keeps of its rate alone, and what memory both take.

An environment is recorded at full speed in one process; another one draws batches of the same run
while it grows, with one worker.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.episodes.elsewhere import There
from benches.method import PAUSE_S, Ratio
from benches.peers import module
from benches.peers.buffer_peer import BATCH
from benches.replay.contest import section_of
from benches.replay.scenes import GAMES, SIDE, STACK
from benches.replay.worker import serve
from benches.report import note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from benches.episodes.promises import Ledger
    from benches.options import Options
    from benches.report import Section

RUN_ID = "bench-run"
COLLECT, LEARN = "recording", "sampling"
FIRST = 100_000
"""Steps that are in the run before anything is timed, and between two looks at the memory.
Batches are drawn from so many last steps."""
MARKS = 10
AHEAD = 6
"""Batches prepared ahead: more than by default, as two processes share the cores, so that a thread
that does not run for a few milliseconds does not hold up the others."""
TURN_S = 4.0
SLICE_S = 0.5
LEAST = 0.6
"""The share of its rate alone that each keeps."""
MOST_MIB = 64


def beside_part(scene: str, options: Options, ledger: Ledger, folder: Path) -> Iterator[Section]:
    """Alone and at once take turns, every other run backwards."""
    rates: dict[str, list[float]] = {}
    first = max(2 * BATCH, round(FIRST * options.scale))
    with _processes(scene, folder, first) as (collector, learner, both):
        _begin(collector, learner, first)
        for number in range(options.runs):
            note(f"replay: beside, run {number + 1} of {options.runs}")
            for wanted in ((COLLECT,), (LEARN,), (COLLECT, LEARN))[:: -1 if number % 2 else 1]:
                kind = "at once" if len(wanted) > 1 else "alone"
                asked = {
                    name: both.submit(each.call, "work", seconds=TURN_S)
                    for name, each in ((COLLECT, collector), (LEARN, learner))
                    if name in wanted
                }
                for name, answer in asked.items():
                    done = answer.result()
                    rate = done["steps"] / done["seconds"]
                    rates.setdefault(f"{name} {kind}", []).append(rate)
                sleep(PAUSE_S)
        total = collector.call("total")
    section = section_of(f"recording and sampling at once: {GAMES[scene]}", rates, {}, total)
    section.unit, section.ratio_of = "steps or batches", "-"
    for name in (COLLECT, LEARN):
        kept = Ratio.of(rates[f"{name} at once"], rates[f"{name} alone"])
        section.facts[f"{name}, kept share"] = f"{kept.median:.1%} [{kept.low:.1%}-{kept.high:.1%}]"
        ledger.least(f"at once: {name}, kept share", kept.median, LEAST, "of its rate alone")
    yield section


def growth_part(scene: str, options: Options, ledger: Ledger, folder: Path) -> Iterator[Section]:
    """Resident memory of both processes while the run grows to a million steps."""
    first = max(2 * BATCH, round(FIRST * options.scale))
    mib: dict[str, list[float]] = {COLLECT: [], LEARN: []}
    with _processes(scene, folder, first) as (collector, learner, both):
        _begin(collector, learner, first)
        learner.call("work", seconds=TURN_S)
        for number in range(1, MARKS + 1):
            note(f"replay: growth, {number * first:,} steps")
            for name, each in ((COLLECT, collector), (LEARN, learner)):
                mib[name].append(each.call("resident_mib"))
            if number < MARKS:
                recorded = both.submit(collector.call, "record", count=first)
                while not recorded.done():
                    learner.call("work", seconds=SLICE_S)
                recorded.result()
    section = section_of("memory of recording and sampling at once", {}, {}, MARKS * first)
    for name, found in mib.items():
        section.facts[f"{name}, MiB resident after each {first:,} steps"] = ", ".join(
            f"{each:.0f}" for each in found
        )
        told = f"at once: {name}, MiB more than after {first:,} steps, up to {MARKS * first:,}"
        ledger.most(told, max(found) - found[0], MOST_MIB, "MiB")
    yield section


def _begin(collector: There, learner: There, steps: int) -> None:
    collector.call("record", count=steps)
    learner.call("work", seconds=TURN_S)


@contextmanager
def _processes(
    scene: str, folder: Path, last: int
) -> Iterator[tuple[There, There, ThreadPoolExecutor]]:
    """The two processes, and threads that wait for their answers; `last` steps are drawn from."""
    root = folder / "beside"
    shutil.rmtree(root, ignore_errors=True)
    found: list[There] = []
    try:
        for what in (COLLECT, LEARN):
            child = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "benches.replay.beside", what, scene, str(root), str(last)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            found.append(There(what, child))
        with ThreadPoolExecutor(len(found)) as both:
            yield found[0], found[1], both
        for each in reversed(found):
            each.call("close")
    finally:
        for each in found:
            each.close()
        shutil.rmtree(root, ignore_errors=True)


class _Collector:
    """A game with a random policy, of which stacks of four small gray pictures are recorded."""

    def __init__(self, scene: str, root: Path) -> None:
        gymnasium, replay = module("gymnasium"), module("relive.replay")
        gymnasium.register_envs(module("ale_py"))
        self._env = gymnasium.make(GAMES[scene], obs_type="grayscale")
        self._env.action_space.seed(0)
        config = replay.ReplayConfig(codec={"observations": "raw"})
        self._recorder = replay.ReplayRecorder(root, RUN_ID, live=False, config=config)
        self._planes: deque[NDArray[np.uint8]] = deque(maxlen=STACK)
        self._total = 0
        self._reset()

    def work(self, seconds: float) -> dict[str, float]:
        """Play and record for so long."""
        count, begin = 0, perf_counter()
        while perf_counter() - begin < seconds:
            self._step()
            count += 1
        return {"steps": count, "seconds": perf_counter() - begin}

    def record(self, count: int) -> None:
        """Play and record so many steps, until they are committed."""
        for _ in range(count):
            self._step()
        self._recorder.flush()

    def total(self) -> int:
        """The steps so far."""
        return self._total

    def resident_mib(self) -> float:
        """What this process takes."""
        return _resident_mib()

    def close(self) -> None:
        """Complete the run."""
        self._recorder.close()

    def _step(self) -> None:
        observation = np.stack(self._planes, axis=-1)
        action = self._env.action_space.sample()
        frame, reward, terminated, truncated, _ = self._env.step(action)
        self._planes.append(_plane(frame))
        ends = terminated or truncated
        after = np.stack(self._planes, axis=-1) if ends else None
        self._recorder.step(
            observation, action, reward, terminated, truncated, next_observation=after
        )
        self._total += 1
        if ends:
            self._reset()

    def _reset(self) -> None:
        frame, _ = self._env.reset(seed=self._total)
        self._planes.extend([_plane(frame)] * STACK)


class _Learner:
    """Batches of the last steps of the run that the other process records."""

    def __init__(self, root: Path, last: int) -> None:
        self._root, self._last = root, last
        self._loader: Any = None
        self._batches: Iterator[Any] = iter(())

    def work(self, seconds: float) -> dict[str, float]:
        """Draw batches for so long; count those."""
        if self._loader is None:
            run = module("relive.replay").ReplayRun(self._root, RUN_ID)
            self._loader = module("relive").DataLoader(
                run.transitions(last=self._last, follow=True),
                batch_size=BATCH,
                mode="random",
                workers=1,
                prefetch=AHEAD,
            )
            self._batches = self._followed()
        count, begin = 0, perf_counter()
        while perf_counter() - begin < seconds:
            next(self._batches)
            count += 1
        return {"steps": count, "seconds": perf_counter() - begin}

    def resident_mib(self) -> float:
        """What this process takes."""
        return _resident_mib()

    def close(self) -> None:
        """Stop the worker."""
        if self._loader is not None:
            self._loader.close()

    def _followed(self) -> Iterator[Any]:
        """Batches of the loader; each of its epochs has the last steps of its beginning."""
        while True:
            yield from self._loader.epoch()


def _plane(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Every second or third pixel."""
    height, width = frame.shape
    rows, columns = np.arange(SIDE) * height // SIDE, np.arange(SIDE) * width // SIDE
    plane: NDArray[np.uint8] = frame[rows[:, None], columns]
    return plane


def _resident_mib() -> float:
    with Path("/proc/self/status").open(encoding="ascii") as lines:
        found = next(line for line in lines if line.startswith("VmRSS:"))
    return int(found.split()[1]) / 1024


def main() -> None:
    """The child: what it does, the scene, the root and the window come from the command line."""
    what, scene, place, last = sys.argv[1:]
    root = Path(place)
    serve(lambda: _Collector(scene, root) if what == COLLECT else _Learner(root, int(last)))


if __name__ == "__main__":
    main()
