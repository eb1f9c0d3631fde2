"""Checks the parts of a parsed document; errors name the path of the value in it."""

from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from relive.errors import ManifestCorruptedError, UnsupportedError
from relive.publish.version.canonical import MAX_BYTES, MAX_INTEGER, child, decode
from relive.publish.version.names import DIGEST

FORMAT: Final = 1
UPGRADE: Final = "upgrade relive: a newer version wrote this"
_SHOWN: Final = 60
_Parsed = TypeVar("_Parsed")


def parse_document(
    data: bytes,
    what: str,
    parse: Callable[[Any], _Parsed],
    *,
    max_bytes: int = MAX_BYTES,
    hint: str | None = None,
) -> _Parsed:
    """Return what `parse` makes of a document of this format; `what` is named in messages.

    `hint` says how to repair it.
    """
    try:
        tree = decode(data, what, max_bytes=max_bytes)
    except ManifestCorruptedError as error:
        raise ManifestCorruptedError(error.message, hint=hint) from None
    try:
        check_format(tree)
        return parse(tree)
    except (ManifestCorruptedError, UnsupportedError) as error:
        raise type(error)(f"{what}: {error.message}", hint=error.hint or hint) from None


def check_format(tree: Any) -> None:
    """Raise an `UnsupportedError` if a newer version of relive wrote a document."""
    if as_count(as_object(tree, "", ("format",))["format"], "format", at_least=1) != FORMAT:
        raise UnsupportedError(f"`format` {tree['format']} is not supported", hint=UPGRADE)


def malformed(where: str, why: str) -> ManifestCorruptedError:
    """Return the error of a value at a path: "`tables.main` must be …"."""
    return ManifestCorruptedError(f"`{where}` {why}" if where else f"the document {why}")


def as_object(
    value: Any, where: str, required: Collection[str] = (), optional: Collection[str] | None = None
) -> dict[str, Any]:
    """Return an object that has every required key, and no other but the optional ones.

    With `optional=None` it may have any other key.
    """
    if not isinstance(value, dict):
        raise malformed(where, f"must be an object, got {shown(value)}")
    for key in required:
        if key not in value:
            raise malformed(child(where, key), "is missing")
    if optional is not None:
        for key in value:
            if key not in required and key not in optional:
                raise malformed(child(where, key), "is not a known key")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list):
        raise malformed(where, f"must be a list, got {shown(value)}")
    return value


def as_count(value: Any, where: str, *, at_least: int = 0, at_most: int = MAX_INTEGER) -> int:
    """Return an integer between two bounds."""
    if type(value) is not int:
        raise malformed(where, f"must be an integer, got {shown(value)}")
    if not at_least <= value <= at_most:
        raise malformed(where, f"must be {at_least} to {at_most}, got {value}")
    return value


def as_string(value: Any, where: str) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise malformed(where, f"must be a string, got {shown(value)}")
    return value


def as_flag(value: Any, where: str) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise malformed(where, f"must be true or false, got {shown(value)}")
    return value


def as_digest(value: Any, where: str) -> str:
    """Return a SHA-256 in 64 lower-case hexadecimal digits."""
    if not isinstance(value, str) or DIGEST.fullmatch(value) is None:
        raise malformed(where, f"must be 64 hexadecimal digits, got {shown(value)}")
    return value


def shown(value: object) -> str:
    """Return a value as messages show it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
