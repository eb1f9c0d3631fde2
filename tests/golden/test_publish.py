"""The golden root stays readable, by relive and by a reader that shares no code with it."""

import dataclasses
import json
from pathlib import Path

import jsonschema
import pyarrow as pa
import pytest

from relive.errors import VersionWithdrawnError
from relive.publish.version.catalog import Catalog
from relive.publish.version.manifest import TableEntry
from relive.publish.version.names import Reference
from relive.store.blobs import Blobs, blob_key
from relive.store.roots import open_root
from tests.golden.publish.assemble import FOLDER, ID, README, REASON, SCHEMA, assemble, table
from tests.golden.read_publish import read_pointer, read_version, sha256
from tests.publish.version.example_versions import make, publish

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "format" / "manifest.schema.json"


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    assemble(root)
    return root


@pytest.fixture(params=["golden", "current"])
def root(request: pytest.FixtureRequest, current: Path) -> Path:
    return FOLDER if request.param == "golden" else current


def test_golden_files_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 1 << 20


def test_second_reader_matches_what_was_published(root: Path) -> None:
    for version, reference in ((0, "v1.0"), (2, None)):
        found = read_version(root, f"{ID}", reference)
        expected = pa.concat_tables([table(version, 0), table(version, 1)])
        assert found.tables["main"].equals(expected.cast(found.tables["main"].schema))
        assert found.manifest["readme"] == README
        assert found.manifest["tables"]["main"]["splits"]["test"] == [[0, 10], [50, 60]]


def test_both_readers_agree(root: Path) -> None:
    catalog = Catalog(open_root(root))
    for reference in (None, "v1.0"):
        ours, theirs = (
            catalog.resolve(Reference(ID, reference)),
            read_version(root, f"{ID}", reference),
        )
        assert ours.digest == theirs.digest == read_version(root, f"{ID}", ours.digest).digest
        assert json.loads(ours.manifest.to_bytes()) == theirs.manifest
        entry = ours.manifest.tables["main"]
        assert entry.schema.equals(SCHEMA, check_metadata=True)
        for shard in entry.shards:
            data = Blobs(catalog.root).read(shard.blob)
            assert ours.footer(shard) == data[-shard.footer.nbytes :]
        assert ours.meta.message == ("version 2" if reference is None else "version 0")
    listed = catalog.versions(ID)
    log = json.loads((root / "manifests" / f"{ID}" / "log.json").read_text())["versions"]
    assert [each.digest for each in listed] == [each["digest"] for each in log]
    assert [each.withdrawn for each in listed] == [None, REASON, None]
    with pytest.raises(VersionWithdrawnError, match=REASON):
        catalog.resolve(Reference(ID, listed[1].digest))
    index = json.loads((root / "manifests" / ID.workspace / "index.json").read_text())
    assert index["names"] == [each.name for each in catalog.list(ID.workspace)]


def test_manifests_match_the_json_schema(root: Path) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text()))
    manifests = [
        path for path in (root / "manifests" / f"{ID}").glob("*.json") if len(path.stem) == 64
    ]
    assert len(manifests) == 2
    for path in manifests:
        assert sha256(path.read_bytes()) == path.stem
        validator.validate(json.loads(path.read_text()))


def test_pointers_are_numbered(root: Path) -> None:
    folder = root / "manifests" / f"{ID}"
    latest, tag = read_pointer(folder / "latest.json"), read_pointer(folder / "tags" / "v1.0.json")
    assert (latest["sequence"], tag["sequence"], tag["previous"]) == (3, 1, None)
    assert len(latest["inline"]["footers"]) == 2


def test_second_reader_reads_lists_of_many_shards(tmp_path: Path) -> None:
    made = make([1, 2])
    entry = made.manifest.tables["main"]
    many = TableEntry(entry.schema, 2002, entry.shards * 1001)
    publish(
        open_root(tmp_path),
        made._replace(manifest=dataclasses.replace(made.manifest, tables={"main": many})),
    )
    found = read_version(tmp_path, "lab/numbers")
    assert "segments" in found.manifest["tables"]["main"]
    assert found.tables["main"]["n"].to_pylist() == [1, 2] * 1001


def test_the_second_reader_notices_damage(current: Path) -> None:
    found = read_version(current, f"{ID}")
    shard = found.manifest["tables"]["main"]["shards"][1]
    for digest in (shard["digest"], shard["leaves"]):
        path = current / blob_key(digest)
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(AssertionError):
            read_version(current, f"{ID}")
        path.write_bytes(data)
    read_version(current, f"{ID}")
