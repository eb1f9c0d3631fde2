"""Lance: the same rows in its own format, by its torch dataset or by LanceDB's streaming one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_lance import options
from benches.peers.stream_peer import SEED, ArrowForm, DictForm, Rank, StreamPeer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.peers import Setting
    from benches.peers.publish_peer import Place

CLUMP_ROWS = 256
"""Rows that LanceDB reads together: shuffled one by one, each would be a request."""


class _Lance(StreamPeer):
    family: ClassVar[str] = "lance"
    bucket: ClassVar[str] = "lance"
    stored = "lance"

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """`lance.write_dataset(…)`, a fragment of each Parquet file."""
        pa, parquet = module("pyarrow"), module("pyarrow.parquet")
        for number, path in enumerate(files):
            table = parquet.read_table(path)
            values = table["embedding"].combine_chunks().flatten()
            size = len(values) // table.num_rows
            at = table.column_names.index("embedding")
            vectors = pa.FixedSizeListArray.from_arrays(values, size)
            module("lance").write_dataset(
                table.set_column(at, "embedding", vectors),
                f"{place.url}/table.lance",
                mode="append" if number else "create",
                storage_options=options(place),
            )


class LanceTraining(_Lance, ArrowForm):
    """`lance.torch.data.LanceDataset(…, sampler=…)`; its shuffle moves fragments or batches."""

    packages: ClassVar[tuple[str, ...]] = ("pylance", "torch")
    no_state: ClassVar[str] = "cannot resume in the middle of an epoch"

    def __init__(self, *, cached: bool) -> None:
        self.given = {"cached": cached}
        self._cached = cached
        self.only_alone = not cached
        self.name = "Lance, cache" if cached else "Lance"

    def settings(self, world: int) -> Sequence[Setting]:
        """What is shuffled; batches take longer, and are not tried with several ranks."""
        kinds = ("fragment", "batch") if world == 1 else ("fragment",)
        return [{"by": by, "readahead": 16} for by in kinds]

    def load(self) -> None:
        """Import Lance and torch."""
        module("lance.torch.data")
        module("lance.sampler")

    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """The dataset; `to_tensor_fn` leaves the Arrow batch, as texts are no tensors."""
        sampler = module("lance.sampler")
        kinds = {"fragment": sampler.ShardedFragmentSampler, "batch": sampler.ShardedBatchSampler}
        kind = kinds[str(setting["by"])]
        self._sampler = kind(rank.number, rank.world, randomize=True, seed=SEED)
        cache = place.scratch / f"lance-{rank.number}"
        cache.mkdir(exist_ok=True)
        self._dataset = module("lance.torch.data").LanceDataset(
            f"{place.url}/table.lance",
            batch_size=batch_size,
            dataset_options={"storage_options": options(place)},
            sampler=self._sampler,
            batch_readahead=setting["readahead"],
            cache=str(cache) if self._cached else None,
            to_tensor_fn=_same,
        )

    def epoch(self, number: int) -> Iterator[Any]:
        """The dataset itself: it reads on threads."""
        self._sampler.set_epoch(number)
        return iter(self._dataset)


def _same(batch: Any, **_: Any) -> Any:
    return batch


class LanceDBTraining(_Lance, DictForm):
    """`lancedb.streaming.StreamingDataset` in its `StreamingDataLoader`."""

    name = "LanceDB streaming"
    packages: ClassVar[tuple[str, ...]] = ("lancedb", "torch")

    def settings(self, world: int) -> Sequence[Setting]:
        """How many requests of a rank run at once; it reads on threads."""
        depths = (4, 16) if world == 1 else (4,)
        return [{"read": CLUMP_ROWS, "depth": depth, "clump": CLUMP_ROWS} for depth in depths]

    def load(self) -> None:
        """Import LanceDB and torch."""
        module("lancedb.streaming")

    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """Open the table; each epoch is a dataset of its own."""
        self._setting, self._rank, self._size = setting, rank, batch_size
        connection = module("lancedb").connect(place.url, storage_options=options(place))
        self._table = connection.open_table("table")
        self._state: Any = None

    def epoch(self, number: int) -> Iterator[Any]:
        """`StreamingDataset(table, epoch=number)` in a loader."""
        streaming = module("lancedb.streaming")
        self._dataset = streaming.StreamingDataset(
            self._table,
            shuffle_seed=SEED,
            epoch=number,
            rank=self._rank.number,
            world_size=self._rank.world,
            read_batch_size=self._setting["read"],
            io_queue_depth=self._setting["depth"],
            shuffle_clump_size=self._setting["clump"],
            transform=_dicts,
        )
        if self._state is not None:
            self._dataset.load_state_dict(self._state)
            self._state = None
        return iter(streaming.StreamingDataLoader(self._dataset, batch_size=self._size))

    def state(self) -> Any:
        """The state of the dataset."""
        return self._dataset.state_dict()

    def restore(self, state: Any) -> None:
        """For the next epoch that is begun."""
        self._state = state


def _dicts(batch: Any) -> list[dict[str, Any]]:
    """Rows as dicts, embeddings as NumPy arrays."""
    embeddings = module("numpy").array(batch.column("embedding").flatten())
    embeddings = embeddings.reshape(batch.num_rows, -1)
    names = [name for name in batch.schema.names if name != "embedding"]
    rows: list[dict[str, Any]] = batch.select(names).to_pylist()
    for row, embedding in zip(rows, embeddings, strict=True):
        row["embedding"] = embedding
    return rows
