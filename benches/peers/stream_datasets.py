"""Hugging Face datasets: the same Parquet files in a bucket, streamed and shuffled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_datasets import HuggingFaceStreaming
from benches.peers.publish_peer import KEY, SECRET, Place
from benches.peers.stream_peer import SEED, ArrowForm, DictForm, Rank, StreamPeer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.peers import Setting

BUFFER_ROWS = 10_000
"""The shuffle buffer of the examples in its documentation."""


class _Streamed(StreamPeer):
    family: ClassVar[str] = "datasets"
    packages: ClassVar[tuple[str, ...]] = ("datasets", "s3fs", "fsspec", "pyarrow", "torch")
    bucket: ClassVar[str] = "arrow"
    stored = "files"

    def load(self) -> None:
        """Import datasets and s3fs, with what they import at the first use."""
        for name in (
            "datasets.distributed",
            "s3fs",
            "aiobotocore.session",
            "pyarrow.dataset",
            "torchdata.stateful_dataloader",
        ):
            module(name)
        # The one override: it sleeps for 5 s at the end of each epoch, so that threads of Arrow end
        # before the process does. That would be most of an epoch of a table as small as this one.
        module("datasets.config").SLEEP_TIME_ON_THREADS_SHUTDOWN = 0

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """The files as they are."""
        HuggingFaceStreaming().publish(place, files)

    def _open(self, place: Place, rank: Rank) -> Any:
        found = module("datasets").load_dataset(
            "parquet",
            data_files=f"{place.url}/*.parquet",
            split="train",
            streaming=True,
            storage_options={
                "key": KEY,
                "secret": SECRET,
                "client_kwargs": {"endpoint_url": place.endpoint},
            },
        )
        found = found.shuffle(seed=SEED, buffer_size=BUFFER_ROWS)
        if rank.world > 1:
            split = module("datasets.distributed").split_dataset_by_node
            found = split(found, rank=rank.number, world_size=rank.world)
        return found


class HuggingFaceLoader(_Streamed, DictForm):
    """`ds.shuffle(…).with_format("torch").batch(…)` in torchdata's `StatefulDataLoader`.

    Without `batch(…)`, rows become tensors one by one for the collation of the loader. That takes
    six times as long, and bytes lose the zeros at their end.
    """

    name = "HF datasets, DataLoader"
    score_error: ClassVar[float] = 1e-6

    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """The dataset in a loader."""
        self._dataset = self._open(place, rank).with_format("torch").batch(batch_size)
        self._loader = module("torchdata.stateful_dataloader").StatefulDataLoader(
            self._dataset, batch_size=None, num_workers=setting["workers"]
        )

    def epoch(self, number: int) -> Iterator[Any]:
        """`ds.set_epoch(number)`, then the loader."""
        self._dataset.set_epoch(number)
        return iter(self._loader)

    def state(self) -> Any:
        """The state of the loader."""
        return self._loader.state_dict()

    def restore(self, state: Any) -> None:
        """The same."""
        self._loader.load_state_dict(state)


class HuggingFaceArrow(_Streamed, ArrowForm):
    """`ds.shuffle(…).with_format("arrow").iter(batch_size)`, in this process."""

    name = "HF datasets, Arrow"

    def settings(self, world: int) -> Sequence[Setting]:
        """There is nothing to set."""
        del world
        return [{}]

    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """The dataset."""
        del setting
        self._size = batch_size
        self._dataset = self._open(place, rank).with_format("arrow")

    def epoch(self, number: int) -> Iterator[Any]:
        """`ds.set_epoch(number)`, then `ds.iter(…)`."""
        self._dataset.set_epoch(number)
        found: Iterator[Any] = self._dataset.iter(batch_size=self._size)
        return found

    def state(self) -> Any:
        """`ds.state_dict()`."""
        return self._dataset.state_dict()

    def restore(self, state: Any) -> None:
        """`ds.load_state_dict(…)`."""
        self._dataset.load_state_dict(state)
