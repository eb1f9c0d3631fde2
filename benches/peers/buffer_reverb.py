"""Reverb: a server in the same process, read through its dataset; in an environment of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import module
from benches.peers.buffer_peer import BATCH, Buffer, BufferPeer, Drawn

if TYPE_CHECKING:
    from benches.replay.stacks import Block

TABLE = "steps"
IN_FLIGHT = 512


class ReverbBuffer(BufferPeer):
    """`Table(Uniform, Fifo)`, `TrajectoryWriter`, `TrajectoryDataset(…).batch(256)`.

    Each step is an item with its observation and the one after it, which two items share; what is
    seen after the last step of an episode is written as a step of its own.
    """

    name = "Reverb"
    family: ClassVar[str] = "reverb"
    packages: ClassVar[tuple[str, ...]] = ("dm-reverb", "tensorflow")
    python: ClassVar[Path | None] = Path(".venv-reverb/bin/python")
    hint: ClassVar[str] = (
        "python -m venv .venv-reverb; .venv-reverb/bin/pip install -r benches/replay/reverb.txt"
    )

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def buffer(self, folder: Path, steps: int, shape: tuple[int, ...]) -> Buffer:
        """A table of all steps."""
        del folder
        return _Buffer(steps, shape)


class _Buffer(Buffer):
    ahead = 4

    def __init__(self, steps: int, shape: tuple[int, ...]) -> None:
        reverb, tf = module("reverb"), module("tensorflow")
        signature = {
            "action": tf.TensorSpec([1], tf.int64),
            "observation": tf.TensorSpec([2, *shape], tf.uint8),
        }
        table = reverb.Table(
            TABLE,
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=steps,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        self._before = _resident_bytes()
        self._server = reverb.Server(tables=[table], port=None)
        self._client = reverb.Client(f"localhost:{self._server.port}")
        self._writer = self._client.trajectory_writer(num_keep_alive_refs=2)

    def add(self, block: Block) -> None:
        for at, number in enumerate(block.numbers):
            self._append(block.observation[at], number)
        if block.terminated[-1]:
            self._append(block.next_observation[-1], np.int64(-1))
            self._writer.end_episode()
        else:
            self._writer.flush(block_until_num_items=0)

    def _append(self, observation: Any, number: Any) -> None:
        self._writer.append({"observation": observation, "action": number})
        history = self._writer.history
        if len(history["action"]) > 1:
            item = {"action": history["action"][-2:-1], "observation": history["observation"][-2:]}
            self._writer.create_item(TABLE, priority=1.0, trajectory=item)

    def complete(self) -> None:
        self._writer.flush()
        dataset = module("reverb").TrajectoryDataset.from_table_signature(
            f"localhost:{self._server.port}", TABLE, max_in_flight_samples_per_worker=IN_FLIGHT
        )
        batches = dataset.batch(BATCH).prefetch(self.ahead)
        self._batches = batches.as_numpy_iterator()

    def draw(self) -> Any:
        return next(self._batches)

    def drawn(self, batch: Any) -> Drawn:
        both = batch.data["observation"]
        return Drawn(batch.data["action"].ravel(), both[:, 0], both[:, 1])

    def array_bytes(self) -> int:
        """What the process has more than before the server: it compresses its chunks."""
        return _resident_bytes() - self._before

    def close(self) -> None:
        self._server.stop()


def _resident_bytes() -> int:
    with Path("/proc/self/status").open(encoding="ascii") as lines:
        found = next(line for line in lines if line.startswith("RssAnon:"))
    return int(found.split()[1]) << 10
