"""Reads published tables with pyarrow alone, to compare them with what was published."""

from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from relive.publish.version.catalog import Catalog
from relive.publish.version.names import parse_reference
from relive.store.blobs import Blobs
from relive.store.roots.root import Root


def read_table(root: Root, reference: str, name: str = "main") -> Any:
    """Return all rows of a table; columns that a shard lacks are null."""
    entry = Catalog(root).resolve(parse_reference(reference)).manifest.tables[name]
    blobs = Blobs(root)
    tables = [entry.schema.empty_table()]
    for shard in entry.shards:
        data = blobs.read(shard.blob)
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            rows = file.read()
        assert rows.num_rows == shard.rows
        assert int.from_bytes(data[-8:-4], "little") + 8 == shard.footer.nbytes
        columns = [
            rows[field.name] if field.name in rows.column_names else pa.nulls(len(rows), field.type)
            for field in entry.schema
        ]
        tables.append(pa.Table.from_arrays(columns, schema=entry.schema))
    table = pa.concat_tables(tables)
    assert table.num_rows == entry.rows
    return table
