"""References: text that names one value in an immutable or append-only container."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from relive._arguments import as_int, as_text
from relive.errors import InvalidError

GRAMMAR: Final = "a reference has the form scheme://container/field/index"

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_TEXT: Final = re.compile(r"([^:/]+)://([^/]+)/([^/]+)/(0|[1-9][0-9]*)")
_SAFE: Final = "-._~!$&'()*+,;=:@"  # allowed by RFC 3986 in a path segment
_MAX_INDEX: Final = (1 << 63) - 1
_MAX_INDEX_DIGITS: Final = len(str(_MAX_INDEX))


@dataclass(frozen=True, order=True, slots=True)
class Ref:
    """The value at `index` of `field` in `container`; `scheme` says what kind of container it is.

    Written `scheme://container/field/index`, with the characters that a path segment cannot
    hold percent-encoded. Each reference has exactly one spelling: `Ref.parse(str(ref)) == ref`
    and `str(Ref.parse(text)) == text`.

    Example:
        >>> ref = Ref.parse("h5://run/frames/1523")
        >>> ref.container, ref.index
        ('run', 1523)
        >>> str(Ref("h5", "my run", "frames", 0))
        'h5://my%20run/frames/0'
    """

    scheme: str
    container: str
    field: str
    index: int

    def __post_init__(self) -> None:
        if not _SCHEME.fullmatch(as_text("the scheme of a reference", self.scheme, hint=GRAMMAR)):
            raise InvalidError(
                f"the scheme of a reference must be lower-case ASCII, got {self.scheme!r}",
                hint=GRAMMAR,
            )
        _check_segment("container", self.container)
        _check_segment("field", self.field)
        object.__setattr__(self, "index", as_int("index", self.index, hint=GRAMMAR))

    @classmethod
    def parse(cls, text: str) -> "Ref":
        """Parse a reference; any text but its one spelling raises `InvalidError`."""
        match = _TEXT.fullmatch(as_text("a reference", text, hint=GRAMMAR))
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
                f"the reference {text!r} is not in its canonical form", hint=f"use {spelling!r}"
            )
        return ref

    def __str__(self) -> str:
        """Return the reference as text."""
        container = quote(self.container, safe=_SAFE)
        field = quote(self.field, safe=_SAFE)
        return f"{self.scheme}://{container}/{field}/{self.index}"


def _check_segment(what: str, text: str) -> None:
    # Programs that read a reference as a path would remove dot segments.
    if as_text(f"the {what} of a reference", text, hint=GRAMMAR) in {"", ".", ".."}:
        raise InvalidError(
            f"the {what} of a reference must not be empty, '.' or '..', got {text!r}", hint=GRAMMAR
        )


def _decoded(segment: str) -> str:
    return unquote_to_bytes(segment).decode()


def _bad(text: str) -> InvalidError:
    shown = text if len(text) <= 200 else f"{text[:200]}…"  # noqa: PLR2004 - enough to find it
    return InvalidError(
        f"{shown!r} is not a valid reference: expected scheme://container/field/index",
        hint="percent-encode the container and the field, as in h5://my%20run/frames/0",
    )
