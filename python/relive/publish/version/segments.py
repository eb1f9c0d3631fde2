"""Lists of more than 1,000 shards: Parquet files of at most 1,024 shards each.

Their sizes are 1,024, then decreasing powers of two. So a table's list does not depend on how it
grew, and n additions write O(n log n) entries.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from relive.errors import ManifestCorruptedError
from relive.publish.version.document import as_count, as_digest, malformed
from relive.store.blobs import LEAF_BYTES, BlobRef, describe_bytes

MAX_SHARDS: Final = 1024
MAX_BYTES: Final = 1 << 20
_DIGEST: Final = pa.binary(32)
_SCHEMA: Final = pa.schema(
    [
        pa.field("digest", _DIGEST, nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("leaves", _DIGEST),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("footer_bytes", pa.int64(), nullable=False),
        pa.field("footer_digest", _DIGEST, nullable=False),
    ]
)


@dataclass(frozen=True)
class Footer:
    """The footer of a Parquet file: metadata, their length and `PAR1`, the end of the file."""

    nbytes: int
    digest: str


@dataclass(frozen=True)
class Shard:
    """A Parquet file of a table."""

    blob: BlobRef
    rows: int
    footer: Footer


class Segment(NamedTuple):
    """A blob that lists shards: how many, and how many rows they have."""

    blob: BlobRef
    shards: int
    rows: int


def make(shards: Sequence[Shard]) -> list[tuple[Segment, bytes, bytes]]:
    """Return the segments of a list of shards, each with its bytes and its leaf table."""
    made, start = [], 0
    while start < len(shards):
        rest = len(shards) - start
        stop = start + min(MAX_SHARDS, 1 << (rest.bit_length() - 1))
        part = shards[start:stop]
        data = _to_parquet(part)
        ref, leaves = describe_bytes(data)
        made.append((Segment(ref, len(part), sum(each.rows for each in part)), data, leaves))
        start = stop
    return made


def parse(segment: Segment, data: bytes, where: str) -> list[Shard]:
    """Return the shards of a segment, whose bytes are verified but not trusted."""
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        is_right = file.metadata.num_rows == segment.shards and file.schema_arrow.equals(_SCHEMA)
        table = file.read() if is_right else None
        if table is not None:
            table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        message = str(error).partition("\n")[0]
        raise ManifestCorruptedError(f"`{where}` is not a list of shards: {message}") from None
    if table is None or table.num_rows != segment.shards:
        raise malformed(where, f"is not a list of {segment.shards} shards")
    columns = table.to_pydict()
    shards = [
        _shard(row, f"{where}[{n}]") for n, row in enumerate(zip(*columns.values(), strict=True))
    ]
    if sum(each.rows for each in shards) != segment.rows:
        raise malformed(where, f"must have {segment.rows} rows")
    return shards


def _to_parquet(shards: Sequence[Shard]) -> bytes:
    rows = [
        (
            bytes.fromhex(each.blob.digest),
            each.blob.nbytes,
            None if each.blob.leaves is None else bytes.fromhex(each.blob.leaves),
            each.rows,
            each.footer.nbytes,
            bytes.fromhex(each.footer.digest),
        )
        for each in shards
    ]
    columns = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), _SCHEMA.types, strict=True)
    ]
    file = io.BytesIO()
    pq.write_table(
        pa.Table.from_arrays(columns, schema=_SCHEMA),
        file,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
        version="2.6",
        data_page_version="1.0",
    )
    return file.getvalue()


def _shard(row: tuple[Any, ...], where: str) -> Shard:
    digest, nbytes, leaves, rows, footer_bytes, footer_digest = row
    as_count(nbytes, f"{where}.bytes")
    as_count(rows, f"{where}.rows")
    as_count(footer_bytes, f"{where}.footer_bytes", at_least=9, at_most=nbytes)
    if (leaves is not None) != (nbytes > LEAF_BYTES):
        raise malformed(f"{where}.leaves", "does not match `bytes`")
    blob = BlobRef(_hex(digest, where), nbytes, None if leaves is None else _hex(leaves, where))
    return Shard(blob, rows, Footer(footer_bytes, _hex(footer_digest, where)))


def _hex(value: Any, where: str) -> str:
    return as_digest(value.hex() if isinstance(value, bytes) else value, where)
