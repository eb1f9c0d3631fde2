"""Creates the golden root of published datasets, with its expected content.

`python -m tests.golden.publish.assemble` writes `root` next to this file, unless it exists: what
was readable once stays readable. The dataset has three versions: the first is tagged, the second
is withdrawn, the third is `latest`. The table has two shards; one is so large that it has leaves.
"""

import io
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from relive.publish.version.catalog import Catalog
from relive.publish.version.manifest import Footer, Manifest, Shard, TableEntry
from relive.publish.version.names import DatasetId, Reference
from relive.store.blobs import blob_key, describe_bytes
from relive.store.roots import open_root
from relive.store.roots.root import Root

FOLDER = Path(__file__).resolve().parent / "root"
ID = DatasetId("lab", "weather-2")
README = "# Weather\n\nGrößen at \u2028 stations \U0001f600\x07\n"
REASON = "wrong station"
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("/station/name", pa.dictionary(pa.int32(), pa.string())),
        pa.field("readings", pa.list_(pa.struct([("wind", pa.float32()), ("raw", pa.binary(3))]))),
    ],
    {"source": "made", "odd": b"\xff\x00"},
)


def table(version: int, shard: int) -> pa.Table:
    """Return the expected rows of a shard; only the second shard differs between versions."""
    count = (40, 5600)[shard]
    numbers = [1000 * shard * version + n for n in range(count)]
    noise = np.random.default_rng(numbers[-1]).bytes(3 * count)
    columns = {
        "n": numbers,
        "at": [datetime.fromtimestamp(n, UTC) if n % 5 else None for n in numbers],
        "/station/name": [("alpha", "größer", None)[n % 3] for n in numbers],
        "readings": [
            [{"wind": n / 4, "raw": noise[3 * k : 3 * k + 3]}] * (n % 3)
            for k, n in enumerate(numbers)
        ],
    }
    return pa.table(columns, SCHEMA)


def manifest(root: Root, version: int) -> tuple[Manifest, dict[str, bytes]]:
    """Store the blobs of a version; return its manifest, footers and leaf tables."""
    shards, parts = [], {}
    for number in range(2):
        file = io.BytesIO()
        pq.write_table(table(version, number), file, compression="zstd", row_group_size=4000)
        data = file.getvalue()
        ref, leaves = describe_bytes(data)
        assert (ref.leaves is not None) == (number == 1)
        for digest, content in ((ref.digest, data), (ref.leaves, leaves)):
            if digest is not None:
                root.put(blob_key(digest), content)
        if ref.leaves is not None:
            parts[ref.leaves] = leaves
        footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
        digest = describe_bytes(footer)[0].digest
        parts[digest] = footer
        shards.append(Shard(ref, table(version, number).num_rows, Footer(len(footer), digest)))
    rows = sum(shard.rows for shard in shards)
    entry = TableEntry(SCHEMA, rows, tuple(shards), {"test": ((0, 10), (50, 60)), "none": ()})
    about = {"license": "CC0-1.0", "url": "https://example.org/weather"}
    return Manifest({"main": entry}, about, README), parts


def assemble(folder: Path) -> list[str]:
    """Write the root; return the digests of its versions."""
    root = open_root(folder)
    catalog = Catalog(root)
    digests: list[str] = []
    for version in range(3):
        made, parts = manifest(root, version)
        digests.append(
            catalog.commit(
                ID,
                made,
                parts,
                expected=catalog.pointer(ID),
                tag=None if version else "v1.0",
                message=f"version {version}",
                author="somebody" if version else None,
                parent=digests[-1] if version else None,
            )
        )
    catalog.withdraw(Reference(ID, digests[1]), REASON)
    (folder / ".lock").unlink(missing_ok=True)  # of writers of this directory
    return digests


if __name__ == "__main__" and not FOLDER.exists():
    assemble(FOLDER)
