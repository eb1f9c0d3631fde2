"""Pointers: `latest` and tags, small objects that name a version and inline its manifest."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

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
from relive.publish.version.manifest import Manifest
from relive.publish.version.schema import from_base64
from relive.store.blobs import blob_key
from relive.store.roots.root import Root, Stored

INLINE_BYTES: Final = 256 << 10
HEAD_BYTES: Final = 76
"""A pointer begins with its digest, which these bytes contain."""
_HEAD: Final = re.compile(rb'\{"digest":"([0-9a-f]{64})"')
_MAX_BYTES: Final = 1 << 20
_LENGTHS: Final = 16
_REPAIR: Final = (
    "write the pointer again: `relive rollback ws/name VERSION`, or `relive tag --force` for a tag"
)


@dataclass(frozen=True)
class Pointer:
    """A version that `latest` or a tag names, how often it was moved, and what it inlines."""

    sequence: int
    digest: str
    previous: str | None
    manifest: Manifest | None = None
    """None if it is too large to be inlined."""
    footers: Mapping[str, bytes] = field(default_factory=dict)
    """Footers of shards by their digest, as many as fit; all are verified."""
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
        footers, where = {}, "inline.footers"
        for key, value in as_object(inline.get("footers", {}), where).items():
            at = child(where, key)
            footers[key] = from_base64(as_string(value, at), at)
            if hashlib.sha256(footers[key]).hexdigest() != key:
                raise malformed(at, "does not have its digest")
        is_withdrawn = as_flag(tree.get("withdrawn", False), "withdrawn")
        if is_withdrawn and inline:
            raise malformed("inline", "must be empty where `withdrawn` is true")
        return cls(sequence, digest, previous, manifest, footers, tag, is_withdrawn)


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
    manifest: Manifest, footers: Mapping[str, bytes], *, sequence: int, previous: str | None
) -> bytes:
    """Return the bytes of a pointer: with the manifest, and with as many footers as fit."""
    inline: dict[str, Any] = {}
    left = INLINE_BYTES
    text = manifest.to_bytes().decode()
    if (size := len(encode(text))) <= left:
        inline["manifest"] = text
        left -= size
    inlined: dict[str, str] = {}
    for shard, footer in manifest.footers():
        data = footers.get(footer.digest)
        if data is None or footer.digest in inlined:
            continue
        if len(data) != footer.nbytes or hashlib.sha256(data).hexdigest() != footer.digest:
            raise CorruptError(f"the footer of blob `{shard.blob.digest}` does not have its digest")
        left -= _inlined_bytes(footer.nbytes)
        if left < 0:
            break
        inlined[footer.digest] = base64.b64encode(data).decode()
    if inlined:
        inline["footers"] = inlined
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


def read_footers(root: Root, manifest: Manifest, known: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the footers that a pointer to `manifest` may inline, in one round trip.

    `known` are those at hand. The others are read from the end of their blobs.
    """
    found, missing, left = {}, {}, INLINE_BYTES
    for shard, footer in manifest.footers():
        left -= _inlined_bytes(footer.nbytes)
        if left < 0:
            break
        if footer.digest in known:
            found[footer.digest] = known[footer.digest]
        else:
            end = shard.blob.nbytes
            missing[footer.digest] = (blob_key(shard.blob.digest), end - footer.nbytes, end)
    read = root.read_ranges(list(missing.values())) if missing else []
    for (digest, (key, start, _)), data in zip(missing.items(), read, strict=True):
        found[digest] = bytes(data)
        if hashlib.sha256(data).hexdigest() != digest:
            raise CorruptError(f"`{root.uri(key)}` has wrong bytes from {start} on")
    return found


def _padded(body: bytes, sequence: int) -> bytes:
    # Bodies near in time differ in length: a web server may answer that a file which was replaced
    # by one of equal size within a second has not changed.
    return body + b" " * ((sequence - len(body)) % _LENGTHS)


def _inlined_bytes(nbytes: int) -> int:
    return -(-nbytes // 3) * 4 + 70  # in base64, with its digest and punctuation
