"""Everyone who streams a table into a training loop, behind one small interface.

A peer is used as its own documentation recommends for training. Packages are imported late: a
peer whose package is in another environment is described here and runs there.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from benches.peers import module
from benches.publish.table import COLUMNS, Sums, sums_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benches.peers import Setting
    from benches.peers.publish_peer import Place

SEED = 7
STREAM_PYTHON = Path(".venv-stream/bin/python")
STREAM_HINT = (
    "python -m venv .venv-stream; .venv-stream/bin/pip install -r benches/stream/peers.txt"
)


class Rank(NamedTuple):
    """One of the processes that train together."""

    number: int
    world: int

    @classmethod
    def here(cls) -> Rank:
        """What the variables of this process say, as torchrun sets them."""
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


class StreamPeer(ABC):
    """One library: opened once in a process, then iterated epoch by epoch, shuffled."""

    name: str
    """What tables call it."""
    family: ClassVar[str]
    """What `--only-peers` calls it."""
    packages: ClassVar[tuple[str, ...]]
    """The distributions whose versions belong to its figures."""
    python: ClassVar[Path | None] = STREAM_PYTHON
    """The interpreter of its environment; None: this one."""
    hint: ClassVar[str] = STREAM_HINT
    """How that environment is made."""
    bucket: ClassVar[str]
    stored: str
    """What it puts on the server; those who read the same objects have the same."""
    given: Mapping[str, Any] = MappingProxyType({})
    """The arguments it was made with."""
    score_error: ClassVar[float] = 0.0
    """How far its scores, of 64 bits, may be off: some loaders make them 32 bits."""
    only_alone: bool = False
    """It trains with one rank alone: with several, another form of the same library does."""
    no_state: ClassVar[str] = ""
    """Why it cannot resume in the middle of an epoch; empty: it can."""

    def settings(self, world: int) -> Sequence[Setting]:
        """All settings to try for so many ranks; the fastest one is timed.

        Eight ranks on two cores have more processes than that already.
        """
        return [{"workers": count} for count in ((0, 2) if world == 1 else (0,))]

    @abstractmethod
    def load(self) -> None:
        """Import everything; this is not on the clock."""

    @abstractmethod
    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """Put the table on the server."""

    @abstractmethod
    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """Open the table for training."""

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Any]:
        """Batches of an epoch, or of what is left of it after `restore`."""

    def settle(self) -> None:  # noqa: B027 - most write while they read
        """Wait until what was fetched is where the next epoch reads it."""

    def state(self) -> Any:
        """Where the iteration is, after any batch."""
        raise NotImplementedError(self.no_state)

    def restore(self, state: Any) -> None:
        """Continue there, in another process."""
        del state
        raise NotImplementedError(self.no_state)

    def close(self) -> None:  # noqa: B027 - most end with the process
        """End workers and threads."""

    @abstractmethod
    def count(self, batch: Any) -> int:
        """Rows of a batch."""

    @abstractmethod
    def features(self, batch: Any) -> tuple[Any, Any]:
        """What the training step takes: embeddings (rows, 16) and labels, as torch tensors."""

    @abstractmethod
    def ids(self, batch: Any) -> Any:
        """The ids of a batch as a NumPy array, in the order of its rows."""

    @abstractmethod
    def sums(self, batch: Any) -> Sums:
        """The sums of a batch."""


class ArrowForm(StreamPeer):
    """Those whose batches are Arrow record batches or tables."""

    def count(self, batch: Any) -> int:
        """Rows of a batch."""
        return int(batch.num_rows)

    def features(self, batch: Any) -> tuple[Any, Any]:
        """The Arrow buffers, copied once: torch refuses memory that is read-only."""
        torch, numpy = module("torch"), module("numpy")
        embeddings = batch.column("embedding")
        if hasattr(embeddings, "combine_chunks"):
            embeddings = embeddings.combine_chunks()
        flat = numpy.array(embeddings.flatten())
        labels = numpy.array(batch.column("label"))
        return torch.from_numpy(flat.reshape(len(labels), -1)), torch.from_numpy(labels)

    def ids(self, batch: Any) -> Any:
        """The ids of a batch."""
        return module("numpy").array(batch.column("id"))

    def sums(self, batch: Any) -> Sums:
        """The sums of a batch."""
        return sums_of(batch)


class DictForm(StreamPeer):
    """Those whose batches are dicts: tensors of numbers, lists of texts and of bytes."""

    def count(self, batch: Any) -> int:
        """Rows of a batch."""
        return len(batch["label"])

    def features(self, batch: Any) -> tuple[Any, Any]:
        """Two of the tensors."""
        return batch["embedding"], batch["label"]

    def ids(self, batch: Any) -> Any:
        """The ids of a batch."""
        return batch["id"].numpy()

    def sums(self, batch: Any) -> Sums:
        """The sums of a batch."""
        missing = sorted(set(COLUMNS) - set(batch))
        if missing:
            message = f"batches do not have {', '.join(missing)}"
            raise AssertionError(message)
        return Sums(
            len(batch["label"]),
            int(batch["id"].sum()),
            int(batch["label"].sum()),
            float(batch["score"].double().sum()),
            sum(len(text.encode()) for text in batch["text"]),
            sum(len(payload) for payload in batch["payload"]),
            float(batch["embedding"].double().sum()),
        )


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file as dicts, embeddings as NumPy arrays."""
    table = module("pyarrow.parquet").read_table(path)
    embeddings = table["embedding"].combine_chunks().flatten().to_numpy()
    embeddings = embeddings.reshape(table.num_rows, -1)
    rows = table.drop_columns("embedding").to_pylist()
    for row, embedding in zip(rows, embeddings, strict=True):
        yield {**row, "embedding": embedding}


def join_ranks(rank: Rank) -> None:
    """Start torch's process group, as a training job does before it loads data."""
    if rank.world > 1:
        module("torch.distributed").init_process_group("gloo")
