"""References: a text that names one value in an immutable or append-only container."""

import operator
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from relive.errors import InvalidError, InvalidTypeError

__all__ = ["GRAMMAR", "Ref"]

GRAMMAR: Final = "scheme://container/field/index"

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_TEXT: Final = re.compile(r"([^:/]+)://([^/]+)/([^/]+)/(0|[1-9][0-9]*)")
_SAFE: Final = "-._~!$&'()*+,;=:@"  # what RFC 3986 lets stand in a path segment
_MAX_INDEX: Final = (1 << 63) - 1
_MAX_INDEX_DIGITS: Final = len(str(_MAX_INDEX))


@dataclass(frozen=True, order=True, slots=True)
class Ref:
    """One value: `index` in `field` of `container`, in the world of `scheme`.

    Written `scheme://container/field/index`, with whatever a path segment cannot hold
    percent-encoded. Each reference has exactly one spelling, so equal texts and equal
    references are the same thing: `Ref.parse(str(ref)) == ref` and `str(Ref.parse(text)) == text`.
    """

    scheme: str
    container: str
    field: str
    index: int

    def __post_init__(self) -> None:
        if not _SCHEME.fullmatch(_text("scheme", self.scheme)):
            raise InvalidError(
                f"the scheme of a reference is lower-case ASCII, not {self.scheme!r}", hint=GRAMMAR
            )
        _check_segment("container", self.container)
        _check_segment("field", self.field)
        object.__setattr__(self, "index", _index(self.index))

    @classmethod
    def parse(cls, text: str) -> "Ref":
        """Read a reference; anything but the one spelling of it is an `InvalidError`."""
        match = _TEXT.fullmatch(_text("spelling", text))
        if match is None:
            raise _bad(text)
        scheme, container, field, index = match.groups()
        if not _SCHEME.fullmatch(scheme) or len(index) > _MAX_INDEX_DIGITS:
            raise _bad(text)
        try:
            ref = cls(scheme, _decoded(container), _decoded(field), int(index))
        except (InvalidError, UnicodeError) as error:
            raise _bad(text) from error
        spelling = str(ref)
        if spelling != text:
            raise InvalidError(
                f"{text!r} is not how a reference is written", hint=f"write {spelling}"
            )
        return ref

    def __str__(self) -> str:
        """Give the one spelling of the reference."""
        container = quote(self.container, safe=_SAFE)
        field = quote(self.field, safe=_SAFE)
        return f"{self.scheme}://{container}/{field}/{self.index}"


def _text(what: str, text: object) -> str:
    if not isinstance(text, str):
        named = type(text).__name__
        raise InvalidTypeError(f"the {what} of a reference is a text, not {named}", hint=GRAMMAR)
    return text


def _check_segment(what: str, text: str) -> None:
    if _text(what, text) in {
        "",
        ".",
        "..",
    }:  # dot segments would be folded away by whoever reads it as a path
        raise InvalidError(f"{text!r} cannot be the {what} of a reference", hint=GRAMMAR)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(
            f"the {what} of a reference is not valid Unicode: {text!r}", hint=GRAMMAR
        ) from error


def _index(index: int) -> int:
    try:
        number = operator.index(index)
    except TypeError as error:
        raise InvalidTypeError(
            f"the index of a reference is an integer, not {index!r}", hint=GRAMMAR
        ) from error
    if isinstance(index, bool):
        raise InvalidTypeError(
            f"the index of a reference is an integer, not {index!r}", hint=GRAMMAR
        )
    if not 0 <= number <= _MAX_INDEX:
        raise InvalidError(
            f"the index of a reference is from 0 to {_MAX_INDEX}, not {number}", hint=GRAMMAR
        )
    return number


def _decoded(segment: str) -> str:
    return unquote_to_bytes(segment).decode()


def _bad(text: str) -> InvalidError:
    shown = text if len(text) <= 200 else f"{text[:200]}…"  # noqa: PLR2004 - enough to find it
    hint = f"{GRAMMAR}, percent-encoded, the index in decimal"
    return InvalidError(f"{shown!r} is not a reference", hint=hint)
