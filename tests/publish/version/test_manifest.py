"""Manifests: what they have, what they refuse, and where their errors point."""

import copy
import dataclasses
import hashlib
import json
import pickle
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from relive.errors import InvalidError, ManifestCorruptedError, UnsupportedError
from relive.publish.version.canonical import encode
from relive.publish.version.manifest import Manifest, leaf_table_ref
from relive.store.blobs import BlobRef, describe_bytes
from tests.publish.version.example_versions import make, many_shards

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs" / "format" / "manifest.schema.json").read_text()
)
A, B = "a" * 64, "b" * 64


def tree() -> dict[str, Any]:
    """Return the document of a small version."""
    made = make([1, 2, 3], [4, 5], readme="# Numbers", splits=True).manifest
    found = json.loads(made.to_bytes())
    assert isinstance(found, dict)
    return found


def parsed(document: object) -> Manifest:
    return Manifest.parse(encode(document), "it")


def test_the_digest_is_what_sha256sum_says(tmp_path: Path) -> None:
    made = make([1, 2], [3]).manifest
    (tmp_path / "m.json").write_bytes(made.to_bytes())
    done = subprocess.run(["sha256sum", tmp_path / "m.json"], capture_output=True, text=True)
    assert done.stdout.split()[0] == made.digest


def test_a_manifest_survives_the_trip() -> None:
    made = make([1, 2], [3], readme="text", splits=True).manifest
    made = dataclasses.replace(made, about={"license": "MIT", "url": "https://example.org/x"})
    found = Manifest.parse(made.to_bytes(), "it")
    assert found == made == pickle.loads(pickle.dumps(found))  # noqa: S301 - our own
    assert found.to_bytes() == made.to_bytes()
    assert (found.rows, found.tables["main"].rows) == (3, 3)
    assert found.nbytes == found.tables["main"].nbytes
    assert found.tables["main"].splits == {"train": ((0, 2),), "test": ((2, 3),)}


def test_tables_in_another_order_are_the_same_version() -> None:
    one, other = make([1]).manifest.tables["main"], make([2]).manifest.tables["main"]
    assert Manifest({"a": one, "b": other}).digest == Manifest({"b": other, "a": one}).digest


def test_the_smallest_manifest() -> None:
    assert parsed({"format": 1}) == Manifest()
    assert Manifest().to_bytes() == b'{"format":1,"stats":{"bytes":0,"rows":0}}'


def test_sections_of_later_versions_are_kept() -> None:
    blob = {"digest": A, "bytes": 1 << 20, "leaves": B}
    document = {**tree(), "packs": {"p": {"shards": [blob], "order": ["x"]}}, "novel": [1, "x"]}
    found = parsed(document)
    assert found.sections == {"packs": document["packs"], "novel": [1, "x"]}
    assert json.loads(found.to_bytes()) == document
    changed = dataclasses.replace(found, readme="new")
    assert json.loads(changed.to_bytes())["packs"] == document["packs"]
    refs = {ref.digest for ref in found.blobs()}
    assert {A, B} < refs
    assert found.nbytes == changed.nbytes == found.tables["main"].nbytes + (1 << 20)


def test_every_blob_is_listed_once_with_its_leaf_table() -> None:
    large = BlobRef(A, 3 * (64 << 10) + 1, B)
    assert leaf_table_ref(large) == BlobRef(B, 4 * 32, None)
    made = make([1], [2], [1]).manifest
    assert len(list(made.blobs())) == 2
    assert made.nbytes < made.tables["main"].nbytes


