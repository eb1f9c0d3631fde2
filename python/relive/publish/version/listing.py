"""The lists of a root: `log.json`, the versions of a dataset, and `index.json`, the datasets of a
workspace. They make versions visible where objects cannot be listed; nothing else needs them.
"""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from relive.errors import AlreadyExistsError, ConflictError, StorageError
from relive.publish.version.canonical import encode
from relive.publish.version.document import (
    FORMAT,
    as_count,
    as_digest,
    as_list,
    as_object,
    as_string,
    malformed,
    parse_document,
)
from relive.publish.version.names import is_id_part, is_tag
from relive.store.roots.root import Root

TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_TRIES: Final = 100
_REBUILD: Final = "`relive reindex` rebuilds it"
_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 0.5


def now() -> str:
    """Return the time as objects of a root have it: UTC, whole seconds."""
    return datetime.now(UTC).strftime(TIME_FORMAT)


@dataclass(frozen=True)
class VersionInfo:
    """One version of a dataset, as `versions` lists it."""

    sequence: int
    """Counts the versions of a dataset from 1 on, in the order in which they were published."""
    digest: str
    parent: str | None = None
    """The version that it was built on."""
    tags: tuple[str, ...] = ()
    message: str | None = None
    time: str | None = None
    """When it was published, as in `2025-11-18T13:30:00Z`."""
    withdrawn: str | None = None
    """Why it was withdrawn, if it was."""
    is_latest: bool = False


@dataclass(frozen=True)
class Meta:
    """What is known of a version but not part of it, as its first publisher wrote it."""

    time: str | None = None
    message: str | None = None
    author: str | None = None
    parent: str | None = None
    relive: str | None = None
    """The version of relive that published it."""
    pyarrow: str | None = None
    """The version of pyarrow that wrote its Parquet files, unless they existed before."""

    def to_bytes(self) -> bytes:
        """Return the content of the object."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return encode({"format": FORMAT, **given})

    @classmethod
    def parse(cls, data: bytes, what: str) -> "Meta":
        """Parse the content of the object; `what` is named in messages."""

        def parse(tree: Any) -> Meta:
            names = [name for name in cls.__dataclass_fields__ if tree.get(name) is not None]
            made = cls(**{name: as_string(tree[name], name) for name in names})
            if made.parent is not None:
                as_digest(made.parent, "parent")
            return made

        return parse_document(data, what, parse)


def parse_log(data: bytes, what: str) -> list[VersionInfo]:
    """Return the versions of `log.json`, oldest first."""

    def parse(tree: Any) -> list[VersionInfo]:
        found = as_list(as_object(tree, "", ("versions",))["versions"], "versions")
        made = [_version(each, f"versions[{number}]") for number, each in enumerate(found)]
        if len({each.digest for each in made}) != len(made):
            raise malformed("versions", "has a digest twice")
        return sorted(made, key=lambda each: each.sequence)

    return parse_document(data, what, parse, hint=_REBUILD)


def log_to_bytes(versions: Iterable[VersionInfo]) -> bytes:
    """Return the content of `log.json`."""
    return encode({"format": FORMAT, "versions": [_to_tree(each) for each in versions]})


def parse_index(data: bytes, what: str) -> list[str]:
    """Return the names of `index.json`."""

    def parse(tree: Any) -> list[str]:
        names = as_list(as_object(tree, "", ("names",))["names"], "names")
        for number, name in enumerate(names):
            if not is_id_part(as_string(name, f"names[{number}]")):
                raise malformed(f"names[{number}]", f"may not be a name: {name!r:.60}")
        return sorted(set(names))

    return parse_document(data, what, parse, hint=_REBUILD)


def index_to_bytes(names: Iterable[str]) -> bytes:
    """Return the content of `index.json`."""
    return encode({"format": FORMAT, "names": sorted(names)})


def merge(known: Iterable[VersionInfo], stored: Iterable[VersionInfo]) -> list[VersionInfo]:
    """Return the versions that are stored, in the order of the log, and new ones after them."""
    places = {each.digest: each.sequence for each in known}
    last = max(places.values(), default=0)
    order = sorted(stored, key=lambda each: places.get(each.digest, last + each.sequence))
    return [replace(each, sequence=number) for number, each in enumerate(order, 1)]


def set_withdrawn(versions: list[VersionInfo], digest: str, why: str | None) -> list[VersionInfo]:
    """Return the list with one version withdrawn for a reason, or with None available again."""
    return [replace(each, withdrawn=why) if each.digest == digest else each for each in versions]


def is_older(version: VersionInfo, seconds: float) -> bool:
    """Check whether a version was published that long ago; no, if its time is unknown."""
    try:
        then = datetime.strptime(version.time or "", TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return False
    return (datetime.now(UTC) - then).total_seconds() > seconds


def set_tag(versions: list[VersionInfo], tag: str, digest: str | None) -> list[VersionInfo]:
    """Return the list with a tag at one version and at no other; with None, at none."""
    made = []
    for each in versions:
        tags = tuple(name for name in each.tags if name != tag)
        made.append(replace(each, tags=_joined(tags, (tag,) if each.digest == digest else ())))
    return made


def change(root: Root, key: str, new: Callable[[bytes | None], bytes | None]) -> None:
    """Replace an object by what `new` makes of its content, None if there is nothing to change.

    It is read again and tried again while other writers change it.
    """
    pause_s = _PAUSE_S
    for _ in range(_TRIES):
        (stored,) = root.get_many([key])
        data = new(None if stored is None else stored.data)
        if data is None or (stored is not None and data == stored.data):
            return
        try:
            if stored is None:
                root.create(key, data)
            else:
                root.replace(key, data, stored.tag)
        except (AlreadyExistsError, ConflictError):
            time.sleep(random.uniform(0, pause_s))  # noqa: S311 - so that writers do not collide
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        else:
            return
    raise StorageError(
        f"`{root.uri(key)}` was changed by other writers {_TRIES} times",
        hint="the version is published; `relive reindex` completes the list",
    )


def _version(value: Any, where: str) -> VersionInfo:
    tree = as_object(value, where, ("sequence", "digest"))
    tags = as_list(tree.get("tags", []), f"{where}.tags")
    parent = tree.get("parent")
    return VersionInfo(
        as_count(tree["sequence"], f"{where}.sequence", at_least=1),
        as_digest(tree["digest"], f"{where}.digest"),
        None if parent is None else as_digest(parent, f"{where}.parent"),
        tuple(_tag(tag, f"{where}.tags[{n}]") for n, tag in enumerate(tags)),
        _text(tree, "message", where),
        _text(tree, "time", where),
        _text(tree, "withdrawn", where),
    )


def _text(tree: dict[str, Any], name: str, where: str) -> str | None:
    value = tree.get(name)
    return None if value is None else as_string(value, f"{where}.{name}")


def _tag(value: Any, where: str) -> str:
    if not is_tag(as_string(value, where)):
        raise malformed(where, f"may not be a tag: {value!r:.60}")
    return str(value)


def _to_tree(version: VersionInfo) -> dict[str, Any]:
    tree = {
        "sequence": version.sequence,
        "digest": version.digest,
        "parent": version.parent,
        "tags": list(version.tags),
        "message": version.message,
        "time": version.time,
    }
    return tree if version.withdrawn is None else {**tree, "withdrawn": version.withdrawn}


def _joined(tags: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*tags, *more}))
