"""What the system notes about an episode: how it began, and how it ended."""

import functools
import json
import os
import platform
import subprocess
import sys
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from relive.errors import CorruptError, NotFoundError
from relive.model.clock import now_ns
from relive.store.atomic import storage_error, whole_file

__all__ = [
    "META",
    "OUTCOME",
    "make_meta",
    "read_json",
    "read_meta",
    "read_outcome",
    "write_json",
]

META: Final = "meta.json"
"""The file that is written first, and never changes."""
OUTCOME: Final = "outcome.json"
"""The file that is written last."""

_SCHEMA_VERSION: Final = 1
_GIT_SECONDS: Final = 2.0


def make_meta(writer: type) -> dict[str, Any]:
    """Give what is known when an episode begins: who it is, when and by what it is written."""
    about: dict[str, Any] = {
        "name": f"{writer.__module__}.{writer.__qualname__}",
        "version": _version(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }
    if git := _git(str(Path.cwd())):
        about["git"] = dict(git)
    return {
        "schema_version": _SCHEMA_VERSION,
        "uid": uuid.uuid4().hex,
        "created_ts_ns": now_ns(),
        "writer": about,
    }


def read_meta(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Give what was noted when the episode in `folder` began.

    An episode without a uid has the one that its time of creation gives.
    """
    path = Path(folder, META)
    meta = read_json(path)
    if meta is None:
        raise NotFoundError(f"no episode is in `{os.fspath(folder)}`: it has no {META}")
    if not isinstance(meta.get("created_ts_ns"), int):
        raise CorruptError(f"`{path}` does not say when the episode was created")
    if not isinstance(meta.setdefault("uid", f"ts-{meta['created_ts_ns']}"), str):
        raise CorruptError(f"`{path}` has a uid that is no string: {meta['uid']!r}")
    return meta


def read_outcome(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Give what was noted when the episode in `folder` ended, if anything was."""
    return read_json(Path(folder, OUTCOME))


def read_json(path: Path) -> dict[str, Any] | None:
    """Give the JSON object in a file; None where there is no such file."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, path, "read") from error
    except ValueError as error:
        raise CorruptError(f"`{path}` is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptError(f"`{path}` holds {type(found).__name__}, and a JSON object was meant")
    return found


def write_json(path: Path, content: dict[str, Any], *, overwrite: bool = False) -> None:
    """Write a JSON object to a file that appears whole, on the disk."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
    with whole_file(path, overwrite=overwrite) as file:
        file.write(text.encode())


@functools.cache
def _version() -> str | None:
    try:
        return version("relive")
    except PackageNotFoundError:
        return None


@functools.lru_cache(maxsize=8)
def _git(folder: str) -> dict[str, Any] | None:
    """Look once at each place: what runs was read from there when it started."""
    head = _asked(folder, "rev-parse", "HEAD")
    if not head:
        return None
    branch = _asked(folder, "symbolic-ref", "--short", "-q", "HEAD")
    changes = _asked(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": head,
        "branch": branch or None,
        "dirty": None if changes is None else bool(changes),
    }


def _asked(folder: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - a list, and nothing in it is a user's
            ["git", "--no-optional-locks", "-C", folder, *arguments],  # noqa: S607 - the user's own
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
