"""cpprb: arrays in memory, with the next observation stored, shared, or as parts of stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import module
from benches.peers.buffer_peer import (
    ALPHA,
    BATCH,
    BETA,
    BUFFERS_HINT,
    BUFFERS_PYTHON,
    Buffer,
    BufferPeer,
    Drawn,
    new_priorities,
)
from benches.replay.scenes import STACK

if TYPE_CHECKING:
    from pathlib import Path

    from benches.replay.stacks import Block

KINDS: dict[str, dict[str, Any]] = {
    "both": {},
    "next_of": {"next_of": "obs"},
    "stacks": {"next_of": "obs", "stack_compress": "obs"},
}
NAMES = {
    "both": "cpprb",
    "next_of": "cpprb, next_of",
    "stacks": "cpprb, next_of and stack_compress",
}


class CpprbBuffer(BufferPeer):
    """`ReplayBuffer(size, env_dict, next_of=, stack_compress=)`, or `PrioritizedReplayBuffer`."""

    family: ClassVar[str] = "cpprb"
    packages: ClassVar[tuple[str, ...]] = ("cpprb",)
    python: ClassVar[Path | None] = BUFFERS_PYTHON
    hint: ClassVar[str] = BUFFERS_HINT

    def __init__(self, kind: str) -> None:
        what, _, way = kind.partition(" ")
        self.kind, self.name = kind, NAMES[what]
        self.is_prioritized = way == "prioritized"

    def buffer(self, folder: Path, steps: int, shape: tuple[int, ...]) -> Buffer:
        """Arrays of all steps."""
        del folder
        kind = self.kind.partition(" ")[0]
        return _Buffer(kind, steps, shape, is_prioritized=self.is_prioritized)


class _Buffer(Buffer):
    def __init__(
        self, kind: str, steps: int, shape: tuple[int, ...], *, is_prioritized: bool
    ) -> None:
        if kind == "stacks" and shape[-1] != STACK:
            message = "compresses stacks on the last axis only"
            raise NotImplementedError(message)
        cpprb = module("cpprb")
        pixels = {"shape": shape, "dtype": np.uint8}
        env = {"obs": pixels, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        if kind == "both":
            env["next_obs"] = pixels
        self._is_prioritized = is_prioritized
        if is_prioritized:
            self._buffer = cpprb.PrioritizedReplayBuffer(steps, env, alpha=ALPHA, **KINDS[kind])
        else:
            self._buffer = cpprb.ReplayBuffer(steps, env, **KINDS[kind])
        self._priorities, self._count = new_priorities(), 0
        stacks = {"both": 2.0, "next_of": 1.0, "stacks": 1 / shape[-1]}[kind]
        self._bytes = round(stacks * steps * int(np.prod(shape)))

    def add(self, block: Block) -> None:
        count = len(block.numbers)
        self._buffer.add(
            obs=block.observation,
            next_obs=block.next_observation,
            act=block.numbers,
            rew=np.ones(count),
            done=block.terminated,
        )
        if block.terminated[-1]:
            self._buffer.on_episode_end()

    def draw(self) -> Any:
        if not self._is_prioritized:
            return self._buffer.sample(BATCH)
        batch = self._buffer.sample(BATCH, beta=BETA)
        self._buffer.update_priorities(batch["indexes"], self._priorities[self._count % 64])
        self._count += 1
        return batch

    def drawn(self, batch: Any) -> Drawn:
        return Drawn(batch["act"].ravel(), batch["obs"], batch["next_obs"])

    def array_bytes(self) -> int:
        """Its arrays of pixels, as it declares them."""
        return self._bytes
