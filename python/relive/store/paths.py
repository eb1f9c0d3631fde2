"""Where things are: paths, patterns of them, and URIs."""

import glob
import os
import re
from typing import Final, TypeAlias

from relive.errors import InvalidError, InvalidTypeError, NotFoundError
from relive.store.remote.file import is_remote, local_path

__all__ = ["Location", "absolute_path", "expand"]

Location: TypeAlias = str | os.PathLike[str]
"""A path, a glob pattern, or a URI."""

_WILD: Final = frozenset("*?[")
# A `Path` has made one slash of two; then it is a URI only with a scheme that is no folder's name.
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|(?:abfss?|az|file|gs|hf|https?|s3):/")


def absolute_path(path: Location, what: str) -> str:
    """Give a path of this machine that stays what it is in another current directory.

    A `~` in front is the home directory. `what` says in a message what is at the path: "a pack".
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidTypeError(f"{what} has a path, and {path!r} is none")
    if not text or "\0" in text:
        raise InvalidError(f"{text!r} is no path")
    if _URI.match(text):
        raise InvalidError(
            f"`{text}` is a URI, and {what} has a path of this machine",
            hint="record to a local folder, and copy it afterwards",
        )
    # A final slash must be seen, and a link stays one.
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111


def expand(where: Location) -> list[str]:
    """Give the paths that a pattern matches, by name; a path or a URI is itself.

    A `~` in front is the home directory.
    """
    if not isinstance(where, str | os.PathLike) or isinstance(os.fspath(where), bytes):
        raise InvalidTypeError(f"a path or URI is needed, not {where!r}")
    text = os.fspath(where)
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