def test_what_matches_the_json_schema() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    blob = {"digest": A, "bytes": 1}
    binding = {"table": "main", "column": "/n", "artifact": "i", "ref": "member", "media": "image"}
    more = {
        "about": {"license": "MIT", "url": "https://example.org"},
        "artifacts": {"i": {"kind": "files", "shards": [blob], "index": blob}},
        "bindings": [binding],
        "requires": [],
    }
    for document in (tree(), {"format": 1}, {**tree(), **more}):
        parsed(document)
        validator.validate(document)
    validator.validate(json.loads(many_shards(1001).to_bytes()))


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the small document with one value changed, or removed if it is `...`."""
    document = copy.deepcopy(tree())
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    at: Any = document
    for step in steps:
        at = at[step] if isinstance(step, int) else at.setdefault(step, {})
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return document


SHARD = "tables/main/shards/1"
CHANGES: list[tuple[str, object, str]] = [
    ("format", ..., "`format` is missing"),
    ("format", "1", "`format` must be an integer, got '1'"),
    ("format", 0, "`format` must be 1 to"),
    ("format", True, "`format` must be an integer, got True"),
    ("requires", {}, "`requires` must be a list"),
    ("requires", [3], "`requires[0]` must be a string"),
    ("tables", [], "`tables` must be an object"),
    ("tables/ma in", {}, "`tables` has a key that may not be a name: 'ma in'"),
    ("tables/main/schema", ..., "`tables.main.schema` is missing"),
    ("tables/main/uri", "x", "`tables.main.uri` is not a known key"),
    ("tables/main/rows", 4, "`tables.main.rows` must be 5 as its shards have, got 4"),
    ("tables/main/rows", -5, "`tables.main.rows` must be 0 to"),
    ("tables/main/segments", [], "`tables.main` must have either"),
    ("tables/main/shards", ..., "`tables.main` must have either"),
    ("tables/main/shards", 3, "`tables.main.shards` must be a list"),
    (SHARD, None, "`tables.main.shards[1]` must be an object"),
    (f"{SHARD}/digest", "x", "`tables.main.shards[1].digest` must be 64 hexadecimal digits"),
    (f"{SHARD}/digest", A.upper(), "`tables.main.shards[1].digest` must be 64"),
    (f"{SHARD}/digest", f"{A}\n", "`tables.main.shards[1].digest` must be 64"),
    (f"{SHARD}/bytes", 1 << 20, "`tables.main.shards[1].leaves` is missing"),
    (f"{SHARD}/bytes", 10, "`tables.main.shards[1].footer.bytes` must be 9 to 10"),
    (f"{SHARD}/leaves", A, "`tables.main.shards[1].leaves` must be absent up to 65536 bytes"),
    (f"{SHARD}/rows", "2", "`tables.main.shards[1].rows` must be an integer"),
    (f"{SHARD}/footer", [], "`tables.main.shards[1].footer` must be an object"),
    (f"{SHARD}/footer/digest", A[1:], "`tables.main.shards[1].footer.digest` must be 64"),
    (f"{SHARD}/footer/bytes", 0, "`tables.main.shards[1].footer.bytes` must be 9"),
    (f"{SHARD}/uri", "s3://b/k", "`tables.main.shards[1].uri` is not a known key"),
    ("tables/main/splits/tr ain", [], "`tables.main.splits` has a key that may not be a name"),
    ("tables/main/splits/train", [[0]], "`tables.main.splits.train[0]` must be a start and"),
    ("tables/main/splits/train", [[0, 6]], "`tables.main.splits.train[0][1]` must be 1 to 5"),
    ("tables/main/splits/train", [[2, 2]], "`tables.main.splits.train[0][1]` must be 3 to 5"),
    ("tables/main/splits/train", [[2, 4], [3, 5]], "`tables.main.splits.train[1][0]` must be 4"),
    ("tables/main/schema/fields/0/type", 5, "`tables.main.schema.fields[0].type` must be an"),
    ("stats/rows", 6, "`stats.rows` must be 5, got 6"),
    ("stats/bytes", -1, "`stats.bytes` must be 0 to"),
    ("stats/hours", 1, "`stats.hours` is not a known key"),
    ("about", {"license": 3}, "`about.license` must be a string"),
    ("about", {"host": "x"}, "`about.host` is not a known key"),
    ("about", {"url": "file:///srv/me"}, "`about.url` must not be a path of one machine"),
    ("about", {"url": "s3://bucket"}, "`about.url` must be an http or https address"),
    ("about", {"creator": "/srv/me"}, "`about.creator` must not be a path of one machine"),
    ("readme", ["x"], "`readme` must be a string"),
    ("readme", None, "`readme` must be a string"),
    ("packs", {"p": {"at": "file:/x"}}, "`packs.p.at` must not be an address or an absolute path"),
    ("packs", {"p": ["S3://b/x"]}, "`packs.p[0]` must not be an address or an absolute path"),
    ("packs", {"p": ["/srv/me"]}, "`packs.p[0]` must not be an address or an absolute path"),
    ("packs", {"p": ["C:\\data"]}, "`packs.p[0]` must not be an address or an absolute path"),
    ("packs", {"p": {"digest": A, "bytes": -1}}, "`packs.p.bytes` must be 0 to"),
    ("artifacts", {"i": {"kind": "files"}}, "`artifacts.i.shards` is missing"),
    ("artifacts", {"1": {}}, "`artifacts` has a key that may not be a name"),
    ("bindings", {}, "`bindings` must be a list"),
    ("bindings", [{"table": "t"}], "`bindings[0].column` is missing"),
]


@pytest.mark.parametrize(("path", "value", "message"), CHANGES)
def test_malformed_manifests_name_the_path(path: str, value: object, message: str) -> None:
    document = changed(path, value)
    with pytest.raises(ManifestCorruptedError) as caught:
        parsed(document)
    assert caught.value.message.startswith("it: ")
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("path", "value"), [("format", 2), ("requires", ["new"]), ("tables/main/format", "orc")]
)
def test_what_a_later_version_wrote_names_the_upgrade(path: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match="it: `") as caught:
        parsed(changed(path, value))
    assert caught.value.hint is not None
    assert "upgrade relive" in caught.value.hint


def test_other_spellings_are_refused() -> None:
    data = json.dumps(tree()).encode()
    with pytest.raises(ManifestCorruptedError, match="it: not in canonical form"):
        Manifest.parse(data, "it")
    with pytest.raises(ManifestCorruptedError, match="it: not in canonical form"):
        Manifest.parse(encode(tree()) + b"\n", "it")


def test_a_publisher_cannot_write_a_malformed_manifest() -> None:
    made = make([1, 2]).manifest
    with pytest.raises(InvalidError, match=r"`about\.url` must not be a path"):
        _ = dataclasses.replace(made, about={"url": "file:///x"}).digest
    entry = dataclasses.replace(made.tables["main"], splits={"train": ((0, 9),)})
    with pytest.raises(InvalidError, match=r"`tables\.main\.splits\.train"):
        Manifest({"main": entry}).to_bytes()


def test_many_shards_are_listed_in_blobs_of_their_own() -> None:
    assert "segments" not in json.loads(many_shards(1000).to_bytes())["tables"]["main"]
    made = many_shards(5003)
    data, stored = made.to_bytes(), made.new_segments()
    assert len(data) < 4096
    for ref, (content, leaves) in stored.items():
        assert describe_bytes(content) == (ref, leaves)
    found = Manifest.parse(data, "it")
    assert not found.is_complete
    assert found.rows == made.rows
    whole = found.with_segments(lambda refs: [stored[ref][0] for ref in refs], "it")
    assert whole.is_complete
    assert whole.tables == made.tables
    assert (whole.digest, whole.to_bytes(), whole.new_segments()) == (made.digest, data, {})
    assert set(whole.blobs()) == set(made.blobs())
    # What is made of it lists its shards anew.
    fewer = dataclasses.replace(
        whole.tables["main"], shards=whole.tables["main"].shards[:-1], rows=made.rows - 10
    )
    assert Manifest({"main": fewer}).digest == many_shards(5002).digest


def test_adding_shards_one_by_one_rewrites_few_entries() -> None:
    written, seen = 0, set[str]()
    for count in range(1001, 1065):
        for ref, (content, _) in many_shards(count).new_segments().items():
            if ref.digest not in seen:
                seen.add(ref.digest)
                written += len(content)
    of_one = len(next(iter(many_shards(1024).new_segments().values()))[0]) / 1024
    assert written < 64 * of_one * 40


def test_damaged_lists_of_shards_are_refused() -> None:
    made = many_shards(1001)
    stored = made.new_segments()
    found = Manifest.parse(made.to_bytes(), "it")
    for content in (b"", b"PAR1", *(content for content, _ in list(stored.values())[1:2])):

        def read(refs: Any, content: bytes = content) -> list[bytes]:
            return [content for _ in refs]

        with pytest.raises(ManifestCorruptedError, match=r"it: tables\.main\.segments\[0\]` is"):
            found.with_segments(read, "it")


def test_hashes_are_of_the_stored_text() -> None:
    data = make([1], readme="é").manifest.to_bytes()
    assert "é".encode() in data
    assert hashlib.sha256(data).hexdigest() == Manifest.parse(data, "it").digest
