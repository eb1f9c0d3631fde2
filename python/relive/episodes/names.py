"""What signals may be called, and what their files are called."""

import re
import string
from typing import Any, Final

from relive.errors import InvalidError, InvalidTypeError

__all__ = ["check_name", "file_stem", "signal_name"]

_LONGEST_NAME: Final = 200
# With `.` before it, and `.frames.parquet` and eight digits behind it, a file system takes it.
_LONGEST_STEM: Final = 228
_FRAMES: Final = ".frames"
_ESCAPES: Final = {"%25": "%", "%2F": "/", "%2E": "."}
_ESCAPED: Final = re.compile("%2[5FE]")
# What stands for `/` and `%` in a name that has too many of them, the plainest first.
_SUBSTITUTES: Final = (
    "_-=~+,@!^"
    + string.ascii_uppercase
    + string.digits
    + string.ascii_lowercase
    + "".join(map(chr, range(1, 128)))
)


def check_name(name: Any, what: str = "a signal") -> str:
    """Give the name of a signal or static; it is any text of 1 to 200 bytes without a NUL."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"{what} is named by a string, not {name!r}")
    if not name:
        raise InvalidError(f"{what} needs a name, and this one is empty")
    if "\0" in name:
        raise InvalidError(f"the name {name!r} has a NUL in it")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidError(f"the name {name!r} cannot be stored as UTF-8") from error
    if size > _LONGEST_NAME:
        raise InvalidError(
            f"the name {name[:40]!r}… has {size} bytes, and {_LONGEST_NAME} is the limit"
        )
    return str(name)


def file_stem(name: str) -> str:
    """Give what the files of a signal begin with; no two names give the same.

    `/`, `%`, a dot in front and the dot of `.frames` at the end are percent-encoded. A name that
    has so many of them that no file could bear it is written after `%%` and two characters that
    stand for `/` and `%` in it.
    """
    stem = name.replace("%", "%25").replace("/", "%2F")
    if stem.startswith("."):
        stem = f"%2E{stem[1:]}"
    if stem.endswith(_FRAMES):
        stem = f"{stem.removesuffix(_FRAMES)}%2E{_FRAMES[1:]}"
    return stem if len(stem.encode()) <= _LONGEST_STEM else _substituted(name)


def signal_name(stem: str) -> str:
    """Give the name of the signal whose files begin with `stem`.

    What `file_stem` did not make is a name as it is.
    """
    if stem.startswith("%%") and len(stem) > len("%%ab%"):
        slash, percent = stem[2], stem[3]
        name = stem[4:-1].translate({ord(slash): "/", ord(percent): "%"})
    else:
        name = _ESCAPED.sub(lambda found: _ESCAPES[found[0]], stem)
    return name if name and file_stem(name) == stem else stem


def _substituted(name: str) -> str:
    unused = (char for char in _SUBSTITUTES if char not in name and char not in "/%.")
    slash, percent = next(unused, ""), next(unused, "")
    if not percent:
        raise InvalidError(
            f"the name {name[:40]!r}… has too many `/` and `%` for the name of a file"
        )
    text = name.translate({ord("/"): slash, ord("%"): percent})
    # The last character keeps `.frames` from being the end.
    return f"%%{slash}{percent}{text}%"
