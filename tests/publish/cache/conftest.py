"""A remote dataset for tests of the cache."""

from pathlib import Path

import pytest

from tests.publish.cache.remote_dataset import RemoteDataset
from tests.servers import Proxy, SeaweedFS


@pytest.fixture
def remote(
    seaweed: SeaweedFS,
    bucket: str,
    proxy: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> RemoteDataset:
    """Return a dataset that is not published yet, with an empty cache."""
    monkeypatch.setenv("RELIVE_CACHE_FREE", "0")
    return RemoteDataset(seaweed, bucket, proxy, tmp_path)
