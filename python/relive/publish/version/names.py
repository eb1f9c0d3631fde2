"""Names of datasets, versions, tags and members, and where the objects of a root are."""

import re
from typing import Final, NamedTuple

from relive._arguments import as_text
from relive.errors import InvalidError

SCHEME: Final = "relive://"
LATEST: Final = "latest"
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
MIN_PREFIX: Final = 8
ROOT_KEY: Final = "relive.json"
MANIFESTS: Final = "manifests/"

_PART: Final = re.compile(r"[a-z0-9_-]+")
_HEX: Final = re.compile(r"[0-9a-fA-F]{8,64}")
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MEMBER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_MAX_PART: Final = 128
_VERSION_FILE: Final = re.compile(r"([0-9a-f]{64})(\.withdrawn)?\.json")


class DatasetId(NamedTuple):
    """A workspace and the name of a dataset in it."""

    workspace: str
    name: str

    def __str__(self) -> str:
        return f"{self.workspace}/{self.name}"

    @property
    def folder(self) -> str:
        """The prefix of the keys of all objects of this dataset but the blobs."""
        return f"{MANIFESTS}{self.workspace}/{self.name}/"


class Reference(NamedTuple):
    """A dataset and which version of it: a tag, a digest or the start of one; None is `latest`."""

    id: DatasetId
    version: str | None

    def __str__(self) -> str:
        return f"{self.id}" if self.version is None else f"{self.id}@{self.version}"


def parse_id(text: str) -> DatasetId:
    """Return the id that `ws/name` stands for."""
    reference = parse_reference(text)
    if reference.version is not None:
        raise InvalidError(f"`{text}` names a version, expected only `ws/name`")
    return reference.id


def parse_reference(text: str) -> Reference:
    """Parse `ws/name`, `ws/name@v1` or either with `relive://` in front of it."""
    rest, at, version = as_text("a dataset", text).removeprefix(SCHEME).partition("@")
    workspace, slash, name = rest.partition("/")
    if not (slash and is_id_part(workspace) and is_id_part(name)):
        raise InvalidError(
            f"`{text}` is not the name of a dataset",
            hint="expected `workspace/name` of lower-case letters, digits, `_` and `-`, "
            "with an optional `@tag` or `@digest`",
        )
    return Reference(DatasetId(workspace, name), as_version(version) if at else None)


def is_id_part(text: str) -> bool:
    """Check whether this may be a workspace or the name of a dataset."""
    return len(text) <= _MAX_PART and _PART.fullmatch(text) is not None


def as_version(version: str) -> str | None:
    """Return a tag, or a digest or its start in lower case; None for `latest`."""
    if as_text("a version", version) == LATEST:
        return None
    if _HEX.fullmatch(version):
        return version.lower()
    if _TAG.fullmatch(version) is None:
        raise InvalidError(
            f"`{version}` is not a version",
            hint=f"expected a tag, `latest`, or at least {MIN_PREFIX} digits of a digest",
        )
    return version


def is_digest(version: str) -> bool:
    """Check whether a version is a digest or the start of one, and therefore not a tag."""
    return _HEX.fullmatch(version) is not None


def is_tag(text: str) -> bool:
    """Check whether this may be a tag."""
    return text != LATEST and _TAG.fullmatch(text) is not None and not is_digest(text)


def check_tag(tag: str) -> str:
    """Return the tag; raise an `InvalidError` unless it may be one."""
    if tag == LATEST:
        raise InvalidError("`latest` is not a tag", hint="it moves with every publish")
    if not is_tag(as_text("a tag", tag)):
        raise InvalidError(
            f"`{tag}` may not be a tag",
            hint="up to 64 letters, digits, `.`, `_` and `-`, the first a letter or digit; "
            f"{MIN_PREFIX} to 64 hexadecimal digits would look like a digest",
        )
    return tag


def check_member_name(name: str, what: str = "a name") -> str:
    """Return the name of a table, split or artifact; raise an `InvalidError` unless it may be."""
    if _MEMBER.fullmatch(as_text(what, name)) is None:
        raise InvalidError(
            f"`{name}` may not be {what}",
            hint="up to 64 letters, digits, `_` and `-`, the first a letter or `_`",
        )
    return name


def manifest_key(dataset: DatasetId, digest: str) -> str:
    """Return the key of a manifest."""
    return f"{dataset.folder}{digest}.json"


def meta_key(dataset: DatasetId, digest: str) -> str:
    """Return the key of what is known of a version but not hashed."""
    return f"{dataset.folder}{digest}.meta.json"


def tombstone_key(dataset: DatasetId, digest: str) -> str:
    """Return the key of the tombstone of a withdrawn version."""
    return f"{dataset.folder}{digest}.withdrawn.json"


def pointer_key(dataset: DatasetId, tag: str | None) -> str:
    """Return the key of `latest`, or of a tag."""
    return f"{dataset.folder}latest.json" if tag is None else f"{tags_prefix(dataset)}{tag}.json"


def tags_prefix(dataset: DatasetId) -> str:
    """Return the prefix of the keys of all tags."""
    return f"{dataset.folder}tags/"


def log_key(dataset: DatasetId) -> str:
    """Return the key of the list of versions."""
    return f"{dataset.folder}log.json"


def lock_key(dataset: DatasetId) -> str:
    """Return the key of the lock, for stores without conditional puts."""
    return f"{dataset.folder}lock.json"


def index_key(workspace: str) -> str:
    """Return the key of the list of datasets in a workspace."""
    return f"{MANIFESTS}{workspace}/index.json"


def version_in(key: str) -> tuple[str | None, bool]:
    """Return the digest of the version that an object is of, and whether it is the manifest.

    Metadata alone do not make a version: only a manifest or a tombstone.
    """
    found = _VERSION_FILE.fullmatch(key.rpartition("/")[2])
    return (found[1], not found[2]) if found else (None, False)
