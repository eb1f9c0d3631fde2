"""Whatever is stored, a reader returns the truth or raises an error of relive."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.errors import CorruptError, ManifestCorruptedError, UnsupportedError
from relive.publish.version import listing, segments
from relive.publish.version.canonical import encode
from relive.publish.version.catalog import Catalog
from relive.publish.version.manifest import Manifest
from relive.publish.version.names import Reference
from relive.publish.version.pointers import Pointer, encode_pointer
from relive.publish.version.withdrawn import Tombstone
from relive.store.blobs import Blobs, blob_key, describe_bytes
from relive.store.roots.root import Root, Stored
from tests.publish.version.example_versions import ID, make, many_shards, publish

MADE = make([1, 2], [3], readme="text", splits=True)
MANIFEST = MADE.manifest.to_bytes()
POINTER = encode_pointer(MADE.manifest, MADE.footers, sequence=3, previous="a" * 64)
LOG = listing.log_to_bytes(
    [listing.VersionInfo(1, "a" * 64, None, ("v1",), "m", "2025-01-01T00:00:00Z", "why")]
)
INDEX = listing.index_to_bytes(["one", "two"])
META = listing.Meta("2025-01-01T00:00:00Z", "m", "me", "a" * 64, "1", "2").to_bytes()
PARSERS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "manifest": (MANIFEST, lambda data: Manifest.parse(data, "it")),
    "pointer": (POINTER, lambda data: Pointer.parse(Stored(data, "tag"), "it")),
    "log": (LOG, lambda data: listing.parse_log(data, "it")),
    "index": (INDEX, lambda data: listing.parse_index(data, "it")),
    "meta": (META, lambda data: listing.Meta.parse(data, "it")),
    "tombstone": (
        Tombstone("why", "2025-01-01T00:00:00Z").to_bytes("a" * 64),
        lambda data: Tombstone.parse(data, "it"),
    ),
}
TYPED = (ManifestCorruptedError, UnsupportedError)
ODD: list[Any] = [
    *(None, True, 0, -1, 1 << 52, "", "x", "a" * 64, "/etc/passwd", "file:///x", "\0", "🙂"),
    *([], {}, [[]], [None], {"": None}, {"digest": "a", "bytes": 1}, ["a"] * 3),
]


def paths(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path of every value in a document."""
    yield at
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        yield from paths(value, (*at, key))


def mutated(tree: Any, rng: random.Random) -> Any:
    """Return a document with one value replaced, removed, doubled or renamed."""
    path = rng.choice(list(paths(tree)))
    if not path:
        return copy.deepcopy(rng.choice(ODD))  # a later mutation may change it
    at = tree
    for step in path[:-1]:
        at = at[step]
    last, how = path[-1], rng.randrange(4)
    if how == 0:
        del at[last]
    elif how == 1 and isinstance(at, list):
        at.insert(last, copy.deepcopy(at[last]))
    elif how == 1:
        at[rng.choice(["x", "uri", "", "digest", "a b"])] = at.pop(last)
    else:
        at[last] = copy.deepcopy(rng.choice(ODD))
    return tree


@pytest.mark.parametrize("name", PARSERS)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_mutated_documents_raise_typed_errors(name: str, seed: int, times: int) -> None:
    data, parse = PARSERS[name]
    rng = random.Random(seed)  # noqa: S311 - for mutations
    tree = json.loads(data)
    for _ in range(times):
        tree = mutated(tree, rng)
    try:
        parse(encode(tree))
    except TYPED as error:
        assert error.message.startswith("it")  # noqa: PT017 - or no error at all


@pytest.mark.parametrize("name", PARSERS)
@given(st.integers(0, 2**32))
def test_mutated_bytes_raise_typed_errors(name: str, seed: int) -> None:
    data, parse = PARSERS[name]
    rng = random.Random(seed)  # noqa: S311 - for mutations
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(changed) or 1)
        how = rng.randrange(3)
        if how == 0:
            changed[place : place + 1] = rng.randbytes(1)
        elif how == 1:
            del changed[place : place + rng.randrange(1, 50)]
        else:
            changed[place:place] = rng.choice([b'"', b"{", b"[", b",", b"\\", b"0", b"\xff"])
    try:
        found = parse(bytes(changed))
    except TYPED:
        return
    if isinstance(found, Manifest):
        assert found.to_bytes() == changed


