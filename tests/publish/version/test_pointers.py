"""Pointers inline what a reader needs first, and verify it."""

import base64
import dataclasses
import json
from typing import Any

import pytest

from relive.errors import CorruptError, ManifestCorruptedError, UnsupportedError
from relive.publish.version.canonical import child, encode
from relive.publish.version.lookup import Version
from relive.publish.version.manifest import Footer
from relive.publish.version.names import DatasetId
from relive.publish.version.pointers import (
    HEAD_BYTES,
    INLINE_BYTES,
    Pointer,
    digest_of_head,
    encode_pointer,
    fitting_parts,
    parts_of,
    read_parts,
)
from relive.store.roots import open_root
from relive.store.roots.root import Root, Stored
from tests.publish.version.example_versions import (
    RecordedRoot,
    describe_shard,
    make,
    many_shards,
    upload,
)

MADE = make([1, 2], [3], [4, 5, 6])


def body(sequence: int = 1, previous: str | None = None) -> bytes:
    return encode_pointer(MADE.manifest, MADE.footers, sequence=sequence, previous=previous)


def parsed(data: bytes) -> Pointer:
    return Pointer.parse(Stored(data, "tag"), "it")


def test_a_pointer_inlines_manifest_and_footers() -> None:
    found = parsed(body(7, "a" * 64))
    assert (found.sequence, found.previous, found.tag) == (7, "a" * 64, "tag")
    assert found.digest == MADE.manifest.digest
    assert found.manifest == MADE.manifest
    assert found.parts == MADE.footers
    assert digest_of_head(body()[:HEAD_BYTES]) == MADE.manifest.digest


def test_successive_pointers_differ_in_length() -> None:
    lengths = [len(body(sequence)) for sequence in range(1, 40)]
    for start in range(len(lengths) - 15):
        assert len(set(lengths[start : start + 16])) == 16


def test_no_more_is_inlined_than_fits() -> None:
    large = dataclasses.replace(MADE.manifest, readme="x" * INLINE_BYTES)
    data = encode_pointer(large, MADE.footers, sequence=1, previous=None)
    found = parsed(data)
    assert found.manifest is None
    assert found.parts == MADE.footers
    room = INLINE_BYTES - len(encode(MADE.manifest.to_bytes().decode())) - 2000
    nearly = dataclasses.replace(MADE.manifest, readme="x" * room)
    data = encode_pointer(nearly, MADE.footers, sequence=1, previous=None)
    found = parsed(data)
    first = MADE.manifest.tables["main"].shards[0].footer
    assert found.manifest == nearly
    assert first.digest in found.parts
    assert len(found.parts) < 3
    assert len(data) < INLINE_BYTES + 512
    assert len(encode_pointer(many_shards(900), {}, sequence=1, previous=None)) < INLINE_BYTES


