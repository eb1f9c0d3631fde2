"""What readers see of a dataset: every version complete, and with the content of its number."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from relive.errors import DatasetNotFoundError
from relive.publish.version.catalog import Catalog, Version
from relive.publish.version.names import Reference
from relive.store.blobs import Blobs
from relive.store.roots.root import Root
from tests.faults.publish.programs.publisher import ID, content


def latest(root: Root) -> str | None:
    """Return the digest of the latest version, which is complete; None if there is none."""
    try:
        version = Catalog(root).resolve(Reference(ID, None))
    except DatasetNotFoundError:
        return None
    check(version)
    return version.digest


def check(version: Version) -> int:
    """Read a whole version, verified; return its number."""
    blobs = Blobs(version.root)
    tables = {}
    for name, entry in version.manifest.tables.items():
        parts = [pq.read_table(io.BytesIO(blobs.read(shard.blob))) for shard in entry.shards]
        tables[name] = pa.concat_tables(parts)
        assert tables[name].num_rows == entry.rows
    number: int = tables["grows"].num_rows - 1
    for name, table in content(number).items():
        assert tables[name].equals(table), name
    assert tables.keys() == content(number).keys()
    return number


def check_all(root: Root) -> list[str]:
    """Check that every version of the lists and every tag is complete; return their digests."""
    catalog = Catalog(root)
    try:
        listed = catalog.versions(ID)
    except DatasetNotFoundError:
        return []
    for each in listed:
        number = check(catalog.resolve(Reference(ID, each.digest)))
        assert each.tags in {(), (f"v{number}",)}
        assert each.message in {None, f"version {number}"}
    for tag, digest in catalog.tags(ID).items():
        found = catalog.resolve(Reference(ID, tag))
        assert (found.digest, f"v{check(found)}") == (digest, tag)
    return [each.digest for each in listed]
