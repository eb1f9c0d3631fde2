"""A second reader of published datasets in plain Python, written from the specification only."""

import base64
import hashlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

LEAF = 65536


class Version(NamedTuple):
    digest: str
    manifest: dict[str, Any]
    tables: dict[str, pa.Table]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def key_of(digest: str) -> str:
    return f"blobs/{digest[:2]}/{digest[2:4]}/{digest}"


def read_pointer(path: Path) -> dict[str, Any]:
    """Read a pointer and verify what it inlines."""
    data = path.read_bytes()
    pointer: dict[str, Any] = json.loads(data)
    assert (pointer["format"], len(data) % 16) == (1, pointer["sequence"] % 16)
    assert data[:76].decode().startswith('{"digest":"' + pointer["digest"])
    if "manifest" in pointer["inline"]:
        assert sha256(pointer["inline"]["manifest"].encode()) == pointer["digest"]
    for kind in ("footers", "leaves"):
        for digest, text in pointer["inline"].get(kind, {}).items():
            assert sha256(base64.b64decode(text, validate=True)) == digest
    return pointer


def read_version(root: Path, name: str, version: str | None = None) -> Version:
    """Read a version of `ws/name` by its digest, by a tag, or the latest, and verify all of it."""
    folder = root / "manifests" / name
    if version is None or len(version) < 64:
        version = read_pointer(folder / (f"tags/{version}.json" if version else "latest.json"))[
            "digest"
        ]
    data = (folder / f"{version}.json").read_bytes()
    assert sha256(data) == version
    manifest = json.loads(data)
    text = json.dumps(manifest, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    assert text.encode() == data, "canonical"
    assert (manifest["format"], manifest.get("requires", [])) == (1, [])
    tables = {each: read_table(root, table) for each, table in manifest.get("tables", {}).items()}
    assert manifest["stats"]["rows"] == sum(table.num_rows for table in tables.values())
    return Version(version, manifest, tables)


def read_table(root: Path, table: dict[str, Any]) -> pa.Table:
    shards = table.get("shards") or [
        shard for segment in table["segments"] for shard in read_segment(root, segment)
    ]
    parts = []
    for shard in shards:
        data = read_blob(root, shard)
        footer = data[len(data) - shard["footer"]["bytes"] :]
        assert sha256(footer) == shard["footer"]["digest"]
        assert int.from_bytes(footer[-8:-4], "little") == len(footer) - 8
        parts.append(pq.read_table(io.BytesIO(data)))
        assert parts[-1].num_rows == shard["rows"]
        assert parts[-1].schema.names == [each["name"] for each in table["schema"]["fields"]]
    assert sum(part.num_rows for part in parts) == table["rows"]
    return pa.concat_tables(parts)


def read_segment(root: Path, segment: dict[str, Any]) -> list[dict[str, Any]]:
    rows = pq.read_table(io.BytesIO(read_blob(root, segment))).to_pylist()
    assert (len(rows), sum(row["rows"] for row in rows)) == (segment["shards"], segment["rows"])
    shards = []
    for row in rows:
        footer = {"bytes": row["footer_bytes"], "digest": row["footer_digest"].hex()}
        digests = {key: row[key].hex() for key in ("digest", "leaves") if row[key] is not None}
        shards.append({**digests, "bytes": row["bytes"], "rows": row["rows"], "footer": footer})
    return shards


def read_blob(root: Path, blob: dict[str, Any]) -> bytes:
    """Read a blob; verify it by its digest and by its leaves."""
    data = (root / key_of(blob["digest"])).read_bytes()
    assert (len(data), sha256(data)) == (blob["bytes"], blob["digest"])
    assert ("leaves" in blob) == (len(data) > LEAF)
    if "leaves" in blob:
        pieces = [data[at : at + LEAF] for at in range(0, len(data), LEAF)]
        table = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
        assert sha256(table) == blob["leaves"]
        assert (root / key_of(blob["leaves"])).read_bytes() == table
    return data
