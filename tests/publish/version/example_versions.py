"""Small versions with real Parquet files, and a root that records its requests."""

import io
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from relive.publish.version.catalog import Catalog
from relive.publish.version.manifest import Footer, Manifest, Shard, TableEntry
from relive.publish.version.names import DatasetId
from relive.publish.version.pointers import Pointer
from relive.store.blobs import BlobRef, blob_key, describe_bytes
from relive.store.roots.root import Body, Check, Data, Entry, KeyRange, Root, Stored

ID = DatasetId("lab", "numbers")


class Made(NamedTuple):
    """A manifest, its blobs by digest, and the footers of its shards by digest."""

    manifest: Manifest
    blobs: dict[str, bytes]
    footers: dict[str, bytes]


def make(*shards: Sequence[int], readme: str | None = None, splits: bool = False) -> Made:
    """Return a version with one table of a column `n`, with these values in its shards."""
    made: list[Shard] = []
    blobs: dict[str, bytes] = {}
    footers: dict[str, bytes] = {}
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())])
    for values in shards:
        table = pa.table({"n": [*values], "text": [f"{n}" for n in values]}, schema)
        file = io.BytesIO()
        pq.write_table(table, file, compression="none", use_dictionary=False)
        shard, footer, parts = describe_shard(file.getvalue(), table.num_rows)
        made.append(shard)
        blobs |= parts
        footers[shard.footer.digest] = footer
    rows = sum(each.rows for each in made)
    named = {"train": ((0, rows - 1),), "test": ((rows - 1, rows),)} if splits else {}
    entry = TableEntry(schema, rows, tuple(made), named)
    return Made(Manifest({"main": entry}, readme=readme), blobs, footers)


def describe_shard(data: bytes, rows: int) -> tuple[Shard, bytes, dict[str, bytes]]:
    """Return a Parquet file as a shard, its footer, and its blobs."""
    ref, leaves = describe_bytes(data)
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
    digest = describe_bytes(footer)[0].digest
    blobs = {ref.digest: data}
    if ref.leaves is not None:
        blobs[ref.leaves] = leaves
    return Shard(ref, rows, Footer(len(footer), digest)), footer, blobs


def many_shards(count: int) -> Manifest:
    """Return a manifest with that many shards, which are stored nowhere."""
    schema = pa.schema([("n", pa.int64())])
    shards = tuple(
        Shard(BlobRef(f"{n:064x}", 1 << 17, f"{n + 1:064x}"), 10, Footer(900, f"{n + 2:064x}"))
        for n in range(count)
    )
    return Manifest({"main": TableEntry(schema, 10 * count, shards)})


def upload(root: Root, made: Made) -> None:
    """Store the blobs of a version."""
    for digest, data in made.blobs.items():
        root.put(blob_key(digest), data)


def publish(
    root: Root, made: Made, dataset: DatasetId = ID, *, tag: str | None = None, **options: object
) -> str:
    """Publish a version on top of what is there, and return its digest."""
    catalog = Catalog(root)
    expected = options.pop("expected", None) or catalog.pointer(dataset)
    assert expected is None or isinstance(expected, Pointer)
    upload(root, made)
    return catalog.commit(
        dataset,
        made.manifest,
        made.footers,
        expected=expected,
        tag=tag,
        **options,  # type: ignore[arg-type]
    )


class RecordedRoot(Root):
    """Passes everything on to another root, and records each request as `(verb, key)`.

    `before` is called with them first, and may raise.
    """

    def __init__(self, root: Root, before: Callable[[str, str], None] | None = None) -> None:
        self.inner = root
        self.name = root.name
        self.path = root.path
        self.is_read_only = root.is_read_only
        self.requests: list[tuple[str, str]] = []
        self.before = before

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [each for each in self.requests if each[0] not in {"get", "head", "list"}]

    def get_many(self, keys: Sequence[str]) -> list[Stored | None]:
        self._note("get", *keys)
        return self.inner.get_many(keys)

    def read_ranges(
        self, ranges: Sequence[KeyRange], check: Check | None = None, *, gap: int | None = None
    ) -> list[Data]:
        self._note("get", *(key for key, _, _ in ranges))
        return self.inner.read_ranges(ranges, check, gap=gap)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        self._note("head", *keys)
        return self.inner.exists(keys)

    def sizes(self, keys: Sequence[str]) -> list[int | None]:
        self._note("head", *keys)
        return self.inner.sizes(keys)

    def put(self, key: str, body: Body, *, immutable: bool = True) -> None:
        self._note("put", key)
        self.inner.put(key, body, immutable=immutable)

    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:
        self._note("create", key)
        return self.inner.create(key, data, immutable=immutable)

    def replace(self, key: str, data: bytes, tag: str) -> str:
        self._note("replace", key)
        return self.inner.replace(key, data, tag)

    def delete(self, keys: Sequence[str]) -> None:
        self._note("delete", *keys)
        self.inner.delete(keys)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        self._note("list", prefix)
        return self.inner.list(prefix)

    def _get(self, key: str, if_changed: str | None, retry_s: float | None) -> Stored | None:
        self._note("get", key)
        if if_changed is None:
            return self.inner.get(key, retry_s=retry_s)
        return self.inner.get(key, if_changed=if_changed, retry_s=retry_s)

    def _note(self, verb: str, *keys: str) -> None:
        for key in keys:
            if self.before is not None:
                self.before(verb, key)
            self.requests.append((verb, key))


class CarelessRoot(RecordedRoot):
    """A store that ignores conditions: it creates what exists and replaces what has changed."""

    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:
        self.put(key, data, immutable=immutable)
        return self.inner.get(key).tag

    def replace(self, key: str, data: bytes, tag: str) -> str:
        return self.create(key, data)
