"""A dataset in an object store, read through a proxy that counts, with a cache of its own."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from relive.publish.read.dataset import PublishedDataset, dataset
from relive.publish.read.rows import DECODED
from relive.store.cache import BlobCache, CachedRoot
from tests.publish.read.sample_tables import in_files, publish
from tests.servers import Proxy, SeaweedFS, _StoppedError


class RemoteDataset:
    """`test/data` below an address, whose requests are counted."""

    def __init__(self, seaweed: SeaweedFS, address: str, proxy: Proxy, folder: Path) -> None:
        self.seaweed, self.address, self.proxy, self.folder = seaweed, address, proxy, folder
        self.cache_directory = folder / "relive-cache"

    def publish(
        self, rows: pa.Table, files: int = 1, group: int = 500, *, seed: bool = False
    ) -> str:
        """Publish rows in a number of files, past the proxy and without `seed` past the cache."""
        size = -(-rows.num_rows // files)
        cuts = [size * number for number in range(1, files)]
        made = in_files(rows, self.folder / f"files-{rows.num_rows}", cuts, group)
        with pytest.MonkeyPatch.context() as patch:
            if not seed:
                patch.setenv("RELIVE_CACHE_LIMIT", "0")
            return publish(self.address, {"main": made}, **self.seaweed.options())

    @property
    def options(self) -> dict[str, Any]:
        """The options with which it is opened through the proxy."""
        return self.seaweed.options(self.proxy.url)

    def open(self, version: str | None = None, mode: str = "auto") -> PublishedDataset:
        """Open the dataset through the proxy, which counts from now on."""
        DECODED.clear()
        self.proxy.clear()
        return dataset("test/data", version, mode, self.address, **self.options)

    def flush(self, ds: PublishedDataset) -> None:
        """Wait until everything that was read is in the cache."""
        assert cache_of(ds).flush(30)

    def go_offline(self) -> None:
        """Refuse connections, and reset those that are open."""

        def stop(_: int) -> None:
            raise _StoppedError

        self.proxy.before = stop
        self.proxy.__exit__()

    def received(self, part: str = "/blobs/") -> int:
        """Return the bytes of responses for objects with `part` in their path."""
        return sum(each.sent for each in self.proxy.log if part in each.path)


def cache_of(ds: PublishedDataset) -> BlobCache:
    """Return the cache that a dataset reads."""
    root = ds.version.root
    assert isinstance(root, CachedRoot)
    return root.cache
