"""TorchRL: `ReplayBuffer` over memory-mapped files or tensors, in an environment of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.data import files_under
from benches.peers import module
from benches.peers.buffer_peer import ALPHA, BATCH, BETA, Buffer, BufferPeer, Drawn, new_priorities
from benches.peers.replay_torchrl import TorchRLRun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benches.peers import Setting
    from benches.replay.stacks import Block

NAMES = {"memmap": "TorchRL LazyMemmapStorage", "tensor": "TorchRL LazyTensorStorage"}
PREFETCH = 3
FIELDS = ("observation", ("next", "observation"))


class TorchRLBuffer(BufferPeer):
    """`TensorDictReplayBuffer(storage=, sampler=, prefetch=)`, with and without prefetching."""

    family: ClassVar[str] = "torchrl"
    packages: ClassVar[tuple[str, ...]] = TorchRLRun.packages
    python: ClassVar[Path | None] = TorchRLRun.python
    hint: ClassVar[str] = TorchRLRun.hint

    def __init__(self, kind: str) -> None:
        what, _, way = kind.partition(" ")
        self.kind, self.name = kind, NAMES[what]
        self.is_prioritized = way == "prioritized"

    def buffer(self, folder: Path, steps: int, shape: tuple[int, ...]) -> Buffer:
        """A storage of all steps."""
        del shape
        kind = self.kind.partition(" ")[0]
        return _Buffer(kind, folder, steps, is_prioritized=self.is_prioritized)


class _Buffer(Buffer):
    def __init__(self, kind: str, folder: Path, steps: int, *, is_prioritized: bool) -> None:
        self._data = module("torchrl.data")
        self._kind, self._steps, self._is_prioritized = kind, steps, is_prioritized
        self._folder = folder / "storage"
        if kind == "memmap":
            self._folder.mkdir(parents=True, exist_ok=True)
            self._storage = self._data.LazyMemmapStorage(steps, scratch_dir=self._folder)
        else:
            self._storage = self._data.LazyTensorStorage(steps)
        self._priorities, self._count = new_priorities().astype(np.float32), 0
        self._buffer = self._made(0)

    def add(self, block: Block) -> None:
        torch = module("torch")
        count = len(block.numbers)
        steps = {
            "observation": torch.from_numpy(block.observation),
            "action": torch.from_numpy(block.numbers),
            "next": {
                "observation": torch.from_numpy(block.next_observation),
                "reward": torch.ones(count),
                "done": torch.from_numpy(block.terminated),
            },
        }
        self._buffer.extend(module("tensordict").TensorDict(steps, batch_size=[count]))

    def settings(self) -> Sequence[Setting]:
        """Batches ahead: a priority that was changed reaches the next draw only without them."""
        return (
            [{"prefetch": 0}] if self._is_prioritized else [{"prefetch": 0}, {"prefetch": PREFETCH}]
        )

    def use(self, setting: Setting) -> None:
        self.ahead = int(setting["prefetch"])
        if not self._is_prioritized:
            self._buffer = self._made(self.ahead)

    def draw(self) -> Any:
        batch = self._buffer.sample()
        if self._is_prioritized:
            self._buffer.update_priority(batch["index"], self._priorities[self._count % 64])
            self._count += 1
        return batch

    def drawn(self, batch: Any) -> Drawn:
        return Drawn(batch["action"].numpy().ravel(), *(batch[each].numpy() for each in FIELDS))

    def array_bytes(self) -> int:
        steps = self._storage.get(slice(0, self._steps))
        return sum(steps[each].nbytes for each in FIELDS)

    def files(self) -> list[Path]:
        return list(files_under(self._folder)) if self._kind == "memmap" else []

    def reopen(self) -> None:
        if self._kind != "memmap":
            super().reopen()
        steps = module("tensordict").TensorDict.load_memmap(self._folder)
        self._storage = self._data.TensorStorage(steps)
        self._buffer = self._made(self.ahead)

    def close(self) -> None:
        # Pages that are mapped stay in the page cache.
        self._buffer = self._storage = None

    def _made(self, prefetch: int) -> Any:
        given: dict[str, Any] = {"prefetch": prefetch} if prefetch else {}
        if self._is_prioritized:
            sampler = self._data.PrioritizedSampler(self._steps, ALPHA, BETA)
            given = {"sampler": sampler, "priority_key": "td_error"}
        return self._data.TensorDictReplayBuffer(storage=self._storage, batch_size=BATCH, **given)
