"""`relive warm` and `relive cache` over SeaweedFS."""

from pathlib import Path

import pytest

from tests.cli.conftest import Relive
from tests.servers import SeaweedFS


@pytest.mark.needs("seaweedfs", "obstore")
def test_warm_and_cache(
    relive: Relive,
    data: Path,
    bucket: str,
    s3: SeaweedFS,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = ("--root", bucket)
    monkeypatch.setenv("RELIVE_CACHE_FREE", "0")
    with monkeypatch.context() as patch:
        patch.setenv("RELIVE_CACHE_LIMIT", "0")
        done = relive("publish", "lab/kitchen", "--table", f"main={data}", *where)
        assert done.status == 0, done.err
    before = relive("cache", "stats", "lab/kitchen", *where, "--json").json
    assert before[0]["cached"] == 0
    one = relive("warm", "lab/kitchen", "--shards", "0:1", *where, "--json").json
    assert (one["shards"], one["is_complete"]) == (1, True)
    everything = relive("warm", "lab/kitchen", "--pin", *where, "--json").json
    assert everything["shards"] == 3
    again = relive("warm", "lab/kitchen@latest", "--tables", "main", *where)
    assert again.out.endswith(": 0 bytes fetched\n")
    assert "100%" in relive("cache", "stats", "lab/kitchen", *where).out
    stats = relive("cache", "stats", "--json").json
    assert stats["objects"] >= 3
    assert len(stats["pinned"]) == 1
    assert "pinned" in relive("cache", "stats").out
    assert relive("cache", "verify").out.endswith(": 0 damaged\n")
    kept = relive("cache", "gc", "--limit", "0", "--json").json
    assert kept["after"] > 0
    assert relive("cache", "stats", "lab/kitchen", *where, "--json").json[0]["share"] == "100%"
    assert relive("cache", "unpin", "lab/kitchen").out == "1 version unpinned\n"
    for path in (data.parent / "cache" / "blobs" / "whole").rglob("*"):
        if path.is_file():
            content = bytearray(path.read_bytes())
            content[7] ^= 1
            path.write_bytes(content)
    damaged = relive("cache", "verify")
    assert damaged.status == 3
    assert "was damaged, and is deleted" in damaged.err
    monkeypatch.setenv("RELIVE_CACHE_LIMIT", "70KB")
    full = relive("warm", "lab/kitchen", *where)
    assert full.status == 3
    assert "RELIVE_CACHE_LIMIT" in full.err
    for line in (("warm", "a/b", "--max-bytes", "many"), ("warm", "a/b", "--shards", "1,2")):
        assert relive(*line).status == 2
