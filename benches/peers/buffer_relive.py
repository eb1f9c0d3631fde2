"""relive: the transitions of a run that was recorded, uniform and by priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.data import files_under
from benches.peers import module
from benches.peers.buffer_peer import (
    ALPHA,
    BATCH,
    BETA,
    Buffer,
    BufferPeer,
    Drawn,
    new_priorities,
)

if TYPE_CHECKING:
    from pathlib import Path

    from benches.replay.stacks import Block

RUN_ID = "bench-run"
KINDS = {
    "raw": "relive, planes mapped",
    "cached": "relive, planes cached",
    "sample": "relive, sample()",
}


class ReliveBuffer(BufferPeer):
    """`DataLoader(run.transitions(), batch_size=256, mode="random")` at its defaults.

    "Mapped" is a run whose planes are stored without a codec, "cached" one with the default codec,
    whose planes are decoded once. "sample()" draws without a loader, from the mapped run.
    """

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive", "numpy")

    def __init__(self, kind: str) -> None:
        what, _, way = kind.partition(" ")
        self.kind, self.name = kind, KINDS[what]
        self.is_prioritized = way == "prioritized"

    def buffer(self, folder: Path, steps: int, shape: tuple[int, ...]) -> Buffer:
        """A recorder, then the transitions of its run."""
        del steps, shape
        return _Buffer(folder, self.kind.partition(" ")[0], is_prioritized=self.is_prioritized)


class _Buffer(Buffer):
    def __init__(self, folder: Path, kind: str, *, is_prioritized: bool) -> None:
        replay = module("relive.replay")
        self._kind, self._is_prioritized = kind, is_prioritized
        self._root = folder / "root"
        self._priorities, self._count = new_priorities(), 0
        self._batches: Any = None
        self._loader: Any = None
        self._recorder: Any = None
        self._sampler: Any = None
        if (self._root / "replay" / f"{RUN_ID}.h5").exists():
            self.is_filled = True
        else:
            codec = "zstd:1" if kind == "cached" else "raw"
            config = replay.ReplayConfig(codec={"observations": codec})
            self._recorder = replay.ReplayRecorder(self._root, RUN_ID, live=False, config=config)

    def add(self, block: Block) -> None:
        step, last = self._recorder.step, len(block.numbers) - 1
        ends = block.terminated.tolist()
        for at, number in enumerate(block.numbers.tolist()):
            after = block.next_observation[at] if at == last and ends[at] else None
            step(block.observation[at], number, 1.0, ends[at], next_observation=after)

    def complete(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        self._open()

    def reopen(self) -> None:
        self.close()
        self._open()

    def draw(self) -> Any:
        batch = next(self._batches)
        if self._sampler is not None:
            self._sampler.update(batch["index"], self._priorities[self._count % 64])
            self._count += 1
        return batch

    def drawn(self, batch: Any) -> Drawn:
        return Drawn(batch["action"], batch["observation"], batch["next_observation"])

    def array_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files() if path.suffix == ".h5")

    def files(self) -> list[Path]:
        return list(files_under(self._root))

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()
        self._batches = self._loader = self._sampler = None

    def _open(self) -> None:
        relive = module("relive")
        transitions = module("relive.replay").ReplayRun(self._root, RUN_ID).transitions()
        if self._kind == "sample":
            self._batches = transitions.batches(BATCH, generator=np.random.default_rng(0))
            return
        if self._is_prioritized:
            self._sampler = relive.PrioritizedSampler(transitions, BATCH, alpha=ALPHA, beta=BETA)
            self._loader = relive.DataLoader(transitions, sampler=self._sampler)
        else:
            self._loader = relive.DataLoader(transitions, batch_size=BATCH, mode="random")
        self.ahead = 8
        self._batches = iter(self._loader)
