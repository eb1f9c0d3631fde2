"""The bytes that a filtered read has to fetch, worked out from footers without relive's reader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from benches.peers import module
from benches.peers.publish_peer import KEY, REGION, SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benches.peers.publish_relive import RelivePeer
    from benches.publish.server import DelayedServer

LEAF_BYTES = 64 << 10


class Needed(NamedTuple):
    """Bytes of a filtered read."""

    chunks: int
    """Column chunks of the row groups that statistics cannot exclude."""
    leaves: int
    """The same, each row group rounded to leaves: nothing is kept, so that a leaf that two row
    groups share is fetched with both."""
    tables: int
    """Leaf tables of the shards they are in, if the pointer does not inline them."""
    pointer: int
    """The pointer with the manifest, and footers that are not in it."""

    @property
    def total(self) -> int:
        """All that has to be fetched."""
        return self.leaves + self.tables + self.pointer

    def __str__(self) -> str:
        return (
            f"{self.leaves / 1e6:.2f} MB of leaves ({self.chunks / 1e6:.2f} MB of column chunks), "
            f"{self.tables / 1e3:.1f} kB of leaf tables, {self.pointer / 1e3:.1f} kB of pointer "
            "and footers"
        )


def needed(
    server: DelayedServer, peer: RelivePeer, begin: int, end: int, columns: Sequence[str]
) -> Needed:
    """What a read of these columns of the rows with `begin <= id < end` has to fetch."""
    store = store_of(server, peer.bucket)
    pointer = _object(store, f"manifests/{peer.dataset}/latest.json")
    inline = json.loads(pointer)["inline"]
    inlined = {*inline.get("footers", {}), *inline.get("leaves", {})}
    manifest = manifest_of(store, peer.dataset)
    chunks = leaves = tables = footers = 0
    for shard in manifest["tables"]["main"]["shards"]:
        key = f"blobs/{shard['digest'][:2]}/{shard['digest'][2:4]}/{shard['digest']}"
        size = shard["footer"]["bytes"]
        footer = bytes(
            module("obstore").get_range(store, key, start=shard["bytes"] - size, length=size)
        )
        if shard["footer"]["digest"] not in inlined:
            footers += size
        groups = list(_chunks(footer, begin, end, set(columns)))
        for ranges in groups:
            chunks += sum(stop - start for start, stop in ranges)
            touched = {
                leaf
                for start, stop in ranges
                for leaf in range(start // LEAF_BYTES, -(-stop // LEAF_BYTES))
            }
            last = shard["bytes"] // LEAF_BYTES
            leaves += LEAF_BYTES * len(touched)
            leaves -= (LEAF_BYTES - shard["bytes"] % LEAF_BYTES) if last in touched else 0
        if groups and shard["leaves"] not in inlined:
            tables += 32 * -(-shard["bytes"] // LEAF_BYTES)
    return Needed(chunks, leaves, tables, len(pointer) + footers)


def store_of(server: DelayedServer, bucket: str) -> Any:
    """A bucket, past the proxy."""
    return module("obstore.store").S3Store(
        bucket,
        endpoint=server.near,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region=REGION,
        client_options={"allow_http": True},
    )


def manifest_of(store: Any, dataset: str, digest: str | None = None) -> Any:
    """The manifest of a version, or of the one that `latest` names."""
    pointer = f"manifests/{dataset}/latest.json"
    digest = digest or json.loads(_object(store, pointer))["digest"]
    return json.loads(_object(store, f"manifests/{dataset}/{digest}.json"))


def _object(store: Any, key: str) -> bytes:
    return bytes(module("obstore").get(store, key).bytes())


def _chunks(
    footer: bytes, begin: int, end: int, columns: set[str]
) -> Iterator[list[tuple[int, int]]]:
    """Where the column chunks are of each row group that may have such rows."""
    pyarrow = module("pyarrow")
    metadata = module("pyarrow.parquet").read_metadata(pyarrow.BufferReader(footer))
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        found = [group.column(column) for column in range(group.num_columns)]
        ids = next(each for each in found if each.path_in_schema == "id").statistics
        if ids is not None and ids.has_min_max and (ids.max < begin or ids.min >= end):
            continue
        chunks = []
        for each in found:
            if each.path_in_schema.partition(".")[0] in columns | {"id"}:
                start = each.data_page_offset
                if each.has_dictionary_page:
                    start = min(start, each.dictionary_page_offset)
                chunks.append((start, start + each.total_compressed_size))
        yield chunks
