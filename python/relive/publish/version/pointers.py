"""Pointers: `latest` and tags, small objects that name a version and inline its manifest."""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Self

from relive.errors import CorruptError
from relive.publish.version.canonical import child, encode
from relive.publish.version.document import (
    FORMAT,
    as_count,
    as_digest,
    as_flag,
    as_object,
    as_string,
    malformed,
    parse_document,
)
from relive.publish.version.manifest import Manifest, Shard, leaf_table_ref
from relive.publish.version.schema import from_base64
from relive.store.blobs import blob_key
from relive.store.roots.root import Root, Stored

INLINE_BYTES: Final = 256 << 10
# Every process of a job reads the pointer: the parts in it must be little next to the data.
_LEAST_PARTS: Final = 64 << 10
_PARTS_SHARE: Final = 256
HEAD_BYTES: Final = 76
"""A pointer begins with its digest, which these bytes contain."""
_HEAD: Final = re.compile(rb'\{"digest":"([0-9a-f]{64})"')
_MAX_BYTES: Final = 1 << 20
_LENGTHS: Final = 16
_REPAIR: Final = (
    "write the pointer again: `relive rollback ws/name VERSION`, or `relive tag --force` for a tag"
)


class Part(NamedTuple):
    """What a pointer may inline: the footer of a shard, or its leaf table."""

    kind: Literal["footers", "leaves"]
    digest: str
    nbytes: int
    blob: str
    """The digest of the blob that has these bytes."""
    start: int
    """The first of them in the blob."""


def parts_of(manifest: Manifest) -> Iterator[Part]:
    """Return what a pointer to a version may inline, what readers need first at the beginning.

    That is the footer and the leaf table of the first shard of every table, then the footers of
    the other shards, then their leaf tables. Each is returned once.
    """
    tables = manifest.tables.values()
    first = [shard for table in tables for shard in table.shards[:1]]
    others = [shard for table in tables for shard in table.shards[1:]]
    wanted = [make(shard) for shard in first for make in (_footer, _leaf_table)]
    wanted += [make(shard) for make in (_footer, _leaf_table) for shard in others]
    yield from {part.digest: part for part in wanted if part is not None}.values()


def _footer(shard: Shard) -> Part:
    footer, blob = shard.footer, shard.blob
    return Part("footers", footer.digest, footer.nbytes, blob.digest, blob.nbytes - footer.nbytes)


def _leaf_table(shard: Shard) -> Part | None:
    table = leaf_table_ref(shard.blob)
    return None if table is None else Part("leaves", table.digest, table.nbytes, table.digest, 0)


@dataclass(frozen=True)
class Pointer:
    """A version that `latest` or a tag names, how often it was moved, and what it inlines."""

    sequence: int
    digest: str
    previous: str | None
    manifest: Manifest | None = None
    """None if it is too large to be inlined."""
    parts: Mapping[str, bytes] = field(default_factory=dict)
    """Footers and leaf tables of shards by their digest, as many as fit; all are verified."""
    tag: str = ""
    """What the store calls this state of the object, for a compare-and-swap."""
    is_withdrawn: bool = False
    """Whether the version was withdrawn, which is the only way to withdraw the last one."""

    @classmethod
    def parse(cls, stored: Stored, what: str) -> Self:
        """Parse and verify a pointer; `what` is named in messages."""
        return parse_document(
            stored.data,
            what,
            lambda tree: cls._from_tree(tree, stored.tag),
            max_bytes=_MAX_BYTES,
            hint=_REPAIR,
        )

    @classmethod
    def _from_tree(cls, tree: Any, tag: str) -> Self:
        as_object(tree, "", ("sequence", "digest", "previous"))
        sequence = as_count(tree["sequence"], "sequence", at_least=1)
        digest = as_digest(tree["digest"], "digest")
        previous = tree["previous"]
        if previous is not None:
            as_digest(previous, "previous")
        inline = as_object(tree.get("inline", {}), "inline")
        manifest = None
        if "manifest" in inline:
            data = as_string(inline["manifest"], "inline.manifest").encode()
            if hashlib.sha256(data).hexdigest() != digest:
                raise malformed("inline.manifest", f"does not have the digest `{digest}`")
            manifest = Manifest.parse(data, "inline.manifest")
        parts: dict[str, bytes] = {}
        for kind in ("footers", "leaves"):
            where = child("inline", kind)
            for key, value in as_object(inline.get(kind, {}), where).items():
                at = child(where, key)
                parts[key] = from_base64(as_string(value, at), at)
                if hashlib.sha256(parts[key]).hexdigest() != key:
                    raise malformed(at, "does not have its digest")
        is_withdrawn = as_flag(tree.get("withdrawn", False), "withdrawn")
        if is_withdrawn and inline:
            raise malformed("inline", "must be empty where `withdrawn` is true")
        return cls(sequence, digest, previous, manifest, parts, tag, is_withdrawn)


