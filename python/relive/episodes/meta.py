"""The JSON files of an episode: `meta.json`, `outcome.json` and `static.json`."""

import functools
import json
import os
import platform
import sys
import uuid
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from relive._arguments import type_name
from relive.episodes.file_list import CHECKSUMS, FileList, check_listed
from relive.episodes.layout import FILES, META, OUTCOME, SCHEMA_VERSION, STATICS
from relive.errors import CorruptError, NotFoundError, ReliveError, UnsupportedError
from relive.model.clock import now_ns
from relive.model.episode import decode_statics, encode_statics
from relive.store.atomic import read_file, whole_file
from relive.store.git import git_state

_PUBLIC: Final = "relive.episodes"


def make_meta(writer: type) -> dict[str, Any]:
    """Return the content of `meta.json` for an episode that begins now, with a fresh uid."""
    module = _PUBLIC if writer.__module__.startswith(f"{_PUBLIC}.") else writer.__module__
    about: dict[str, Any] = {
        "name": f"{module}.{writer.__qualname__}",
        "version": _version(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }
    if git := git_state(Path.cwd()):
        about["git"] = dict(git)
    return {
        "schema_version": SCHEMA_VERSION,
        "uid": uuid.uuid4().hex,
        "created_ts_ns": now_ns(),
        "writer": about,
        CHECKSUMS: FILES,
    }


def read_meta(directory: str | os.PathLike[str], files: FileList | None = None) -> dict[str, Any]:
    """Read the `meta.json` of an episode.

    If it has no uid, the uid is made from the time of creation. `files` is the content of
    `files.json`, which is read if it is None.
    """
    path = f"{os.fspath(directory)}/{META}"
    data = read_file(path)
    if files is None:
        check_listed(directory, META, data)
    else:
        files.check(META, data)
    meta = _parsed(path, data)
    if meta is None:
        raise NotFoundError(f"`{os.fspath(directory)}` is not an episode: it has no `{META}`")
    schema = meta.get("schema_version", SCHEMA_VERSION)
    if not isinstance(schema, int) or schema > SCHEMA_VERSION:
        raise UnsupportedError(
            f"`{path}` has the schema version {schema!r}, "
            f"but this version of relive reads only versions up to {SCHEMA_VERSION}",
            hint="upgrade relive",
        )
    if not isinstance(meta.get("created_ts_ns"), int):
        raise CorruptError(
            f"`{path}`: `created_ts_ns` must be an integer, got {meta.get('created_ts_ns')!r}"
        )
    if not isinstance(meta.setdefault("uid", f"ts-{meta['created_ts_ns']}"), str):
        raise CorruptError(f"`{path}`: `uid` must be a string, got {meta['uid']!r}")
    return meta


def read_uid(directory: str | os.PathLike[str]) -> str | None:
    """Return the uid of an episode, or None if its `meta.json` is missing or damaged."""
    try:
        return str(read_meta(directory)["uid"])
    except ReliveError:
        return None


def read_outcome(
    directory: str | os.PathLike[str], files: FileList | None = None
) -> dict[str, Any] | None:
    """Read the `outcome.json` of an episode; None if there is none."""
    return read_json(Path(directory, OUTCOME), files)


def read_statics(
    directory: str | os.PathLike[str], files: FileList | None = None
) -> dict[str, Any]:
    """Read the `static.json` of an episode; an empty dict if there is none."""
    return decode_statics(read_json(Path(directory, STATICS), files) or {})


def write_statics(directory: str | os.PathLike[str], statics: Mapping[str, Any]) -> None:
    """Write the `static.json` of an episode, replacing the one that exists."""
    write_json(Path(directory, STATICS), encode_statics(statics), overwrite=True)


def read_json(path: Path, files: FileList | None = None) -> dict[str, Any] | None:
    """Read a JSON object from a file, and compare it with `files`; None if it does not exist."""
    data = read_file(path)
    if files is not None:
        files.check(path.name, data)
    return _parsed(path, data)


def _parsed(location: str | os.PathLike[str], data: bytes | None) -> dict[str, Any] | None:
    path = os.fspath(location)
    if data is None:
        return None
    try:
        found = json.loads(data)
    except ValueError as error:
        raise CorruptError(f"`{path}` is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptError(f"`{path}` must contain a JSON object, got {type_name(type(found))}")
    return found


def write_json(
    path: Path, content: dict[str, Any], *, overwrite: bool = False, sync_name: bool = True
) -> None:
    """Write a JSON object to a file, as `whole_file` does."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
    with whole_file(path, overwrite=overwrite, sync_name=sync_name) as file:
        file.write(text.encode())


@functools.cache
def _version() -> str | None:
    try:
        return version("relive")
    except PackageNotFoundError:
        return None
