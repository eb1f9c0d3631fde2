"""TorchRL: a replay buffer over memory-mapped files, in an environment of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import module
from benches.peers.replay_peer import Reader, ReplayPeer, Writer
from benches.replay.scenes import FRAME, OBSERVATION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benches.replay.scenes import Step

BLOCK = 64
FIELDS: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
    "frame": (FRAME, np.uint8),
    "observation": (OBSERVATION, np.uint8),
    "action": ((), np.int64),
    "reward": ((), np.float32),
    "terminated": ((), np.bool_),
}


class TorchRLRun(ReplayPeer):
    """`ReplayBuffer(storage=LazyMemmapStorage(steps))`, extended by 64 steps at a time.

    Its files have the size of all steps from the first block on, and are not compressed.
    """

    name = "TorchRL memmap"
    family: ClassVar[str] = "torchrl"
    packages: ClassVar[tuple[str, ...]] = ("torchrl", "tensordict", "torch")
    python: ClassVar[Path | None] = Path(".venv-torchrl/bin/python")
    hint: ClassVar[str] = (
        "python -m venv .venv-torchrl; .venv-torchrl/bin/pip install -r benches/replay/torchrl.txt"
    )

    def writer(self, root: Path, steps: int) -> Writer:
        """A buffer that holds all steps."""
        return _Writer(root, steps)

    def reader(self, root: Path) -> Reader:
        """`TensorDict.load_memmap(root)`."""
        return _Reader(root)


class _Writer(Writer):
    def __init__(self, root: Path, steps: int) -> None:
        data = module("torchrl.data")
        self._tensordict, self._from_numpy = (
            module("tensordict").TensorDict,
            module("torch").from_numpy,
        )
        storage = data.LazyMemmapStorage(steps, scratch_dir=root)
        self._buffer = data.ReplayBuffer(storage=storage)
        self._block: dict[str, NDArray[Any]] = {
            name: np.empty((BLOCK, *shape), dtype) for name, (shape, dtype) in FIELDS.items()
        }
        self._filled = 0

    def step(self, step: Step) -> None:
        for name, rows in self._block.items():
            rows[self._filled] = getattr(step, name)
        self._filled += 1
        if self._filled == BLOCK:
            self._write()

    def close(self) -> None:
        if self._filled:
            self._write()

    def _write(self) -> None:
        tensors = {
            name: self._from_numpy(rows[: self._filled]) for name, rows in self._block.items()
        }
        self._buffer.extend(self._tensordict(tensors, batch_size=[self._filled]))
        self._filled = 0


class _Reader(Reader):
    def __init__(self, root: Path) -> None:
        self._steps = module("tensordict").TensorDict.load_memmap(root)

    def arrays(self, episode: int, first: int, count: int) -> tuple[Any, Any]:
        del episode
        part = self._steps[first : first + count]
        # A slice is a view of the file; a copy of it is in memory.
        return part["frame"].clone(), part["observation"].clone()

    def close(self) -> None:
        """A map needs no closing."""
