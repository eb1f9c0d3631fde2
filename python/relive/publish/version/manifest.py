"""Manifests: what a version consists of. The SHA-256 of a manifest's bytes is the version.

The form is specified in docs/format/manifest.md.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa

from relive.errors import InvalidError, ManifestCorruptedError, ReliveError, UnsupportedError
from relive.publish.version import segments
from relive.publish.version.canonical import child, decode, encode
from relive.publish.version.document import (
    FORMAT,
    UPGRADE,
    as_count,
    as_digest,
    as_list,
    as_object,
    as_string,
    check_format,
    malformed,
    shown,
)
from relive.publish.version.names import check_member_name
from relive.publish.version.schema import schema_from_json, schema_to_json
from relive.publish.version.segments import Footer, Segment, Shard
from relive.store.blobs import LEAF_BYTES, BlobRef

__all__ = ["Footer", "Manifest", "RowRanges", "Segment", "Shard", "TableEntry"]

RowRanges: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open ranges of the rows of a table, in order and apart from each other."""

FEATURES: Final = frozenset[str]()
"""The entries of `requires` that this version of relive knows."""
MAX_INLINE_SHARDS: Final = 1000
_ABOUT: Final = ("license", "creator", "citation", "url")
_OWN: Final = frozenset({"format", "requires", "tables", "stats", "about", "readme"})
_BINDING: Final = ("table", "column", "artifact", "ref", "media")
_DIGEST_BYTES: Final = 32
_MIN_FOOTER: Final = 9
_PLACE: Final = re.compile(r"file:|[A-Za-z][A-Za-z0-9+.-]*://|[/\\~]|[A-Za-z]:[/\\]", re.IGNORECASE)
_LOCAL: Final = re.compile(r"\s*(file:|[/\\]|~[/\\]|[A-Za-z]:[/\\])", re.IGNORECASE)


@dataclass(frozen=True)
class TableEntry:
    """A table: its schema, and the Parquet files that have its rows, in order."""

    schema: pa.Schema
    rows: int
    shards: tuple[Shard, ...]
    splits: Mapping[str, RowRanges] = field(default_factory=dict)
    """The rows of each split by its name."""
    segments: tuple[Segment, ...] = ()
    """Where its shards are listed, if there are many and they were not read yet."""

    @property
    def nbytes(self) -> int:
        """The size of all shards."""
        return sum(shard.blob.nbytes for shard in self.shards)


