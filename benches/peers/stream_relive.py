"""relive: `relive.dataset(…).table().batches(shuffle=True, shard="auto")`, every read verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_relive import RelivePeer
from benches.peers.stream_peer import SEED, ArrowForm, DictForm, Rank, StreamPeer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.peers import Setting
    from benches.peers.publish_peer import Place
    from benches.publish.table import Sums

DATASET = "bench/same"
BATCHES, TORCH, REMOTE, LOCAL = (
    "relive",
    "relive, to_torch",
    "relive, no cache",
    "relive, local Parquet",
)


class _Relive(StreamPeer):
    """The Parquet files published unchanged.

    `mode="auto"` caches what it reads, `mode="remote"` writes nothing to disk. With `local` the
    root is a folder with the same files, and the server is not asked.
    """

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive", "pyarrow", "obstore", "torch")
    python: ClassVar[Path | None] = None
    bucket: ClassVar[str] = "relive"

    def __init__(self, *, mode: str = "auto", local: str = "") -> None:
        self.stored = "relive, local" if local else "relive"
        self.only_alone = bool(local)
        self.given = {"mode": mode, "local": local}
        self._mode = mode
        self._local = local

    def settings(self, world: int) -> Sequence[Setting]:
        """Its defaults."""
        del world
        return [{}]

    def load(self) -> None:
        """Import relive with what it imports at the first use, and torch."""
        RelivePeer(rewrite=False).load()
        module("torch")

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """`DatasetBuilder(…).add_table("main", files).publish()`."""
        builder = module("relive").DatasetBuilder(DATASET, root=self._root(place))
        builder.add_table("main", [str(path) for path in files])
        builder.publish()

    def settle(self) -> None:
        """The cache is written after batches are returned: wait until it has all of them."""
        module("relive.store.cache").open_cache().flush()

    def warm(self, place: Place) -> bool:
        """`dataset.warm()`, in a process that does nothing else; whether all was cached."""
        return bool(self._dataset(place).warm().is_complete)

    def _dataset(self, place: Place) -> Any:
        return module("relive").dataset(DATASET, root=self._root(place), mode=self._mode)

    def _root(self, place: Place) -> str:
        return self._local or place.url


class ReliveBatches(_Relive, ArrowForm):
    """`table.batches(…)`: Arrow record batches."""

    def __init__(self, *, mode: str = "auto", local: str = "") -> None:
        super().__init__(mode=mode, local=local)
        self.name = LOCAL if local else REMOTE if mode == "remote" else BATCHES

    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """The stream; ranks are taken from the environment."""
        del setting, rank
        table = self._dataset(place).table()
        self._stream = table.batches(batch_size, shuffle=True, seed=SEED, shard="auto")

    def epoch(self, number: int) -> Iterator[Any]:
        """`stream.set_epoch(number)`, which continues where it is, then the stream."""
        self._stream.set_epoch(number)
        return iter(self._stream)

    def state(self) -> Any:
        """`stream.state_dict()`."""
        return self._stream.state_dict()

    def restore(self, state: Any) -> None:
        """`stream.load_state_dict(…)`."""
        self._stream.load_state_dict(state)

    def close(self) -> None:
        """End its threads."""
        if hasattr(self, "_stream"):
            self._stream.close()


class ReliveTorch(_Relive, DictForm):
    """`dataset.to_torch(…)`, iterated in its own process."""

    name = TORCH

    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """The torch dataset; ranks are taken from the environment."""
        del setting, rank
        table = self._dataset(place).table()
        self._loader = table.to_torch(batch_size, shuffle=True, seed=SEED, shard="auto")

    def epoch(self, number: int) -> Iterator[Any]:
        """`set_epoch(number)`, which continues where it is, then the dataset."""
        self._loader.set_epoch(number)
        return iter(self._loader)

    def features(self, batch: Any) -> tuple[Any, Any]:
        """Two of the tensors."""
        return super().features(_with_matrix(batch))

    def sums(self, batch: Any) -> Sums:
        """The sums of a batch."""
        return super().sums(_with_matrix(batch))

    def state(self) -> Any:
        """`state_dict()`."""
        return self._loader.state_dict()

    def restore(self, state: Any) -> None:
        """`load_state_dict(…)`."""
        self._loader.load_state_dict(state)


def _with_matrix(batch: dict[str, Any]) -> dict[str, Any]:
    """A column of lists comes as values and offsets; here all lists are equally long."""
    found = batch["embedding"]
    if not isinstance(found, dict):
        return batch
    return {**batch, "embedding": found["values"].reshape(len(batch["label"]), -1)}
