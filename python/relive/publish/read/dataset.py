"""`relive.dataset`: opens a version of a published dataset."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from relive._arguments import as_text, check_choice
from relive.errors import (
    InvalidError,
    NotCachedError,
    NotFoundError,
    OfflineError,
    StorageError,
)
from relive.model.report import Level, Progress, Report
from relive.publish.read.filters.conditions import unknown_name
from relive.publish.read.shards import TableShards
from relive.publish.read.stream.shard import ShardLike
from relive.publish.read.table import BATCH_ROWS, Table
from relive.publish.version import names
from relive.publish.version.catalog import Catalog
from relive.publish.version.listing import VersionInfo
from relive.publish.version.lookup import Version
from relive.publish.version.names import Reference, as_version, parse_reference
from relive.store.blobs import Blobs
from relive.store.cache import CachedRoot, open_cache
from relive.store.roots.memory import MemoryRoot
from relive.store.roots.open import open_root
from relive.store.roots.root import Root

if TYPE_CHECKING:
    from relive.publish.read.stream.torch_dataset import TorchBatches
    from relive.publish.read.warm import WarmReport, Which

MODES: Final = ("auto", "remote", "hybrid", "local")


def dataset(
    id: str,  # noqa: A002 - the documented name
    version: str | None = None,
    mode: str = "auto",
    root: str | os.PathLike[str] | Root | None = None,
    **remote: Any,
) -> "PublishedDataset":
    """Open a version of a published dataset; one request, no data is downloaded.

    Args:
        id: `ws/name`, `ws/name@version` or `relive://ws/name@version`.
        version: A tag, a digest, or at least 8 digits of one; by default `latest`.
        mode: `"auto"` keeps what it reads in the cache; if the root cannot be reached, it opens
            the version that was last seen, with a warning. `"hybrid"` also fetches the rest of a
            table in the background, after its first rows were read. `"remote"` uses no cache and
            writes nothing to disk. `"local"` makes no request and reads only the cache. A
            directory is read in place in every mode.
        root: The address of the root; by default `RELIVE_ROOT`, else a directory of this user.
        remote: Options of the object store, such as `endpoint`, `region` or `profile`.

    Raises:
        DatasetNotFoundError: The root has no such dataset or version.
        NotCachedError: `mode="local"`, and the cache does not have it.

    Example:
        >>> import pyarrow as pa, relive
        >>> builder = relive.DatasetBuilder("demo/numbers", root="root")
        >>> builder.add_table("main", pa.table({"x": range(10)}))
        >>> digest = builder.publish(tag="v1")
        >>> ds = relive.dataset("demo/numbers", version="v1", root="root")
        >>> ds.digest == digest, ds.table().count()
        (True, 10)
    """
    reference = parse_reference(id)
    if version is not None:
        if reference.version is not None:
            raise InvalidError(
                f"`{id}` names a version, and version={version!r} is passed, too",
                hint="pass one of them",
            )
        reference = Reference(reference.id, as_version(as_text("`version`", version)))
    check_choice("mode", mode, MODES)
    catalog = Catalog(_with_cache(open_root(root, **remote), mode))
    try:
        found = catalog.resolve(reference, retry_s=0)
    except OfflineError:
        raise  # retries would only delay it
    except StorageError:
        found = catalog.resolve(reference)
    except NotFoundError as error:
        if mode != "local" or not isinstance(catalog.root, CachedRoot):
            raise
        raise NotCachedError(
            f"`{reference}` of `{catalog.root.name}` is not in the cache, and mode='local' makes no"
            " request",
            hint=f"open it once with mode='auto', or run `relive warm {reference}`",
        ) from error
    _remember(found)
    return PublishedDataset(found, mode)


def _with_cache(root: Root, mode: str) -> Root:
    """Return the root as a mode reads it; what is on this machine is read in place."""
    if mode == "remote" or root.path is not None or isinstance(root, MemoryRoot | CachedRoot):
        return root
    return CachedRoot(root, open_cache(), is_local=mode == "local")


def _remember(version: Version) -> None:
    """Keep what the pointer inlines by its digest too, for those who open it by its digest."""
    root = version.root
    if isinstance(root, CachedRoot) and not root.is_local:
        key = names.manifest_key(version.id, version.digest)
        root.remember_inlined(key, version.manifest.to_bytes(), version.parts)


class PublishedDataset:
    """A version of a dataset; it never changes. Thread-safe and picklable.

    Example:
        >>> import pyarrow as pa, relive
        >>> builder = relive.DatasetBuilder("demo/points", root="root")
        >>> builder.add_table("main", pa.table({"x": [1, 2, 3]}))
        >>> _ = builder.publish()
        >>> ds = relive.dataset("demo/points", root="root")
        >>> ds.tables["main"].head(2).to_pydict()
        {'x': [1, 2]}
    """

    def __init__(self, version: Version, mode: str = "auto") -> None:
        self._version = version
        self._mode = mode
        root = version.root
        self._blobs = Blobs(root, root.cache if isinstance(root, CachedRoot) else None)
        if root.path is None:
            # In a directory they are read, which is as fast and notices damage of the stored ones.
            for digest, table in version.leaf_tables():
                self._blobs.keep_table(digest, table)
        self._opened: dict[str, TableShards] = {}

    @property
    def id(self) -> str:
        """The workspace and the name: `ws/name`."""
        return str(self._version.id)

    @property
    def digest(self) -> str:
        """The digest of the version."""
        return self._version.digest

    @property
    def pinned(self) -> str:
        """The reference that always means this version: `ws/name@digest`."""
        return self._version.pinned

    @property
    def version(self) -> Version:
        """The version with its manifest."""
        return self._version

    @property
    def mode(self) -> str:
        """How it is read: see `dataset`."""
        return self._mode

    @property
    def versions(self) -> list[VersionInfo]:
        """All versions of the dataset, oldest first, as they are now."""
        return Catalog(self._version.root).versions(self._version.id)

    @property
    def tags(self) -> dict[str, str]:
        """The digest that each tag of the dataset names now."""
        return Catalog(self._version.root).tags(self._version.id)

    @cached_property
    def info(self) -> dict[str, Any]:
        """What is known of the version: tables, description, when and by whom it was published."""
        manifest, meta = self._version.manifest, self._version.meta
        tables = {
            name: {
                "rows": entry.rows,
                "bytes": entry.nbytes,
                "shards": len(entry.shards),
                "columns": {field.name: str(field.type) for field in entry.schema},
                "splits": {
                    split: sum(stop - start for start, stop in ranges)
                    for split, ranges in entry.splits.items()
                },
            }
            for name, entry in manifest.tables.items()
        }
        return {
            "id": self.id,
            "digest": self.digest,
            "rows": manifest.rows,
            "bytes": manifest.nbytes,
            "tables": tables,
            "about": dict(manifest.about),
            "readme": manifest.readme,
            **vars(meta),
        }

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by name; makes no request."""
        return {name: Table(self, name) for name in self._version.manifest.tables}

    def table(self, name: str = "main", split: str | None = None) -> Table:
        """Return a table, or one split of it; makes no request."""
        return Table(self, name, split=split)

    def to_torch(
        self,
        batch_size: int = BATCH_ROWS,
        *,
        table: str = "main",
        split: str | None = None,
        shard: ShardLike = "auto",
        **options: Any,
    ) -> "TorchBatches":
        """Return the batches of a table as a dataset of PyTorch; see `Table.to_torch`."""
        return self.table(table, split).to_torch(batch_size, shard=shard, **options)

    def query(self, sql: str) -> pa.Table:
        """Run SQL with DuckDB, which sees every table by its name; return the result.

        SQL sees no files: it cannot read or write anything else.
        """
        from relive.publish.read.queries import run  # it needs DuckDB

        return run(sql, self.tables)

    def warm(
        self,
        tables: Sequence[str] | None = None,
        shards: "Which" = None,
        max_bytes: int | str | None = None,
        *,
        pin: bool = False,
        progress: Progress | None = None,
    ) -> "WarmReport":
        """Fetch tables into the cache, so that reading them makes no request.

        Several processes that do this at the same time share the work. What the cache has already
        is not fetched. A directory needs no cache, and nothing is done.

        Args:
            tables: Names of tables; by default all.
            shards: Which shards of each table, such as `slice(0, 50)` or `[0, 7]`.
            max_bytes: Only the first shards that are together at most as large, as in `"200GB"`.
            pin: Never evict them, until `unpin()`.
            progress: Called with the bytes that are in the cache, and the bytes in all.

        Example:
            >>> import pyarrow as pa, relive
            >>> builder = relive.DatasetBuilder("demo/warm", root="root")
            >>> builder.add_table("main", pa.table({"x": range(10)}))
            >>> _ = builder.publish()
            >>> relive.dataset("demo/warm", root="root").warm(max_bytes="1GB").is_complete
            True
        """
        from relive.publish.read.warm import warm

        return warm(self, tables, shards, max_bytes, pin=pin, progress=progress)

    def unpin(self) -> bool:
        """Let the cache evict this version again; return whether it was pinned."""
        root = self._version.root
        return isinstance(root, CachedRoot) and root.cache.disk.pins.unpin(self.pinned)

    def cached_bytes(self) -> dict[str, tuple[int, int]]:
        """Return for each table its bytes, and how many of them need no request."""
        from relive.publish.read.warm import cached_bytes

        return cached_bytes(self)

    def validate(self, level: Level = "sample", *, progress: Progress | None = None) -> Report:
        """Check that every blob is there and correct; see `relive.publish.validate`."""
        from relive.publish.manage.validate import validate_version

        return validate_version(self._version, self._version.root, level, progress=progress)

    def __repr__(self) -> str:
        """Return the version and its tables, on one line."""
        tables = ", ".join(
            f"{name} {entry.rows} rows" for name, entry in self._version.manifest.tables.items()
        )
        return f"PublishedDataset({self.id}@{self.digest[:12]}: {tables or 'no tables'})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the root and the version."""
        return reopened, self._address

    @property
    def _address(self) -> tuple[Root, str, str]:
        return self._version.root, self.pinned, self._mode

    def _shards(self, name: str) -> TableShards:
        """Return the shards of a table; all tables of this name share their footers."""
        tables = self._version.manifest.tables
        if name not in self._opened:
            if name not in tables:
                raise unknown_name("table", name, list(tables))
            where = f"table `{name}` of `{self.id}@{self.digest[:12]}`"
            opened = TableShards(tables[name], self._blobs, self._version.footer, where)
            if self._blobs.cache is not None:
                self._blobs.cache.owns(opened.blob_refs())
            if self._mode == "hybrid" and isinstance(self._version.root, CachedRoot):
                from relive.publish.read.warm import BackgroundWarming

                opened.after_read = BackgroundWarming(self._version.root, opened).start
            self._opened[name] = opened
        return self._opened[name]


def reopened(root: Root, pinned: str, mode: str) -> PublishedDataset:
    """Open a version again, in another process."""
    return PublishedDataset(Catalog(root).resolve(parse_reference(pinned)), mode)
