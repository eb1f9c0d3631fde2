"""`relive.open`: the right reader for a path or URI."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from relive.errors import UnsupportedError
from relive.load.compose import Concat
from relive.model.kinds import KINDS, Kind, known_by, known_inside, open_kinds
from relive.store.atomic import storage_error
from relive.store.paths import expand
from relive.store.remote.file import RemoteFile, is_remote

__all__ = ["find_kind", "open"]

_HEAD_BYTES: Final = 256
"""So far from its beginning the file in a directory says what it is."""
_LONGEST_MAGIC: Final = max(len(kind.magic) for kind in KINDS.values())


def open(uri: str | os.PathLike[str], **options: Any) -> Any:  # noqa: A001 - its public name
    """Open what is at a path or URI with the reader for it.

    Files are known by their first bytes, or else by their suffix, directories by what is in
    them. Most things are a `Source`, all files that a glob pattern matches are one, in the order
    of their names. A directory of episodes is a `LocalDataset`, that of one episode a
    `DiskEpisode`, and several of either are one dataset. `options` are those of the reader.
    What no reader is known for is an `UnsupportedError`.
    """
    kind, places = find_kind(uri)
    reader = kind.load()
    if len(places) == 1:
        return reader(places[0], **options)
    if kind.joins:
        return reader(places, **options)
    return Concat(*(reader(place, **options) for place in places))


def find_kind(uri: str | os.PathLike[str]) -> tuple[Kind, list[str]]:
    """Tell the kind of what is at a path or URI, and the files that it is."""
    text = os.fspath(uri)
    places = expand(text)
    if is_remote(text):
        return _remote_kind(text), places
    kinds = [_local_kind(place) for place in places]
    for kind, place in zip(kinds, places, strict=True):
        if kind is not kinds[0]:
            raise UnsupportedError(
                f"`{text}` matches {kinds[0].title} and {kind.title}: `{places[0]}`, `{place}`",
                hint="a pattern must match files of one kind",
            )
    return kinds[0], places


def _local_kind(place: str) -> Kind:
    path = Path(place)
    if path.is_dir():
        return _directory_kind(path)
    try:
        head = _head(path, _LONGEST_MAGIC)
    except OSError as error:
        raise storage_error(error, place, "opened") from error
    kind = known_by(path.name, head)
    if kind is None:
        unfinished = ".unfinished-" in path.name
        raise UnsupportedError(
            f"`{place}` is nothing that relive knows: it opens {open_kinds()}",
            hint=f"`relive recover {place}` makes a pack of it" if unfinished else None,
        )
    return kind


def _directory_kind(path: Path) -> Kind:
    inside = {kind.inside for kind in KINDS.values() if kind.inside}
    heads = {}
    try:
        for name in inside:
            if (path / name).is_file():
                heads[name] = _head(path / name, _HEAD_BYTES)
        kind = known_inside(heads, _folders(path))
    except OSError as error:
        raise storage_error(error, path, "opened") from error
    if kind is None:
        raise UnsupportedError(
            f"`{path}` is a directory of nothing that relive knows: it opens {open_kinds()}",
            hint="`relive pack build` makes a pack of the runs in a directory",
        )
    return kind


def _folders(path: Path) -> Iterator[str]:
    """Give the paths of what is in those directories in a directory that may say its kind."""
    outer = [kind.below.partition("/")[0] for kind in KINDS.values() if kind.below]
    for folder in path.iterdir():
        if any(re.fullmatch(pattern, folder.name) for pattern in outer) and folder.is_dir():
            for inner in folder.iterdir():
                yield f"{folder.name}/{inner.name}"


def _head(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _remote_kind(uri: str) -> Kind:
    kind = known_by(urlsplit(uri).path)
    if kind is None:
        file = RemoteFile.open(uri)
        end = min(_LONGEST_MAGIC, file.size)
        kind = known_by("", file.read_ranges([(0, end)])[0])
        uri = file.name
    if kind is None or not kind.remote:
        far = " and ".join(kind.title for kind in KINDS.values() if kind.remote)
        what = kind.title if kind else "nothing that relive knows"
        raise UnsupportedError(f"`{uri}` is {what}: from afar, relive opens {far}")
    return kind
