"""`relive.open`: the right reader for a path or URI."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from relive.errors import InvalidError, NotFoundError, UnsupportedError
from relive.load.compose import Concat
from relive.model.kinds import KINDS, Kind, known_as, known_by, known_inside, open_kinds
from relive.store.atomic import open_reader, storage_error
from relive.store.paths import expand, is_remote
from relive.store.remote.file import RemoteFile

_HEAD_BYTES: Final = 256
"""The format of a directory is found within this many bytes of its `meta.json`."""
# Closing any descriptor of such a file would drop the locks that SQLite has in this process.
_OF_SQLITE: Final = (".sqlite", ".sqlite-wal", ".sqlite-shm", ".sqlite-journal")
_LONGEST_MAGIC: Final = max(len(kind.magic) for kind in KINDS.values())


def open(uri: str | os.PathLike[str], **options: Any) -> Any:  # noqa: A001 - its public name
    """Open a path or URI with the reader for its format.

    The format of a file is found from its first bytes, or else from its suffix; that of a
    directory from its contents. Most formats open as a `Source`. A directory of episodes opens
    as a `LocalDataset`, one episode as a `DiskEpisode`, a directory of runs as a `ReplayRoot`,
    which has the runs by id, and the file of a run as a `ReplayRun`. A glob pattern opens all
    files that match it as one, in the order of their names. `ws/name`, `ws/name@version` and
    `relive://ws/name@version` open a `PublishedDataset`, as `relive.dataset` does.

    Args:
        uri: a path, a glob pattern, a URI such as `s3://bucket/runs.a2pack`, or the reference of
            a published dataset. A `pathlib.Path` is always a path.
        options: passed to the reader.

    Raises:
        UnsupportedError: the format is not recognized, or several runs match a pattern.
        InvalidError: a text such as `a/b` is both a path and the name of a dataset.

    Example:
        >>> import numpy as np, relive
        >>> np.save("a.npy", np.arange(12).reshape(4, 3))
        >>> source = relive.open("a.npy")
        >>> source.gather([3, 0])["data"].tolist()
        [[9, 10, 11], [0, 1, 2]]
    """
    return open_kind(*find_kind(uri), **options)


def open_kind(kind: Kind, paths: Sequence[str], **options: Any) -> Any:
    """Open what `find_kind` found."""
    if kind.single and len(paths) > 1:
        raise UnsupportedError(
            f"`{paths[0]}` and `{paths[1]}` cannot be opened as one: each is {kind.title}",
            hint="open them one by one",
        )
    reader = kind.load()
    if len(paths) == 1:
        with path_hint(paths[0] if kind.reference else ""):
            return reader(paths[0], **options)
    if kind.joins:
        return reader(paths, **options)
    return Concat(*(reader(path, **options) for path in paths))


@contextlib.contextmanager
def path_hint(reference: str) -> Iterator[None]:
    """Add to the error for a missing dataset that there is no such path: one may be meant."""
    try:
        yield
    except NotFoundError as error:
        if reference and not is_remote(reference) and "@" not in reference:
            nor = "there is no such file or directory either"
            error.hint = f"{error.hint}; {nor}" if error.hint else nor
        raise


def find_kind(uri: str | os.PathLike[str]) -> tuple[Kind, list[str]]:
    """Return the kind of a path, URI or reference, and the paths that it matches."""
    if isinstance(uri, str) and (known := known_as(uri)) is not None:
        _check_no_path(uri)
        return known, [uri]
    paths = expand(uri)
    text = os.fspath(uri)
    if is_remote(text):
        return _remote_kind(text), paths
    kinds = [_local_kind(path) for path in paths]
    for kind, path in zip(kinds, paths, strict=True):
        if kind is not kinds[0]:
            raise UnsupportedError(
                f"`{text}` matches both {kinds[0].title} and {kind.title}: `{paths[0]}`, `{path}`",
                hint="use a pattern that matches files of one format",
            )
    return kinds[0], paths


def _check_no_path(reference: str) -> None:
    if not is_remote(reference) and os.path.lexists(reference):
        raise InvalidError(
            f"`{reference}` is a path, and it could be the name of a published dataset",
            hint=f"write `./{reference}` for the path, or `relive://{reference}` for the dataset",
        )


def _local_kind(name: str) -> Kind:
    path = Path(name)
    try:
        if path.is_dir():
            return _directory_kind(path)
        if path.name.endswith(_OF_SQLITE):
            raise UnsupportedError(
                f"`{name}` is a database of SQLite",
                hint="open the directory of the runs, or use `relive.replay.TelemetryStore`",
            )
        kind = known_by(path.name, _head(path, _LONGEST_MAGIC))
    except OSError as error:
        raise storage_error(error, name, "open") from error
    if kind is None:
        unfinished = ".unfinished-" in path.name
        raise UnsupportedError(
            f"cannot open `{name}`: unrecognized format; relive can open {open_kinds()}",
            hint=f"`relive recover {name}` makes a pack of it" if unfinished else None,
        )
    return kind


def _directory_kind(path: Path) -> Kind:
    inside = {kind.inside for kind in KINDS.values() if kind.inside}
    heads = {n: _head(path / n, _HEAD_BYTES) for n in inside if (path / n).is_file()}
    kind = known_inside(heads, _folders(path))
    if kind is None:
        raise UnsupportedError(
            f"cannot open the directory `{path}`: unrecognized format; "
            f"relive can open {open_kinds()}",
            hint=_directory_hint(path),
        )
    return kind


def _directory_hint(path: Path) -> str:
    root = path.absolute().parent
    kind = known_inside({}, _folders(root)) if root.is_dir() else None
    if kind is not None and path.name in {"replay", "telemetry"}:
        return f"open the directory above it, `{root}`"
    return "to make a pack of the runs in a directory, use `relive pack build`"


def _folders(path: Path) -> Iterator[str]:
    """Return the relative paths two levels below that may identify a directory."""
    outer = [kind.below.partition("/")[0] for kind in KINDS.values() if kind.below]
    for folder in path.iterdir():
        if any(re.fullmatch(pattern, folder.name) for pattern in outer) and folder.is_dir():
            for inner in folder.iterdir():
                yield f"{folder.name}/{inner.name}"


def _head(path: Path, count: int) -> bytes:
    with open_reader(path) as file:
        return file.read(count)


def _remote_kind(uri: str) -> Kind:
    kind = known_by(urlsplit(uri).path)
    if kind is None:
        file = RemoteFile.open(uri)
        end = min(_LONGEST_MAGIC, file.size)
        kind = known_by("", file.read_ranges([(0, end)])[0])
        uri = file.name
    if kind is None or not kind.remote:
        remote = " and ".join(kind.title for kind in KINDS.values() if kind.remote)
        found = f"it is {kind.title}" if kind else "unrecognized format"
        raise UnsupportedError(
            f"cannot open `{uri}`: {found}; over the network relive can open only {remote}"
        )
    return kind