def encode_withdrawn(pointer: Pointer) -> bytes:
    """Return the bytes of a pointer to the same version, which was withdrawn."""
    sequence = pointer.sequence + 1
    body = encode(
        {
            "digest": pointer.digest,
            "format": FORMAT,
            "previous": pointer.previous,
            "sequence": sequence,
            "withdrawn": True,
        }
    )
    return _padded(body, sequence)


def encode_pointer(
    manifest: Manifest, parts: Mapping[str, bytes], *, sequence: int, previous: str | None
) -> bytes:
    """Return the bytes of a pointer: with the manifest, and with as many of `parts` as fit."""
    inline: dict[str, Any] = {}
    left = INLINE_BYTES
    text = manifest.to_bytes().decode()
    if (size := len(encode(text))) <= left:
        inline["manifest"] = text
        left -= size
    for part in fitting_parts(manifest, left):
        data = parts.get(part.digest)
        if data is None:
            continue
        if len(data) != part.nbytes or hashlib.sha256(data).hexdigest() != part.digest:
            raise CorruptError(f"a part of blob `{part.blob}` does not have its digest")
        inline.setdefault(part.kind, {})[part.digest] = base64.b64encode(data).decode()
    body = encode(
        {
            "digest": manifest.digest,
            "format": FORMAT,
            "inline": inline,
            "previous": previous,
            "sequence": sequence,
        }
    )
    return _padded(body, sequence)


def digest_of_head(head: bytes) -> str | None:
    """Return the digest that a pointer begins with; None if it is written in another way."""
    found = _HEAD.match(head)
    return found[1].decode() if found else None


def read_parts(root: Root, manifest: Manifest, known: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the parts that a pointer to `manifest` may inline, in one round trip.

    `known` are those at hand.
    """
    found, missing = {}, []
    for part in fitting_parts(manifest):
        if part.digest in known:
            found[part.digest] = known[part.digest]
        else:
            missing.append(part)
    ranges = [(blob_key(each.blob), each.start, each.start + each.nbytes) for each in missing]
    for part, data in zip(missing, root.read_ranges(ranges) if ranges else (), strict=True):
        found[part.digest] = bytes(data)
        if hashlib.sha256(data).hexdigest() != part.digest:
            key = blob_key(part.blob)
            raise CorruptError(f"`{root.uri(key)}` has wrong bytes from {part.start} on")
    return found


def _padded(body: bytes, sequence: int) -> bytes:
    # Bodies near in time differ in length: a web server may answer that a file which was replaced
    # by one of equal size within a second has not changed.
    return body + b" " * ((sequence - len(body)) % _LENGTHS)


def fitting_parts(manifest: Manifest, left: int = INLINE_BYTES) -> Iterator[Part]:
    """Return the parts that fit into `left` bytes: each that still does, in their order.

    Together they are at most a 256th of the data, or 64 KiB.
    """
    left = min(left, max(_LEAST_PARTS, manifest.nbytes // _PARTS_SHARE))
    for part in parts_of(manifest):
        nbytes = -(-part.nbytes // 3) * 4 + 70  # in base64, with its digest and punctuation
        if nbytes <= left:
            left -= nbytes
            yield part