@pytest.mark.parametrize("name", PARSERS)
@given(st.binary(max_size=60))
def test_random_bytes_raise_typed_errors(name: str, data: bytes) -> None:
    with pytest.raises(TYPED):
        PARSERS[name][1](data)


SEGMENTS = segments.make(many_shards(1001).tables["main"].shards)


@given(st.integers(0, 2**32), st.integers(0, len(SEGMENTS) - 1))
def test_mutated_lists_of_shards_raise_typed_errors(seed: int, which: int) -> None:
    """A manifest can name a list that was written to harm: its digest is right."""
    rng = random.Random(seed)  # noqa: S311 - for mutations
    segment, data, _ = SEGMENTS[which]
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        # Most of them in the metadata, which a parser trusts more.
        near = len(changed) - 1 - min(int(rng.expovariate(1 / 300)), len(changed) - 1)
        changed[near] ^= 1 << rng.randrange(8)
    if rng.randrange(4) == 0:
        del changed[rng.randrange(len(changed)) :]
    try:
        found = segments.parse(segment, bytes(changed), "it")
    except CorruptError:
        return
    assert len(found) == segment.shards
    assert sum(each.rows for each in found) == segment.rows


def test_wrong_pointers_of_a_root(memory: Root) -> None:
    """Every byte of what a pointer inlines is verified; the rest only says which version it is."""
    publish(memory, MADE)
    key = "manifests/lab/numbers/latest.json"
    data = memory.get(key).data
    rng = random.Random(1)  # noqa: S311 - for mutations
    for place in rng.sample(range(len(data)), 300):
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        memory.put(key, bytes(changed), immutable=False)
        try:
            found = Catalog(memory).resolve(Reference(ID, None))
        except (CorruptError, UnsupportedError, FileNotFoundError):
            continue
        assert found.manifest == MADE.manifest
        for shard in found.manifest.tables["main"].shards:
            assert found.footer(shard) in {None, MADE.footers[shard.footer.digest]}


def test_deep_and_large_documents_end_soon(memory: Root) -> None:
    for data in (
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b'{"format":' + b"1" * 1_000_000 + b"}",
        b'{"format":1,"readme":"' + b"x" * (17 << 20) + b'"}',
    ):
        for _, parse in PARSERS.values():
            with pytest.raises(TYPED):
                parse(data)


def test_changed_leaf_tables_never_let_wrong_bytes_through(memory: Root) -> None:
    rng = random.Random(2)  # noqa: S311 - for mutations
    data = rng.randbytes(5 * (64 << 10) + 123)
    ref, leaves = describe_bytes(data)
    assert ref.leaves is not None
    for wrong in (
        b"",
        leaves[:-1],
        leaves + bytes(32),
        leaves[32:] + leaves[:32],
        *(leaves[:at] + bytes([leaves[at] ^ 1]) + leaves[at + 1 :] for at in range(0, 192, 7)),
    ):
        memory.put(blob_key(ref.digest), data)
        memory.put(blob_key(ref.leaves), wrong)
        start = rng.randrange(len(data) - 10)
        try:
            (found,) = Blobs(memory).read_many([(ref, start, start + 10)])
        except CorruptError:
            continue
        # Only what is needed of a table is read, and the rest of this one is right.
        assert wrong == leaves + bytes(32)
        assert found == data[start : start + 10]
    # A table that fits the wrong bytes is not the one that the manifest names.
    forged = bytes(len(data))
    memory.put(blob_key(ref.digest), forged)
    memory.put(blob_key(ref.leaves), describe_bytes(forged)[1])
    with pytest.raises(CorruptError):
        Blobs(memory).read_many([(ref, 0, 10)])
