"""WebDataset: the same rows in tar files, read with curl and shuffled in a buffer."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_peer import Place, upload
from benches.peers.stream_peer import SEED, DictForm, Rank, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.peers import Setting

BUFFER_ROWS = 1_000
"""The shuffle buffer of the examples in its documentation."""
SHARDS_SHUFFLED = 100


class WebDatasetTraining(DictForm):
    """`WebLoader(WebDataset("http://…", shardshuffle=100).shuffle(1000).decode().batched(…))`.

    A row is one member of a tar file: with a member for each column, headers would take more
    than the values. Times are whole seconds: fractions take two more blocks of each member. The
    bucket needs no keys, since curl does not sign requests.
    """

    family: ClassVar[str] = "webdataset"
    packages: ClassVar[tuple[str, ...]] = ("webdataset", "torch")
    bucket: ClassVar[str] = "public"
    stored = "webdataset"
    no_state: ClassVar[str] = "cannot resume in the middle of an epoch"

    def __init__(self, *, cached: bool) -> None:
        self.given = {"cached": cached}
        self._cached = cached
        self.only_alone = not cached
        self.name = "WebDataset, cache_dir" if cached else "WebDataset"

    def load(self) -> None:
        """Import WebDataset and torch."""
        module("webdataset")
        module("torch.utils.data")

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """`TarWriter`: one tar file of each Parquet file."""
        writer = module("webdataset").TarWriter
        for number, path in enumerate(files):
            target = place.scratch / _shard(number)
            with writer(str(target), mtime=0) as tar:
                for row in rows_of(path):
                    key = f"{row['id']:09d}"
                    tar.write({"__key__": key, "pyd": pickle.dumps(row, protocol=5)})
            upload(place, [(target.name, target)])
            target.unlink()
        marker = place.scratch / "shards"
        marker.write_text(f"{len(files)}")
        upload(place, [(marker.name, marker)])

    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """The pipeline in its loader; ranks are taken from the environment."""
        del rank
        wds = module("webdataset")
        cache = None
        if self._cached:
            cache = str(place.scratch / "tars")
            (place.scratch / "tars").mkdir(exist_ok=True)
        base = f"{place.endpoint}/{place.bucket}"
        with module("urllib.request").urlopen(f"{base}/shards") as answer:
            shards = int(answer.read())
        pipeline = (
            wds.WebDataset(
                [f"{base}/{_shard(number)}" for number in range(shards)],
                shardshuffle=SHARDS_SHUFFLED,
                nodesplitter=wds.split_by_node,
                cache_dir=cache,
                seed=SEED,
            )
            .shuffle(BUFFER_ROWS)
            .decode()
            .map(_row)
            .batched(batch_size, collation_fn=module("torch.utils.data").default_collate)
        )
        self._loader = wds.WebLoader(pipeline, batch_size=None, num_workers=setting["workers"])

    def epoch(self, number: int) -> Iterator[Any]:
        """The loader."""
        del number
        return iter(self._loader)


def _shard(number: int) -> str:
    return f"shard-{number:06d}.tar"


def _row(sample: dict[str, Any]) -> Any:
    return sample["pyd"]