@pytest.mark.parametrize("shards", [90, 220])
def test_what_is_inlined_is_little_next_to_the_data(shards: int) -> None:
    entry = many_shards(shards).tables["main"]
    made = dataclasses.replace(
        MADE.manifest,
        tables={
            "main": dataclasses.replace(
                entry,
                shards=tuple(
                    dataclasses.replace(each, footer=Footer(900, f"{n:064d}"))
                    for n, each in enumerate(entry.shards, 10_000)
                ),
            )
        },
    )
    most = max(64 << 10, made.nbytes // 256)
    assert most < INLINE_BYTES
    inlined = sum(4 * -(-part.nbytes // 3) for part in fitting_parts(made))
    assert 0.8 * most < inlined <= most


def test_the_first_footer_of_every_table_comes_first() -> None:
    entry = MADE.manifest.tables["main"]
    both = dataclasses.replace(MADE.manifest, tables={"a": entry, "b": entry})
    assert [part.digest for part in parts_of(both)] == [each.footer.digest for each in entry.shards]
    large = many_shards(3).tables["main"]
    ends = [Footer(900, f"{n:064d}") for n in range(100, 103)]
    shards = [
        dataclasses.replace(each, footer=end) for each, end in zip(large.shards, ends, strict=True)
    ]
    large = dataclasses.replace(large, shards=tuple(shards))
    made = dataclasses.replace(MADE.manifest, tables={"a": entry, "b": large})
    first, *others = large.shards
    assert [part.digest for part in parts_of(made)] == [
        entry.shards[0].footer.digest,
        first.footer.digest,
        first.blob.leaves,
        *(each.footer.digest for each in (*entry.shards[1:], *others)),
        *(each.blob.leaves for each in others),
    ]


def test_leaf_tables_are_inlined() -> None:
    data = bytes(range(256)) * 1000
    shard, footer, blobs = describe_shard(data[:-8] + (400).to_bytes(4, "little") + b"PAR1", 1)
    table = dataclasses.replace(MADE.manifest.tables["main"], rows=1, shards=(shard,))
    made = dataclasses.replace(MADE.manifest, tables={"main": table})
    assert shard.blob.leaves is not None
    leaves = blobs[shard.blob.leaves]
    parts = {shard.footer.digest: footer, shard.blob.leaves: leaves}
    found = parsed(encode_pointer(made, parts, sequence=1, previous=None))
    assert found.parts == parts
    version = Version(DatasetId("a", "b"), made.digest, made, open_root("memory://x"), found.parts)
    assert dict(version.leaf_tables()) == {shard.blob.leaves: leaves}
    # One that does not fit is left out; what comes after it may fit.
    room = INLINE_BYTES - len(encode(made.to_bytes().decode())) - 400
    nearly = dataclasses.replace(made, readme="x" * room)
    found = parsed(encode_pointer(nearly, parts, sequence=1, previous=None))
    assert found.parts == {shard.blob.leaves: leaves}


def test_wrong_footers_are_not_inlined() -> None:
    wrong = dict.fromkeys(MADE.footers, b"wrong")
    with pytest.raises(CorruptError, match="does not have its digest"):
        encode_pointer(MADE.manifest, wrong, sequence=1, previous=None)


def test_footers_are_read_in_one_round_trip(memory: Root) -> None:
    upload(memory, MADE)
    root = RecordedRoot(memory)
    digest, data = next(iter(MADE.footers.items()))
    assert read_parts(root, MADE.manifest, {digest: data}) == MADE.footers
    assert len(root.requests) == 2
    for key in [entry.key for entry in memory.list("blobs")]:
        memory.put(key, bytes(len(memory.get(key).data)))
    with pytest.raises(CorruptError, match="has wrong bytes from"):
        read_parts(root, MADE.manifest, {})


def changed(**values: Any) -> bytes:
    tree = json.loads(body())
    for path, value in values.items():
        at = tree
        *steps, last = path.split("__")
        for step in steps:
            at = at[step]
        if value is ...:
            del at[last]
        else:
            at[last] = value
    return encode(tree)


FOOTER = next(iter(MADE.footers))
AT = child("inline.footers", FOOTER)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it: not JSON"),
        (b"[]", "it: the document must be an object"),
        (changed(format=...), "it: `format` is missing"),
        (changed(sequence=0), "it: `sequence` must be 1 to"),
        (changed(sequence=...), "it: `sequence` is missing"),
        (changed(digest="x"), "it: `digest` must be 64"),
        (changed(digest="a" * 64), "it: `inline.manifest` does not have the digest `aaa"),
        (changed(previous=...), "it: `previous` is missing"),
        (changed(previous="x"), "it: `previous` must be 64"),
        (changed(inline=[]), "it: `inline` must be an object"),
        (changed(inline__manifest={}), "it: `inline.manifest` must be a string"),
        (changed(inline__manifest="{}"), "it: `inline.manifest` does not have the digest"),
        (changed(inline__footers=[]), "it: `inline.footers` must be an object"),
        (changed(inline__footers={FOOTER: "?"}), f"`{AT}` must be base64"),
        (
            changed(inline__footers={FOOTER: base64.b64encode(b"x").decode()}),
            f"`{AT}` does not have its digest",
        ),
        (b" " * (1 << 20) + body(), "bytes, expected at most 1048576"),
    ],
)
def test_malformed_pointers_name_the_path(data: bytes, message: str) -> None:
    with pytest.raises(ManifestCorruptedError) as caught:
        parsed(data)
    assert message in caught.value.message


def test_a_later_format_names_the_upgrade() -> None:
    with pytest.raises(UnsupportedError, match="it: `format` 2") as caught:
        parsed(changed(format=2))
    assert "upgrade relive" in (caught.value.hint or "")


def test_pointers_of_later_versions_may_have_more_keys() -> None:
    assert parsed(changed(novel=1)).manifest == MADE.manifest