@dataclass(frozen=True)
class Manifest:
    """What a version consists of. Immutable and picklable."""

    tables: Mapping[str, TableEntry] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    """License, creator, citation and url, of those that are given."""
    readme: str | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)
    """All other sections, as parsed JSON."""
    requires: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: bytes, what: str) -> Self:
        """Parse and check a manifest; `what` is named in messages.

        Lists of more than 1,000 shards are read by `with_segments`.
        """
        tree = decode(data, what)
        try:
            made = cls._from_tree(tree)
        except (ManifestCorruptedError, UnsupportedError) as error:
            raise type(error)(f"{what}: {error.message}", hint=error.hint) from None
        if encode(tree) != data:
            raise ManifestCorruptedError(f"{what}: not in canonical form")
        made.__dict__["_data"] = data  # the bytes of segments depend on the version of pyarrow
        return made

    def to_bytes(self) -> bytes:
        """Return the canonical bytes; an `InvalidError` names the path of what may not be there."""
        return self._data

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the canonical bytes: the version."""
        return hashlib.sha256(self._data).hexdigest()

    @property
    def rows(self) -> int:
        """The number of rows of all tables."""
        return sum(table.rows for table in self.tables.values())

    @cached_property
    def nbytes(self) -> int:
        """The size of all blobs, each counted once, without leaf tables and lists of shards."""
        return _total(self._refs(with_segments=False))

    @property
    def is_complete(self) -> bool:
        """Whether every table has its shards, which `with_segments` reads if there are many."""
        return all(table.shards or not table.segments for table in self.tables.values())

    def with_segments(
        self, read: Callable[[Sequence[BlobRef]], Sequence[bytes]], what: str
    ) -> Self:
        """Return the manifest with the lists of shards that are stored in blobs of their own.

        `read` returns the verified bytes of blobs, in one round trip.
        """
        if self.is_complete:
            return self
        wanted = [each for table in self.tables.values() for each in table.segments]
        found = iter(zip(wanted, read([each.blob for each in wanted]), strict=True))
        tables = dict(self.tables)
        for name, table in self.tables.items():
            if table.segments:
                where = f"{what}: {child('tables', name)}.segments"
                shards = [
                    shard
                    for number in range(len(table.segments))
                    for shard in segments.parse(*next(found), f"{where}[{number}]")
                ]
                tables[name] = replace(table, shards=tuple(shards), segments=())
        made = replace(self, tables=tables)
        # A manifest that is made of this one does not have them, and lists its shards anew.
        made.__dict__["_data"] = self._data
        made.__dict__["_segments"] = {
            name: [(each, b"", b"") for each in table.segments]
            for name, table in self.tables.items()
        }
        return made

    def new_segments(self) -> dict[BlobRef, tuple[bytes, bytes]]:
        """Return the blobs with the lists of shards, and their leaf tables, to be uploaded."""
        return {
            segment.blob: (data, leaves)
            for made in self._segments.values()
            for segment, data, leaves in made
            if data
        }

    def blobs(self) -> Iterator[BlobRef]:
        """Return every blob once, leaf tables included."""
        seen = set[str]()
        for ref in self._refs(with_segments=True):
            for each in (ref, leaf_table_ref(ref)):
                if each is not None and each.digest not in seen:
                    seen.add(each.digest)
                    yield each

    @cached_property
    def _data(self) -> bytes:
        tree = self._to_tree()
        try:
            self._from_tree(tree)
        except (ManifestCorruptedError, UnsupportedError) as error:
            raise InvalidError(error.message, hint=error.hint) from None
        return encode(tree)

    @cached_property
    def _segments(self) -> dict[str, list[tuple[Segment, bytes, bytes]]]:
        return {
            name: segments.make(table.shards)
            for name, table in self.tables.items()
            if not table.segments and len(table.shards) > MAX_INLINE_SHARDS
        }

    def _refs(self, *, with_segments: bool) -> Iterator[BlobRef]:
        for name, table in self.tables.items():
            yield from (shard.blob for shard in table.shards)
            if with_segments:
                yield from (each.blob for each in table.segments)
                yield from (segment.blob for segment, _, _ in self._segments.get(name, ()))
        for name, section in self.sections.items():
            yield from _blobs_in(section, name)

    def _to_tree(self) -> dict[str, Any]:
        tree: dict[str, Any] = {"format": FORMAT, **self.sections}
        if self.requires:
            tree["requires"] = list(self.requires)
        if self.tables:
            tree["tables"] = {n: self._table_to_tree(n, t) for n, t in self.tables.items()}
        if self.about:
            tree["about"] = dict(self.about)
        if self.readme is not None:
            tree["readme"] = self.readme
        tree["stats"] = {"rows": self.rows, "bytes": _total(self._refs(with_segments=False))}
        return tree

    def _table_to_tree(self, name: str, table: TableEntry) -> dict[str, Any]:
        tree: dict[str, Any] = {
            "format": "parquet",
            "schema": schema_to_json(table.schema),
            "rows": table.rows,
        }
        listed = table.segments or [segment for segment, _, _ in self._segments.get(name, ())]
        if listed:
            tree["segments"] = [
                {**blob_to_tree(each.blob), "shards": each.shards, "rows": each.rows}
                for each in listed
            ]
        else:
            tree["shards"] = [
                {
                    **blob_to_tree(each.blob),
                    "rows": each.rows,
                    "footer": {"bytes": each.footer.nbytes, "digest": each.footer.digest},
                }
                for each in table.shards
            ]
        if table.splits:
            tree["splits"] = {
                name: [[start, stop] for start, stop in ranges]
                for name, ranges in table.splits.items()
            }
        return tree

    @classmethod
    def _from_tree(cls, tree: Any) -> Self:
        _check_requires(tree)
        sections = {name: value for name, value in tree.items() if name not in _OWN}
        for name, value in sections.items():
            _check_section(name, value)
        tables = {
            check_name(name, "tables"): _table(value, child("tables", name))
            for name, value in as_object(tree.get("tables", {}), "tables").items()
        }
        about = as_object(tree.get("about", {}), "about", (), _ABOUT)
        for name, value in about.items():
            _check_about(name, value)
        readme = tree.get("readme")
        if "readme" in tree:
            as_string(readme, "readme")
        made = cls(tables, about, readme, sections, tuple(tree.get("requires", ())))
        if "stats" in tree:
            stats = as_object(tree["stats"], "stats", (), ("rows", "bytes"))
            for name, value in stats.items():
                as_count(value, child("stats", name))
            if stats.get("rows", made.rows) != made.rows:
                raise malformed("stats.rows", f"must be {made.rows}, got {stats['rows']}")
        return made


def leaf_table_ref(ref: BlobRef) -> BlobRef | None:
    """Return the blob that is the leaf table of another; None if it has none."""
    if ref.leaves is None:
        return None
    return BlobRef(ref.leaves, -(-ref.nbytes // LEAF_BYTES) * _DIGEST_BYTES, None)


def blob_to_tree(ref: BlobRef) -> dict[str, Any]:
    """Return a blob as manifests have it."""
    leaves = {} if ref.leaves is None else {"leaves": ref.leaves}
    return {"digest": ref.digest, "bytes": ref.nbytes, **leaves}


def blob_from_tree(tree: dict[str, Any], where: str) -> BlobRef:
    """Return the blob that an object with `digest`, `bytes` and `leaves` describes."""
    digest = as_digest(tree.get("digest"), child(where, "digest"))
    nbytes = as_count(tree.get("bytes"), child(where, "bytes"))
    if ("leaves" in tree) != (nbytes > LEAF_BYTES):
        why = "is missing" if nbytes > LEAF_BYTES else f"must be absent up to {LEAF_BYTES} bytes"
        raise malformed(child(where, "leaves"), why)
    leaves = as_digest(tree["leaves"], child(where, "leaves")) if "leaves" in tree else None
    return BlobRef(digest, nbytes, leaves)


def check_name(name: str, where: str) -> str:
    """Return the name of a member of a section; refuse one that may not be a name."""
    try:
        return check_member_name(name)
    except ReliveError:
        raise malformed(where, f"has a key that may not be a name: {shown(name)}") from None


def _check_requires(tree: Any) -> None:
    check_format(tree)
    if "requires" in tree:
        for number, each in enumerate(as_list(tree["requires"], "requires")):
            name = as_string(each, f"requires[{number}]")
            if name not in FEATURES:
                raise UnsupportedError(f"`requires[{number}]` is {shown(name)}", hint=UPGRADE)
        if len(set(tree["requires"])) != len(tree["requires"]):
            raise malformed("requires", "has a name twice")


def _table(value: Any, where: str) -> TableEntry:
    required = ("format", "schema", "rows")
    tree = as_object(value, where, required, ("shards", "segments", "splits"))
    if tree["format"] != "parquet":
        raise UnsupportedError(f"`{where}.format` is {shown(tree['format'])}", hint=UPGRADE)
    if ("shards" in tree) == ("segments" in tree):
        raise malformed(where, "must have either `shards` or `segments`")
    schema = schema_from_json(tree["schema"], child(where, "schema"))
    rows = as_count(tree["rows"], child(where, "rows"))
    shards = tuple(_each(tree.get("shards", []), child(where, "shards"), _shard))
    listed = tuple(_each(tree.get("segments", []), child(where, "segments"), _segment))
    counted = sum(each.rows for each in shards or listed)
    if counted != rows:
        raise malformed(child(where, "rows"), f"must be {counted} as its shards have, got {rows}")
    at = child(where, "splits")
    splits = {
        check_name(name, at): _ranges(ranges, child(at, name), rows)
        for name, ranges in as_object(tree.get("splits", {}), at).items()
    }
    return TableEntry(schema, rows, shards, splits, listed)


def _each(value: Any, where: str, parse: Callable[[Any, str], Any]) -> Iterator[Any]:
    for number, each in enumerate(as_list(value, where)):
        yield parse(each, f"{where}[{number}]")


def _shard(value: Any, where: str) -> Shard:
    tree = as_object(value, where, ("digest", "bytes", "rows", "footer"), ("leaves",))
    blob = blob_from_tree(tree, where)
    rows = as_count(tree["rows"], child(where, "rows"))
    at = child(where, "footer")
    footer = as_object(tree["footer"], at, ("bytes", "digest"), ())
    nbytes = as_count(
        footer["bytes"], child(at, "bytes"), at_least=_MIN_FOOTER, at_most=blob.nbytes
    )
    return Shard(blob, rows, Footer(nbytes, as_digest(footer["digest"], child(at, "digest"))))


def _segment(value: Any, where: str) -> Segment:
    tree = as_object(value, where, ("digest", "bytes", "shards", "rows"), ("leaves",))
    blob = blob_from_tree(tree, where)
    if blob.nbytes > segments.MAX_BYTES:
        raise malformed(child(where, "bytes"), f"must be at most {segments.MAX_BYTES}")
    shards = as_count(
        tree["shards"], child(where, "shards"), at_least=1, at_most=segments.MAX_SHARDS
    )
    return Segment(blob, shards, as_count(tree["rows"], child(where, "rows")))


def _ranges(value: Any, where: str, rows: int) -> RowRanges:
    made: list[tuple[int, int]] = []
    end = 0
    for number, each in enumerate(as_list(value, where)):
        at = f"{where}[{number}]"
        pair = as_list(each, at)
        if len(pair) != 2:  # noqa: PLR2004 - a start and a stop
            raise malformed(at, f"must be a start and a stop, got {shown(each)}")
        start = as_count(pair[0], f"{at}[0]", at_least=end)
        end = as_count(pair[1], f"{at}[1]", at_least=start + 1, at_most=rows)
        made.append((start, end))
    return tuple(made)


def _check_about(name: str, value: Any) -> None:
    where = child("about", name)
    text = as_string(value, where)
    if _LOCAL.match(text):
        raise malformed(where, f"must not be a path of one machine, got {shown(text)}")
    if name == "url" and re.match(r"https?://[^\s/]", text) is None:
        raise malformed(where, f"must be an http or https address, got {shown(text)}")


def _check_section(name: str, value: Any) -> None:
    for _ in _blobs_in(value, name):
        pass
    if name == "bindings":
        for number, each in enumerate(as_list(value, name)):
            where = f"{name}[{number}]"
            tree = as_object(each, where, _BINDING, ())
            for key in _BINDING:
                as_string(tree[key], child(where, key))
            _check_places({**tree, "column": ""}, where)
        return
    if name == "artifacts":
        for key, each in as_object(value, name).items():
            where = child(name, check_name(key, name))
            as_object(each, where, ("kind", "shards"), ("index",))
            as_string(each["kind"], child(where, "kind"))
            as_list(each["shards"], child(where, "shards"))
    _check_places(value, name)


def _check_places(value: Any, where: str) -> None:
    """Refuse addresses and paths of one machine."""
    if isinstance(value, str) and _PLACE.match(value):
        raise malformed(where, f"must not be an address or an absolute path, got {shown(value)}")
    if isinstance(value, dict):
        for key, each in value.items():
            _check_places(each, child(where, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _check_places(each, f"{where}[{number}]")


def _blobs_in(value: Any, where: str) -> Iterator[BlobRef]:
    """Return the blobs of a section: every object with `digest` and `bytes` but footers."""
    if isinstance(value, dict):
        if "digest" in value and "bytes" in value:
            yield blob_from_tree(value, where)
        for key, each in value.items():
            if key != "footer":
                yield from _blobs_in(each, child(where, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _blobs_in(each, f"{where}[{number}]")


def _total(refs: Iterable[BlobRef]) -> int:
    return sum({ref.digest: ref.nbytes for ref in refs}.values())
