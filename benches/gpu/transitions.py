"""Transitions of a recorded run: the case, and relive's loader that delivers them to a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.data import Case
from benches.gpu.device import to_host, waiter
from benches.peers import Peer, Setting, Stream, module
from benches.peers.buffer_relive import RUN_ID, ReliveBuffer
from benches.replay.scenes import Scene
from benches.replay.stacks import STACK_BYTES, Stacks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benches.data import Bytes

SCENE = "textured"
NUMBER_BYTES = 8
STEP_BYTES = 2 * STACK_BYTES + NUMBER_BYTES
_PREFETCH = 4


@dataclass(frozen=True)
class TransitionsCase(Case):
    """Steps of a run: what was observed, what was observed next, and the number of the step.

    relive reads the run; whoever needs every step as a row gets them in memory.
    """

    axis: str = "first"

    @property
    def run_folder(self) -> Path:
        """The folder of the run, whose planes are stored without a codec."""
        return self.folder / f"transitions-{self.axis}-{self.records}"

    @cached_property
    def stacks(self) -> Stacks:
        """What is observed."""
        return Stacks(Scene.load(self.folder, SCENE).planes, self.axis)

    @cached_property
    def _records(self) -> Bytes:
        records = np.empty((self.records, STEP_BYTES), np.uint8)
        filled = 0
        for block in self.stacks.blocks(self.records):
            rows = records[filled : filled + len(block.numbers)]
            rows[:, :STACK_BYTES] = block.observation.reshape(len(rows), -1)
            rows[:, STACK_BYTES:-NUMBER_BYTES] = block.next_observation.reshape(len(rows), -1)
            rows[:, -NUMBER_BYTES:] = _bytes_of(block.numbers)
            filled += len(rows)
        return records

    def memmap(self) -> Bytes:
        """All steps, in memory."""
        return self._records

    def make(self) -> None:
        """Record the run, unless it is there."""
        self.run_folder.mkdir(parents=True, exist_ok=True)
        run = ReliveBuffer("raw").buffer(self.run_folder, self.records, self.stacks.shape)
        if not run.is_filled:
            for block in self.stacks.blocks(self.records):
                run.add(block)
        run.complete()
        run.close()

    def check(self, batch: NDArray[Any]) -> None:
        """Raise unless `batch` is one full batch of steps, byte for byte."""
        rows = np.asarray(batch)
        numbers = np.ascontiguousarray(rows[:, -NUMBER_BYTES:]).view(np.int64).ravel()
        if len(rows) != self.batch_size or not np.array_equal(rows, self.memmap()[numbers]):
            message = "delivered other steps than were recorded"
            raise AssertionError(message)


class ReliveTransitions(Peer):
    """`relive.load.torch.DataLoader(run.transitions(), mode="random", device=…, workers=…)`."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive", "torch")

    def __init__(self, device: Any, workers: int) -> None:
        self.name = f"relive transitions, {workers} worker{'s' * (workers > 1)}"
        self.device = device
        self.workers = workers

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of workers it was made for."""
        return [{"workers": self.workers}]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the loader."""
        assert isinstance(case, TransitionsCase)
        workers = int(setting["workers"])
        run = module("relive.replay").ReplayRun(case.run_folder / "root", RUN_ID)
        loader = module("relive.load.torch").DataLoader(
            run.transitions(),
            batch_size=case.batch_size,
            mode="random",
            seed=case.seed,
            workers=workers,
            prefetch=_PREFETCH,
            device=self.device,
        )
        return Stream(
            iter(loader),
            _rows,
            ahead=_PREFETCH + workers,
            close=loader.close,
            finish=waiter(self.device),
        )


def _rows(batch: dict[str, Any]) -> NDArray[Any]:
    """The steps of a batch as rows of the case."""
    count = len(batch["action"])
    seen = [to_host(batch[name]) for name in ("observation", "next_observation")]
    numbers = _bytes_of(to_host(batch["action"]).astype(np.int64))
    return np.concatenate([*(each.reshape(count, -1) for each in seen), numbers], axis=1)


def _bytes_of(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, NUMBER_BYTES)
