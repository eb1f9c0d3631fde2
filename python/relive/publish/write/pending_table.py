"""A table of a version that is being built: shards of the base, local files, and spooled shards."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from relive._arguments import worker_count
from relive.errors import InvalidError, InvalidTypeError, UnknownFieldError
from relive.publish.version.manifest import Footer, RowRanges, Shard, TableEntry
from relive.publish.write.inputs import FileRows, StreamedRows, open_input
from relive.publish.write.local_digests import LocalDigests
from relive.publish.write.parquet_files import FileIdentity, ParquetInput, read_input
from relive.publish.write.parquet_schema import StoredSchema
from relive.publish.write.shard_writer import SIZES, ShardSizes, write_shards
from relive.publish.write.splits import row_ranges, shifted
from relive.publish.write.table_schema import SharedSchema
from relive.publish.write.upload import LocalBlob
from relive.store.blobs import describe_file
from relive.store.digest import file_changed

if TYPE_CHECKING:
    import pyarrow as pa


class PendingShard(NamedTuple):
    """A Parquet file on this machine that will be a shard."""

    file: ParquetInput
    blob: LocalBlob | None
    """None if it has not been hashed yet."""

    @property
    def footer(self) -> Footer:
        """The footer of the file."""
        return Footer(self.file.footer_bytes, self.file.footer_digest)


@dataclass(frozen=True)
class PendingTable:
    """A table of a version that is being built. Immutable."""

    name: str
    schema: "pa.Schema"
    shards: tuple[Shard | PendingShard, ...]
    splits: Mapping[str, RowRanges] = field(default_factory=dict)

    @classmethod
    def inherited(cls, name: str, entry: TableEntry) -> "PendingTable":
        """Return a table of the base version."""
        return cls(name, entry.schema, entry.shards, entry.splits)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(map(_rows, self.shards))

    def followed_by(self, other: "PendingTable") -> "PendingTable":
        """Return a table with the rows of both, and the rows of both in splits of one name."""
        shared = SharedSchema(self.schema, f"table `{self.name}`")
        shared.add(other.schema, f"the rows appended to table `{self.name}`")
        splits = dict(self.splits)
        for name, ranges in other.splits.items():
            first, later = splits.get(name, ()), shifted(ranges, self.rows)
            if first and later and first[-1][1] == later[0][0]:
                later = ((first[-1][0], later[0][1]), *later[1:])
                first = first[:-1]
            splits[name] = (*first, *later)
        return replace(
            self, schema=shared.schema, shards=(*self.shards, *other.shards), splits=splits
        )

    def hashed(self, digests: LocalDigests, *, rehash: bool, workers: int | None) -> "PendingTable":
        """Return the table with the blobs of all its files, which are hashed where necessary."""

        def known(file: ParquetInput) -> LocalBlob | None:
            ref = None if rehash else digests.find(file.path, file.identity)
            return None if ref is None else LocalBlob(ref, file.path, file.identity, None)

        shards: list[Shard | PendingShard] = []
        unknown: list[tuple[int, ParquetInput]] = []
        for shard in self.shards:
            if isinstance(shard, PendingShard) and shard.blob is None:
                shard.file.check_unchanged()
                blob = known(shard.file)
                if blob is None:
                    unknown.append((len(shards), shard.file))
                shard = shard._replace(blob=blob)  # noqa: PLW2901
            shards.append(shard)
        with ThreadPoolExecutor(worker_count(workers), "relive-hash") as pool:
            blobs = pool.map(_describe, [file for _, file in unknown])
            for (place, file), blob in zip(unknown, blobs, strict=True):
                shards[place] = PendingShard(file, blob)
                digests.add(file.path, file.identity, blob.ref)
        return replace(self, shards=tuple(shards))

    def entry(self) -> TableEntry:
        """Return the table as a manifest has it; all files must be hashed."""
        shards = tuple(
            Shard(_blob(shard).ref, shard.file.rows, shard.footer)
            if isinstance(shard, PendingShard)
            else shard
            for shard in self.shards
        )
        return TableEntry(self.schema, self.rows, shards, dict(self.splits))

    def local_blobs(self) -> Iterable[LocalBlob]:
        """Return the blobs on this machine; all files must be hashed."""
        return (_blob(shard) for shard in self.shards if isinstance(shard, PendingShard))


def read_table(
    name: str,
    data: Any,
    spool: Path,
    *,
    rewrite: bool = False,
    key: str | Sequence[str] | None = None,
    splits: Mapping[str, Any] | None = None,
    sizes: ShardSizes = SIZES,
) -> PendingTable:
    """Return a table of the data; rows are written to shards in the directory `spool`."""
    rows = open_input(data, name, rewrite=rewrite)
    if isinstance(rows, FileRows):
        if key is not None:
            raise InvalidError(
                f"`key` of table `{name}` has no effect on files that are published as they are",
                hint="pass rewrite=True to cut their rows into shards of relive",
            )
        files = [(file.path, file.rows) for file in rows.files]
        shards = tuple(PendingShard(file, None) for file in rows.files)
        schema = _without_pandas(rows.schema)
        total = sum(file.rows for file in rows.files)
        return PendingTable(name, schema, shards, row_ranges(splits, total, files))
    stored = StoredSchema(rows.schema, name)
    shards = _spooled(rows, stored, _key_columns(key, rows.schema, name), spool, sizes)
    total = sum(map(_rows, shards))
    return PendingTable(name, stored.read, shards, row_ranges(splits, total, []))


def _spooled(
    rows: StreamedRows,
    schema: StoredSchema,
    key: list[str] | None,
    spool: Path,
    sizes: ShardSizes,
) -> tuple[PendingShard, ...]:
    shards = []
    for shard in write_shards(rows.batches, schema, spool, key=key, sizes=sizes):
        file = read_input(shard.path)
        shards.append(PendingShard(file, _describe(file)))
    return tuple(shards)


def _key_columns(
    key: str | Sequence[str] | None, schema: "pa.Schema", table: str
) -> list[str] | None:
    if key is None:
        return None
    columns = [key] if isinstance(key, str) else list(key)
    if not columns or not all(isinstance(name, str) for name in columns):
        raise InvalidTypeError(f"`key` must be one or more names of columns, got {key!r}")
    for name in columns:
        if name not in schema.names:
            raise UnknownFieldError(
                f"table `{table}` has no column `{name}`, which `key` names",
                hint=f"its columns are {', '.join(schema.names)}",
            )
    return columns


def _describe(file: ParquetInput) -> LocalBlob:
    ref, table = describe_file(file.path)
    if FileIdentity.of(file.path) != file.identity or ref.nbytes != file.identity.size:
        raise file_changed(file.path)
    # The table of a large file is computed again if it is uploaded.
    return LocalBlob(ref, file.path, file.identity, table)


def _blob(shard: PendingShard) -> LocalBlob:
    assert shard.blob is not None, "hashed() was not called"  # noqa: S101
    return shard.blob


def _rows(shard: Shard | PendingShard) -> int:
    return shard.file.rows if isinstance(shard, PendingShard) else shard.rows


def _without_pandas(schema: "pa.Schema") -> "pa.Schema":
    """Drop what pandas records of one file, such as the number of its rows."""
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != b"pandas"}
    return schema.with_metadata(metadata or None)
