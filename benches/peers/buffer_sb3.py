"""Stable-Baselines3: `ReplayBuffer`, arrays in memory; batches are tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import module
from benches.peers.buffer_peer import (
    BATCH,
    BUFFERS_HINT,
    BUFFERS_PYTHON,
    Buffer,
    BufferPeer,
    Drawn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from benches.replay.stacks import Block

NAMES = {"both": "Stable-Baselines3", "shared": "Stable-Baselines3, optimize_memory_usage"}


class Sb3Buffer(BufferPeer):
    """`ReplayBuffer(size, observation_space, action_space, device="cpu")`.

    With `optimize_memory_usage` it keeps each observation once, and what is seen after the last
    step of an episode is lost: the first observation of the next one is drawn instead.
    """

    family: ClassVar[str] = "sb3"
    packages: ClassVar[tuple[str, ...]] = ("stable-baselines3", "torch")
    python: ClassVar[Path | None] = BUFFERS_PYTHON
    hint: ClassVar[str] = BUFFERS_HINT

    def __init__(self, kind: str) -> None:
        self.kind, self.name = kind, NAMES[kind]

    def buffer(self, folder: Path, steps: int, shape: tuple[int, ...]) -> Buffer:
        """Arrays of all steps."""
        del folder
        return _Buffer(self.kind, steps, shape)


class _Buffer(Buffer):
    def __init__(self, kind: str, steps: int, shape: tuple[int, ...]) -> None:
        spaces = module("gymnasium.spaces")
        self._is_shared = kind == "shared"
        self._buffer = module("stable_baselines3.common.buffers").ReplayBuffer(
            steps,
            spaces.Box(0, 255, shape, np.uint8),
            spaces.Discrete(1 << 40),
            device="cpu",
            optimize_memory_usage=self._is_shared,
            handle_timeout_termination=not self._is_shared,
        )

    def add(self, block: Block) -> None:
        info: list[dict[str, Any]] = [{}]
        for at in range(len(block.numbers)):
            row = slice(at, at + 1)
            self._buffer.add(
                block.observation[row],
                block.next_observation[row],
                block.numbers[row],
                np.ones(1),
                block.terminated[row],
                info,
            )

    def draw(self) -> Any:
        return self._buffer.sample(BATCH)

    def drawn(self, batch: Any) -> Drawn:
        # What it draws after the last step of an episode is not what was seen then.
        known = ~batch.dones.numpy().ravel().astype(bool) if self._is_shared else slice(None)
        return Drawn(
            batch.actions.numpy().ravel()[known],
            batch.observations.numpy()[known],
            batch.next_observations.numpy()[known],
        )

    def array_bytes(self) -> int:
        arrays = [self._buffer.observations]
        if not self._is_shared:
            arrays.append(self._buffer.next_observations)
        return sum(array.nbytes for array in arrays)
