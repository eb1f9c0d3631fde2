"""MosaicML streaming: the same rows in its own format, shard by shard through its local cache."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_mosaic import COLUMNS, MosaicStreaming
from benches.peers.stream_peer import SEED, DictForm, Rank, join_ranks, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.peers import Setting
    from benches.peers.publish_peer import Place


class MosaicTraining(DictForm):
    """`StreamingDataLoader(StreamingDataset(remote=…, local=…, shuffle=True))`."""

    name = "MosaicML streaming"
    family: ClassVar[str] = "mosaic"
    packages: ClassVar[tuple[str, ...]] = ("mosaicml-streaming", "torch")
    python: ClassVar[Path | None] = MosaicStreaming.python
    hint: ClassVar[str] = MosaicStreaming.hint
    bucket: ClassVar[str] = "mosaic"
    stored = "mosaic"

    def load(self) -> None:
        """Import streaming, with what it imports at the first use; join the other ranks."""
        module("streaming")
        module("boto3")
        join_ranks(Rank.here())

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """`MDSWriter`, with shards about as large as the files.

        Its default of 64 MiB would make five of them, fewer than there are ranks.
        """
        size = sum(path.stat().st_size for path in files) // len(files)
        writer = module("streaming").MDSWriter(out=place.url, columns=COLUMNS, size_limit=size)
        with writer:
            for path in files:
                for row in rows_of(path):
                    writer.write(row)

    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """The dataset in its loader; ranks are taken from torch."""
        del rank
        streaming = module("streaming")
        dataset = streaming.StreamingDataset(
            remote=place.url,
            local=str(place.scratch / "local"),
            shuffle=True,
            shuffle_seed=SEED,
            batch_size=batch_size,
        )
        self._loader: Any = streaming.StreamingDataLoader(
            dataset,
            batch_size=batch_size,
            num_workers=setting["workers"],
            persistent_workers=bool(setting["workers"]),
        )

    def epoch(self, number: int) -> Iterator[Any]:
        """The loader; it counts epochs itself."""
        del number
        return iter(self._loader)

    def state(self) -> Any:
        """The state of the loader."""
        return self._loader.state_dict()

    def restore(self, state: Any) -> None:
        """The same."""
        self._loader.load_state_dict(state)

    def close(self) -> None:
        """End its workers, then remove its shared memory."""
        self._loader = None
        gc.collect()
        module("streaming.base.util").clean_stale_shared_memory()
