"""Ctrl-C inside `next()` at any moment: no batch is lost or doubled, and nothing remains.

`RELIVE_INTERRUPTS` is how often each kind of loader is interrupted (`make faults`: 1,000).
"""

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from relive import DataLoader, PrioritizedSampler, Sampler
from tests.alarms import alarms
from tests.load import transforms
from tests.load.reference import (
    Plain,
    loader_threads,
    rows,
    threads_of_this_process,
    wait_for_end_of_threads,
)

pytestmark = [
    pytest.mark.needs("torch", "jax"),
    pytest.mark.timeout(3600),
    # Python drops what a signal handler raises inside a callback of the garbage collector; JAX
    # has such a callback.
    pytest.mark.filterwarnings("ignore:(?s).*StopRequest:pytest.PytestUnraisableExceptionWarning"),
]
Note = Callable[[str, object], None]

INTERRUPTS = int(os.environ.get("RELIVE_INTERRUPTS", "20"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
LENGTH, BATCH = 400, 4


class StopRequest(BaseException):
    """What the signal handler raises."""


def torch_loader() -> Any:
    from relive.load.torch import DataLoader as TorchLoader

    return TorchLoader(rows(LENGTH), batch_size=BATCH)


def jax_loader() -> Any:
    from relive.load.jax import DataLoader as JaxLoader

    return JaxLoader({"id": np.arange(LENGTH, dtype=np.int32)}, batch_size=BATCH)


class Listed:
    """A sampler of the user, whose draws no signal handler interrupts half-way."""

    def __init__(self) -> None:
        self._batches = iter(Sampler(LENGTH, BATCH).peek(50 * INTERRUPTS * BATCH))

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


KINDS: dict[str, Callable[[], Any]] = {
    "native": lambda: DataLoader(rows(LENGTH), batch_size=BATCH),
    "finite": lambda: DataLoader(rows(LENGTH), batch_size=BATCH, epochs=1 << 20),
    "inline": lambda: DataLoader(rows(LENGTH), batch_size=BATCH, workers=0),
    "python": lambda: DataLoader(Plain(rows(LENGTH)), batch_size=BATCH),
    "python inline": lambda: DataLoader(Plain(rows(LENGTH)), batch_size=BATCH, workers=0),
    "threads": lambda: DataLoader(rows(LENGTH), batch_size=BATCH, transform=transforms.same),
    "processes": lambda: DataLoader(
        rows(LENGTH), batch_size=BATCH, transform=transforms.same, transform_workers=2
    ),
    "torch": torch_loader,
    "jax": jax_loader,
    "custom": lambda: DataLoader(rows(LENGTH), sampler=Listed()),
    "custom inline": lambda: DataLoader(rows(LENGTH), sampler=Listed(), workers=0),
    "prioritized": lambda: DataLoader(rows(LENGTH), sampler=PrioritizedSampler(LENGTH, BATCH)),
    "prioritized inline": lambda: DataLoader(
        Plain(rows(LENGTH)), sampler=PrioritizedSampler(LENGTH, BATCH), workers=0
    ),
}


class Interrupts:
    """Sends signals at random moments; the handler raises if `next()` of a loader is running.

    There are at most a few signals per batch, so that the loader gets on.
    """

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - moments, not secrets
        self._left = 0
        self.count = 0

    def send_soon(self) -> None:
        """Send some signals, one after the other."""
        self._left = self._rng.choice((1, 1, 1, 2, 5))
        pauses = [10 ** self._rng.uniform(-5, -2.5) for _ in range(2)]
        signal.setitimer(signal.ITIMER_REAL, *pauses)

    def handle(self, number: int, frame: FrameType | None) -> None:
        del number
        self._left -= 1
        if self._left <= 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
        while frame is not None:
            if frame.f_code is DataLoader.__next__.__code__:
                self.count += 1
                raise StopRequest
            frame = frame.f_back


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def nothing_remains() -> Iterator[None]:
    """Check that there are the same threads, processes and descriptors as before."""
    for kind in ("torch", "jax", "processes"):  # libraries have threads and files of their own
        with KINDS[kind]() as loader:
            next(loader)
    gc.collect()
    threads, files = threads_of_this_process(), _open_files()
    yield
    gc.collect()
    assert loader_threads() == []
    assert multiprocessing.active_children() == []
    wait_for_end_of_threads(threads)
    assert _open_files() <= files


def _next(batches: Iterator[Any]) -> Any:
    """Return the next batch, however often this is interrupted."""
    while True:
        with contextlib.suppress(StopRequest):
            return next(batches)


@pytest.mark.usefixtures("nothing_remains")
@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_at_any_moment(kind: str, record_property: Note) -> None:
    expected: Iterator[Any] = Sampler(LENGTH, BATCH)
    if kind.startswith("prioritized"):
        expected = (drawn for drawn, _ in PrioritizedSampler(LENGTH, BATCH))
    taken = 0
    interrupts = Interrupts(f"{SEED} {kind}")
    with alarms(interrupts.handle), KINDS[kind]() as loader:
        batches = iter(loader)
        while interrupts.count < INTERRUPTS:
            interrupts.send_soon()
            batch = _next(batches)
            taken += 1
            assert np.asarray(batch["id"]).tolist() == next(expected).tolist(), taken
            assert loader.state_dict()["position"] == taken * BATCH
    record_property("figure", f"loaders: {kind}: {interrupts.count} interrupts in {taken} batches")


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The exceptions of signal handlers that Python reported as dropped."""
    found: list[object] = []
    before = sys.unraisablehook

    def note(unraisable: Any) -> None:
        if unraisable.exc_type is StopRequest:
            found.append(unraisable.object)
        else:
            before(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", note)
    return found


@pytest.mark.usefixtures("nothing_remains")
@pytest.mark.parametrize("loop", ["epoch", "endless", "finite"])
@pytest.mark.parametrize("workers", [0, 2])
def test_loop_interrupted_at_any_moment(
    loop: str, workers: int, dropped: list[object], record_property: Note
) -> None:
    """The handler raises wherever it runs: in the loader, or between it and the loop."""
    rng = random.Random(f"{SEED} {loop} {workers}")  # noqa: S311 - moments, not secrets
    is_armed, count = False, 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_armed, count
        del number, frame
        if is_armed:
            is_armed = False
            count += 1
            raise StopRequest

    epochs = 1 << 20 if loop == "finite" else None
    taken = raised = 0
    loader = DataLoader(rows(LENGTH), batch_size=BATCH, workers=workers, epochs=epochs)
    with alarms(handle), loader:
        batches = iter(loader)
        while count < 10 * INTERRUPTS:
            if loop == "epoch":
                batches = loader.epoch()
            pause = 10 ** rng.uniform(-5, -3)
            try:
                is_armed = True
                signal.setitimer(signal.ITIMER_REAL, pause)
                for _ in batches:
                    taken += 1
                    if not is_armed:  # Python dropped the exception, see above
                        break
            except StopRequest:
                raised += 1
            is_armed = False
            assert loader.position == taken * BATCH
    # The loader itself drops no exception.
    assert raised == count - len(dropped)
    record_property("figure", f"loaders: {loop} loop: {count} interrupts in {taken} batches")
