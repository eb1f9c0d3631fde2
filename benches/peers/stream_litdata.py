"""LitData: the same rows in its optimized format, chunk by chunk through its local cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_peer import KEY, REGION, SECRET, Place, upload
from benches.peers.stream_peer import SEED, DictForm, Rank, join_ranks, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benches.peers import Setting

CACHE_BYTES = "20GB"
"""More than the table: by default it leaves 50 GB of the disk free."""


class LitDataTraining(DictForm):
    """`StreamingDataLoader(StreamingDataset("s3://…", shuffle=True))`."""

    name = "LitData"
    family: ClassVar[str] = "litdata"
    packages: ClassVar[tuple[str, ...]] = ("litdata", "boto3", "torch")
    bucket: ClassVar[str] = "litdata"
    stored = "litdata"

    def load(self) -> None:
        """Import LitData, with what it imports at the first use; join the other ranks."""
        os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"
        module("litdata")
        module("boto3")
        # The one override: its client of obstore refuses a server without TLS.
        module("litdata.streaming.downloader")._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
        join_ranks(Rank.here())

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """`litdata.optimize(…)` into a folder, which is copied to the bucket.

        A chunk has the rows of a file: its default of 64 MB would make five, fewer than ranks.
        """
        folder = place.scratch / "optimized"
        module("litdata").optimize(
            fn=_rows,
            inputs=[str(path) for path in files],
            output_dir=str(folder),
            chunk_size=module("pyarrow.parquet").read_metadata(files[0]).num_rows,
            num_workers=1,
        )
        upload(place, ((path.name, path) for path in folder.iterdir() if path.is_file()))
        shutil.rmtree(folder)

    def open(self, place: Place, setting: Setting, rank: Rank, batch_size: int) -> None:
        """The dataset in its loader; ranks are taken from torch."""
        del rank
        litdata = module("litdata")
        dataset = litdata.StreamingDataset(
            f"{place.url}/",
            cache_dir=str(place.scratch / "litdata"),
            shuffle=True,
            drop_last=False,
            seed=SEED,
            max_cache_size=CACHE_BYTES,
            transform=_with_bytes,
            # A state names the folder of its cache, which a resumed process does not have.
            force_override_state_dict=True,
            storage_options={
                "endpoint_url": place.endpoint,
                "aws_access_key_id": KEY,
                "aws_secret_access_key": SECRET,
                "region_name": REGION,
            },
        )
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=batch_size, num_workers=setting["workers"]
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


def _with_bytes(row: dict[str, Any]) -> dict[str, Any]:
    """Its decoder returns views, which torch's collation takes for lists of numbers."""
    return {**row, "payload": bytes(row["payload"])}


def _rows(path: str) -> Iterator[dict[str, Any]]:
    yield from rows_of(Path(path))
