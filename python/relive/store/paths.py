"""Paths, glob patterns and URIs: what a location names, whether it is remote or was replaced."""

import glob
import os
import re
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from relive.errors import (
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)

Location: TypeAlias = str | os.PathLike[str]
"""A path, a glob pattern, or a URI."""

_WILD: Final = frozenset("*?[")
# A `Path` turns two slashes into one. Then it is a URI only with a scheme that is known, because
# any other name may be a directory.
_URI: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]+://|(?:abfss?|az|file|gs|hf|https?|memory|relive|s3):/"
)


class OpenedPath:
    """The path of a file or directory that is being written, to notice that it was removed.

    What is written to a file without a name is lost when it is closed, and no call of the system
    reports it.
    """

    def __init__(self, path: Location) -> None:
        self._path = os.fspath(path)
        self._identity = self._found() or (0, 0)

    def check(self) -> None:
        """Raise a `NotFoundError` if it was moved, removed or replaced."""
        if self._found() != self._identity:
            raise NotFoundError(
                f"`{self._path}` was moved, removed or replaced while it was being written",
                hint="what was written since is lost; write to another path",
            )

    def _found(self) -> tuple[int, int] | None:
        """Return the identity of what is there, without opening it."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - a `Path` takes longer
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot access `{self._path}`: {error.strerror}") from error
        return status.st_dev, status.st_ino


def is_remote(uri: object) -> bool:
    """Return whether `uri` has a scheme other than `file`."""
    return isinstance(uri, str) and _scheme(uri) not in {"", "file"}


def local_path(uri: Location) -> Path:
    """Return the path of a `file://` URI; anything else is a path already."""
    if not isinstance(uri, str) or _scheme(uri) != "file":
        _check_encoding(os.fspath(uri))
        return Path(uri)
    parts = urlsplit(uri)
    if parts.netloc not in {"", "localhost"}:
        raise UnsupportedError(
            f"cannot read `{uri}`: {parts.netloc!r} is another machine",
            hint="write the URI of a local file without a host, as file:///path",
        )
    return Path(unquote(parts.path))


def absolute_path(path: Location, what: str) -> str:
    """Return a local path as an absolute path, so that it is valid in any working directory.

    `~` at its beginning is the home directory. `what` is named in messages: "a pack".
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidTypeError(f"the path of {what} must be a string or a Path, got {path!r}")
    if not text or "\0" in text:
        raise InvalidError(f"{text!r} is not a valid path")
    _check_encoding(text)
    if _URI.match(text):
        raise InvalidError(
            f"`{text}` is a URI, but {what} must have a local path",
            hint="use a local path; publish what is written there, or copy what is to be read",
        )
    # Not `Path.resolve`, which follows links.
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111


def expand(location: Location) -> list[str]:
    """Return the paths that a glob pattern matches, sorted; a path or a URI is returned alone.

    `~` at its beginning is the home directory.
    """
    if not isinstance(location, str | os.PathLike) or isinstance(os.fspath(location), bytes):
        raise InvalidTypeError(f"a path or URI must be a string or a Path, got {location!r}")
    text = os.fspath(location)
    if not text:
        raise InvalidError("the path is empty")
    if is_remote(text):
        return [text]
    path = os.fspath(local_path(os.path.expanduser(text)))  # noqa: PTH111 - of a string
    if _WILD.isdisjoint(path) or os.path.lexists(path):
        return [path]
    found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - a pattern is not a path
    if not found:
        raise NotFoundError(f"no file matches `{path}`")
    return found


def _check_encoding(path: str) -> None:
    """Raise an `InvalidError` for text that no file can have as its path."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise InvalidError(f"{path!r} is not a valid path") from error


def _scheme(uri: str) -> str:
    scheme, found, _ = uri.partition("://")
    return scheme.lower() if found and scheme.replace("+", "").isalnum() else ""
