"""Ctrl-C at any moment of a recorder: no step is lost or doubled, and the run is closed.

`RELIVE_INTERRUPTS` is how often each kind of call is interrupted (`make faults`: 1,000).
"""

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun, TelemetryStore, validate
from relive.store.lifecycle import WriterLifecycle
from tests.alarms import alarms
from tests.faults.damage import memory_folder

Note = Callable[[str, object], None]

INTERRUPTS = int(os.environ.get("RELIVE_INTERRUPTS", "20"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
STEPS = 40
"""Steps of one run."""
EPISODE = 7
CONFIG = ReplayConfig(chunk_rows=4, flush_s=3600, flush_steps=10, sync_episodes=False)
pytestmark = pytest.mark.timeout(3600)


class Interrupts:
    """Raises `KeyboardInterrupt` at random moments of some functions."""

    def __init__(self, seed: str, *functions: Callable[..., Any]) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - moments, not secrets
        self._codes: frozenset[CodeType] = frozenset(
            getattr(function, "__wrapped__", function).__code__ for function in functions
        )
        self._left = 0
        self.count = 0

    def send_soon(self) -> None:
        """Send some signals, one after the other."""
        self._left = self.rng.choice((1, 1, 2, 4))
        pauses = [10 ** self.rng.uniform(-5.3, -3.3) for _ in range(2)]
        signal.setitimer(signal.ITIMER_REAL, *pauses)

    @staticmethod
    def stop() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def handle(self, number: int, frame: FrameType | None) -> None:
        del number
        self._left -= 1
        if self._left <= 0:
            self.stop()
        while frame is not None:
            if frame.f_code in self._codes:
                self.count += 1
                raise KeyboardInterrupt
            frame = frame.f_back


def frame(number: int) -> Any:
    return np.full((4, 4, 3), number % 251, np.uint8)


def seen(number: int) -> Any:
    """Return an observation of a stack, which is longer than the queue of steps."""
    planes = [np.full((16, 16), (number - back) % 251, np.uint8) for back in (3, 2, 1, 0)]
    return np.stack(planes, axis=-1)


def extras(number: int) -> dict[str, Any] | None:
    """Return further arrays, which begin at different steps of a run."""
    names = [name for name, first in (("a", 3), ("b", 11), ("c", 19)) if number % STEPS >= first]
    return {name: np.float32(number) for name in names} or None


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_remains() -> Iterator[None]:
    """Check that no thread of a recorder is left."""
    yield
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("relive-replay")]


@pytest.fixture(autouse=True)
def dropped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the exceptions that Python drops: those raised while an object is finalized."""
    found: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    yield
    assert {each.exc_type for each in found} <= {KeyboardInterrupt}


def check(root: Path, run_id: str, kept: dict[int, int], tried: int) -> None:
    """Check that a run has every step that was accepted, once and in order.

    `kept` are the numbers of the steps that were accepted for certain, by their rows. Numbers from
    0 to `tried` were passed to the recorder.
    """
    run = ReplayRun(root, run_id)
    actions = run.steps["action"].to_pylist()
    assert {row: actions[row] for row in kept} == kept
    assert len(set(actions)) == len(actions)
    assert set(actions) <= set(range(tried))
    for row, number in enumerate(actions):
        np.testing.assert_array_equal(run.read("frames", [row])[0], frame(number))
        np.testing.assert_array_equal(run.read("observations", [row])[0], seen(number))
    for name in ("a", "b", "c"):
        if f"extras.{name}" in run.arrays.fields:
            has = run.arrays.are_valid(f"extras.{name}", range(len(run)))
            values = run.read(f"extras.{name}", range(len(run)))
            assert values[has].tolist() == [
                n for n, valid in zip(actions, has, strict=True) if valid
            ]
    check_episodes(run)
    assert run.status == "finished"
    assert validate(root, "full").problems == ()
    with TelemetryStore(root, read_only=True) as store:
        assert store.run_status(run_id) == "finished"


def check_episodes(run: ReplayRun) -> None:
    rows: list[int] = []
    for position in range(len(run.episodes)):
        episode = run.episodes.episode_at(position)
        found = episode.arrays("step_index", "actions", "terminated", "truncated")
        rows += episode.rows.tolist()
        indices = found["step_index"].tolist()
        assert indices == list(range(len(indices)))
        assert found["actions"].tolist() == sorted(found["actions"].tolist())
        ends = found["terminated"] | found["truncated"]
        assert ends.tolist() == [False] * (len(ends) - 1) + [True] * (len(ends) > 0)
        assert episode["length"] == len(indices)
    assert sorted(rows) == list(range(len(run)))


def repeated(call: Callable[[], object]) -> None:
    """Call a function until it returns."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            call()
            return


def record_steps(recorder: ReplayRecorder, interrupts: Interrupts) -> tuple[dict[int, int], int]:
    kept: dict[int, int] = {}
    for number in range(STEPS):
        interrupts.send_soon()
        with contextlib.suppress(KeyboardInterrupt):
            refs = recorder.step(
                seen(number),
                number,
                1.0,
                number % EPISODE == EPISODE - 1,
                frame=frame(number),
                extras=extras(number),
            )
            assert refs is not None
            kept[refs.row] = number
        if number % 9 == 0:
            repeated(recorder.flush)
    interrupts.stop()
    return kept, STEPS


def record_batches(recorder: ReplayRecorder, interrupts: Interrupts) -> tuple[dict[int, int], int]:
    kept: dict[int, int] = {}
    count = 0
    for number in range(STEPS // 3):
        interrupts.send_soon()
        numbers = [count, count + 1, count + 2]
        count += 3
        with contextlib.suppress(KeyboardInterrupt):
            found = recorder.steps(
                [0, 1, 2],
                np.stack([seen(n) for n in numbers]),
                np.array(numbers),
                np.ones(3),
                [number % EPISODE == EPISODE - 1] * 3,
                frame=np.stack([frame(n) for n in numbers]),
                extras={"a": np.array(numbers, np.float32)} if number > 3 else None,
            )
            kept.update((refs.row, n) for refs, n in zip(found, numbers, strict=True) if refs)
        if number % 4 == 0:
            repeated(recorder.sync)
    interrupts.stop()
    return kept, count


def record_episodes(recorder: ReplayRecorder, interrupts: Interrupts) -> tuple[dict[int, int], int]:
    """Begin and end episodes; after an interrupt it is not known whether one is open."""
    kept: dict[int, int] = {}
    for number in range(STEPS):
        interrupts.send_soon()
        if number % EPISODE == 0:
            repeated(recorder.end_episode)
            with contextlib.suppress(KeyboardInterrupt):
                recorder.begin_episode(f"mine {number}", seed=number)
        with contextlib.suppress(KeyboardInterrupt):
            refs = recorder.step(seen(number), number, 1.0, frame=frame(number))
            assert refs is not None
            kept[refs.row] = number
        if number % EPISODE == EPISODE - 1:
            with contextlib.suppress(KeyboardInterrupt):
                recorder.end_episode(next_observation=seen(number + 1))
    interrupts.stop()
    return kept, STEPS


RECORDERS = {"step": record_steps, "steps": record_batches, "episodes": record_episodes}


@pytest.mark.parametrize("kind", RECORDERS)
def test_interrupted_calls_lose_and_double_nothing(
    kind: str, folder: Path, record_property: Note
) -> None:
    recorder_class = ReplayRecorder
    interrupts = Interrupts(
        f"{SEED} {kind}",
        recorder_class.step,
        recorder_class.steps,
        recorder_class.flush,
        recorder_class.sync,
        recorder_class.begin_episode,
        recorder_class.end_episode,
        WriterLifecycle.close,
    )
    runs = 0
    with alarms(interrupts.handle):
        while interrupts.count < INTERRUPTS:
            root = folder / str(runs)
            recorder = ReplayRecorder(root, "run", config=CONFIG, live=None)
            kept, tried = RECORDERS[kind](recorder, interrupts)
            interrupts.send_soon()
            repeated(recorder.close)
            interrupts.stop()
            check(root, "run", kept, tried)
            runs += 1
    text = f"replay: {kind}: {interrupts.count} interrupts in {runs} runs"
    record_property("figure", text)


def test_a_step_that_did_not_reach_the_queue_uses_no_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item of a flush in the queue is not taken for the step."""
    recorder = ReplayRecorder(folder, "run", config=CONFIG, live=None)
    recorder.step(seen(0), 0, 1.0, frame=frame(0))
    for first_flush, last_flush in ((True, False), (False, True), (True, True)):
        if first_flush:
            recorder.flush()
        with monkeypatch.context() as patched:
            patched.setattr(recorder._sink.queue, "offer", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                recorder.step(seen(1), 1, 1.0)
        if last_flush:
            recorder.flush()
    refs = recorder.step(seen(2), 2, 1.0, frame=frame(2))
    assert refs is not None
    assert refs.row == 1
    recorder.close()
    check(folder, "run", {0: 0, 1: 2}, 3)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_block_closes_the_run(folder: Path, record_property: Note) -> None:
    """The handler raises wherever it runs: in the recorder, or between its calls."""
    rng = random.Random(f"{SEED} block")  # noqa: S311 - moments, not secrets
    is_armed, count = False, 0
    kept: dict[int, int] = {}
    tried = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_armed, count
        del number, frame
        if is_armed:
            is_armed = False
            count += 1
            raise KeyboardInterrupt

    def record(root: Path) -> None:
        nonlocal is_armed, tried
        with ReplayRecorder(root, "run", config=CONFIG, live=None) as recorder:
            for number in range(10 * STEPS):
                tried = number + 1
                ends = number % EPISODE == EPISODE - 1
                refs = recorder.step(
                    seen(number), number, 1.0, ends, frame=frame(number), extras=extras(number)
                )
                assert refs is not None
                kept[refs.row] = number
                if number == 2:
                    is_armed = True
                    signal.setitimer(signal.ITIMER_REAL, 10 ** rng.uniform(-4, -2))
            is_armed = False

    runs = 0
    with alarms(handle):
        while count < INTERRUPTS:
            root = folder / str(runs)
            kept.clear()
            with contextlib.suppress(KeyboardInterrupt):
                record(root)
            signal.setitimer(signal.ITIMER_REAL, 0)
            is_armed = False
            # A step is in the run before its row is in `kept`.
            check(root, "run", dict(list(kept.items())), tried)
            runs += 1
    record_property("figure", f"replay: with: {count} interrupts in {runs} runs")


def test_a_recorder_that_was_interrupted_while_it_was_opened_locks_nothing(
    folder: Path, record_property: Note
) -> None:
    interrupts = Interrupts(f"{SEED} open", ReplayRecorder.__init__)
    runs = 0
    with alarms(interrupts.handle):
        while interrupts.count < INTERRUPTS:
            root = folder / str(runs % 5)
            signal.setitimer(signal.ITIMER_REAL, 10 ** interrupts.rng.uniform(-5, -2))
            while True:
                with contextlib.suppress(KeyboardInterrupt):
                    recorder = ReplayRecorder(root, "run", config=CONFIG, live=None)
                    break
            interrupts.stop()
            recorder.step(action=runs)
            recorder.close()
            runs += 1
    record_property("figure", f"replay: opening: {interrupts.count} interrupts in {runs} runs")
    found = [
        action
        for number in range(5)
        for action in ReplayRun(folder / str(number), "run").steps["action"].to_pylist()
    ]
    assert sorted(found) == list(range(runs))
