"""The files of an episode and of a dataset root: their names, and which directory is an episode.

A root holds `<block>/<number>/`, both of twelve digits; a block is the number of its first
episode. The directory of an episode holds:

- `meta.json`, written first;
- `static.json`, and `outcome.json`, written when the recording ends;
- `files.json`, written last, with the digests of all other files;
- for each signal `<stem>.parquet`, or for video `<stem>.mp4` and `<stem>.frames.parquet`;
- while it is recorded, `.unfinished`, locked by the writer, and hidden `.tape`, `.spill` and
  `.part` files.
"""

import os
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from relive._arguments import as_name, utf8_name
from relive.errors import (
    InvalidError,
    NotFoundError,
    ReliveError,
    UnfinishedError,
    UnsupportedError,
)
from relive.model.report import Unfinished
from relive.store.atomic import storage_error
from relive.store.locks import is_locked
from relive.store.paths import absolute_path

SCHEMA_VERSION: Final = 1
"""The version of the format, in `meta.json`."""

META: Final = "meta.json"
"""Written when the episode begins; never changed."""
OUTCOME: Final = "outcome.json"
"""Written when the recording ends."""
STATICS: Final = "static.json"
FILES: Final = "files.json"
"""The size and the SHA-256 of every other file; written when the episode is committed."""
EDITS: Final = "edits.jsonl"
"""The edits of all episodes, in the root of a dataset."""
MARKER: Final = ".unfinished"
"""Exists, locked by the writer, until the episode is committed."""
ABORTED: Final = ".aborted."
"""The prefix of a directory that is being removed, or copied; readers ignore it."""
SET_ASIDE: Final = ".set-aside"
"""The directory in a root to which recovery moves what it cannot recover; readers ignore it."""

COLUMNS: Final = ".parquet"
"""The suffix of the file of a signal that is not video."""
VIDEO: Final = ".mp4"
INDEX: Final = ".frames.parquet"
"""The suffix of the index of a video."""
TAPE: Final = ".tape"
"""The suffix of the write-ahead file of a signal that is being recorded."""
SPILL: Final = ".spill"
"""The suffix of the file with frames that wait for the encoder of a signal."""

T = TypeVar("T")
_BLOCK_SIZE: Final = 1000
_NUMBER: Final = re.compile(r"[0-9]{12}")
_LEFTOVER: Final = re.compile(r"\..+\.(?:tape|spill|part)", re.DOTALL)
# The names that `whole_file`, video and columns writers and locks use before they rename.
_TEMPORARY: Final = re.compile(r"\..+\.(?:[0-9a-f]{8}|part|new)|\.unfinished\.[0-9]+", re.DOTALL)

_MAX_NAME_BYTES: Final = 200
# A file name may have 255 bytes: `.`, the stem, `.frames.parquet` and a temporary suffix.
_MAX_STEM_BYTES: Final = 228
_FRAMES: Final = ".frames"
_ESCAPES: Final = {"%25": "%", "%2F": "/", "%2E": "."}
_ESCAPED: Final = re.compile("%2[5FE]")
# Characters that may replace `/` and `%` in a name that has many of them, in order of preference.
_SUBSTITUTES: Final = (
    "_-=~+,@!^"
    + string.ascii_uppercase
    + string.digits
    + string.ascii_lowercase
    + "".join(map(chr, range(1, 128)))
)


class EpisodeKey(NamedTuple):
    """The number of an episode, by which episodes are ordered, and the number of its block."""

    number: int
    block: int


class RootScan(NamedTuple):
    """The episodes in a root, in order."""

    committed: list[EpisodeKey]
    unfinished: list[EpisodeKey]


def scan_root(root: str | os.PathLike[str]) -> RootScan:
    """List the episodes in a root; no file is read."""
    found = RootScan([], [])
    for key, path in _directories(root):
        try:
            done = is_committed(path)
        except ReliveError:
            done = True  # reading the episode raises the error, so the others can be read
        (found.committed if done else found.unfinished).append(key)
    found.committed.sort()
    found.unfinished.sort()
    return found


def episode_keys(root: str | os.PathLike[str]) -> Iterator[EpisodeKey]:
    """Iterate over the directories of episodes in a root, committed or not, in no order."""
    return (key for key, _ in _directories(root))


def episode_path(root: str | os.PathLike[str], key: EpisodeKey) -> Path:
    """Return the directory of an episode."""
    return Path(episode_directory(root, key))


def episode_directory(root: str | os.PathLike[str], key: EpisodeKey) -> str:
    """Return the directory of an episode as a string, which is made faster than a `Path`."""
    return f"{os.fspath(root)}/{key.block:012}/{key.number:012}"


def create_episode(root: Path, create: Callable[[Path], T]) -> T:
    """Call `create` with the path of the next episode of a root, and return its result.

    If another process creates that episode first, `create` raises a `FileExistsError` and is
    called with the path after it.
    """
    number = _last_number(root) + 1
    while True:
        key = EpisodeKey(number, number // _BLOCK_SIZE * _BLOCK_SIZE)
        try:
            return create(episode_path(root, key))
        except FileExistsError:
            number += 1


def aborted_directories(root: Path) -> Iterator[Path]:
    """Iterate over the directories in a root that a writer was removing or copying to."""
    for block in _numbered(root):
        for path in _entries(root / block):
            if path.name.startswith(ABORTED):
                yield path


def compress_keys(keys: Iterable[EpisodeKey]) -> list[tuple[int, int, int]]:
    """Return the first number, the block and the length of each run of consecutive episodes."""
    runs: list[tuple[int, int, int]] = []
    for number, block in keys:
        if runs:
            first, last_block, count = runs[-1]
            if (first + count, last_block) == (number, block):
                runs[-1] = (first, block, count + 1)
                continue
        runs.append((number, block, 1))
    return runs


def expand_keys(runs: Iterable[tuple[int, int, int]]) -> Iterator[EpisodeKey]:
    """Iterate over the keys that `compress_keys` got."""
    for first, block, count in runs:
        for number in range(first, first + count):
            yield EpisodeKey(number, block)


def is_episode(path: str | os.PathLike[str]) -> bool:
    """Return whether a directory is an episode, committed or not."""
    return any(_exists(path, name) for name in (META, MARKER, FILES))


def is_committed(path: str | os.PathLike[str]) -> bool:
    """Return whether a directory is a committed episode.

    One that has lost its `meta.json` is, too: reading it raises the error.
    """
    # In this order: a writer creates the marker first, and removes it when it commits.
    path = os.fspath(path)
    # A missing marker is the usual case, in which `access` is faster than the error of `stat`.
    has_begun = _exists(path, META) or _exists(path, FILES)
    return has_begun and not os.access(f"{path}/{MARKER}", os.F_OK)


def is_numbered(path: Path) -> bool:
    """Return whether the path of a directory is that of an episode in a root."""
    return is_block(path) and is_block(path.parent)


def is_block(path: Path) -> bool:
    """Return whether the name of a directory is that of a block of episodes, or of an episode."""
    return _NUMBER.fullmatch(path.name) is not None


def is_root(path: Path) -> bool:
    """Return whether a directory holds blocks of episodes."""
    return path.is_dir() and not is_episode(path) and bool(_numbered(path))


def check_committed(path: Path) -> None:
    """Raise unless a directory is a committed episode."""
    if is_committed(path):
        return
    if not is_episode(path):
        reason = f"it has no `{META}`" if path.is_dir() else "it is not an existing directory"
        raise NotFoundError(f"`{path}` is not an episode: {reason}")
    if is_locked(path / MARKER):
        raise UnfinishedError(f"cannot open `{path}`: the episode is still being recorded")
    raise UnfinishedError(
        f"cannot open `{path}`: the episode is not finished",
        hint=f"run `relive recover {path}` to finish it",
    )


def unfinished(path: Path) -> Unfinished:
    """Return why an episode is not committed."""
    if not _exists(path, MARKER):
        return Unfinished(path, "empty")
    return Unfinished(path, "locked" if is_locked(path / MARKER) else "left")


def leftovers(directory: Path) -> list[Path]:
    """Return the `.tape`, `.spill` and `.part` files in a directory.

    A finished episode has none.
    """
    return sorted(path for path in _entries(directory) if _LEFTOVER.fullmatch(path.name))


def is_temporary(name: str) -> bool:
    """Return whether a file has a temporary name, so that recovery may remove it."""
    return _TEMPORARY.fullmatch(name) is not None


def visible_files(directory: Path) -> set[str]:
    """Return the names of the files in a directory that do not begin with a dot."""
    try:
        with os.scandir(directory) as entries:
            return {each.name for each in entries if each.name[0] != "." and each.is_file()}
    except OSError as error:
        raise storage_error(error, directory, "read") from error


def signal_files(
    directory: Path, names: Collection[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the files of each signal in a directory: a Parquet file, or a video and its index.

    `names` are the files that the directory should have; by default those that it has.
    """
    names = visible_files(directory) if names is None else names
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        if name.endswith(INDEX):
            stem = name.removesuffix(INDEX)
            video = f"{stem}{VIDEO}"
            if video in names or not has_values(directory / name):
                found[signal_name(stem)] = (video, name)
                continue
        if name.endswith(COLUMNS):
            found.setdefault(signal_name(name.removesuffix(COLUMNS)), (name,))
    return dict(sorted(found.items()))


def videos_without_index(directory: Path, names: Collection[str] | None = None) -> dict[str, Path]:
    """Return the videos in a directory whose index is missing, by the name of their signal.

    `names` are as for `signal_files`.
    """
    names = visible_files(directory) if names is None else names
    stems = [name.removesuffix(VIDEO) for name in sorted(names) if name.endswith(VIDEO)]
    return {
        signal_name(stem): directory / f"{stem}{VIDEO}"
        for stem in stems
        if f"{stem}{INDEX}" not in names
    }


def without_index(video: Path) -> str:
    """Return the message for a video whose index is missing."""
    index = video.with_name(f"{video.name.removesuffix(VIDEO)}{INDEX}")
    return f"cannot open the video `{video}`: its index `{index}` is missing"


def signal_paths(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the files of the signal that a file belongs to, as `signal_files` does."""
    file = Path(absolute_path(path, "a signal"))
    index = file.with_suffix(INDEX)
    if file.suffix == VIDEO and not index.exists():
        raise UnsupportedError(without_index(file))
    if file.suffix == VIDEO or (file.suffix != COLUMNS and index.exists()):
        return file, index
    video = file.with_name(file.name.removesuffix(INDEX) + VIDEO)
    if file.name.endswith(INDEX) and (video.exists() or not has_values(file)):
        return video, file
    return (file,)


def has_values(path: Path) -> bool | None:
    """Return whether a Parquet file has a column of values; None if it cannot be read.

    Other programs do not escape `.frames` at the end of a signal's name, so a file that is named
    like the index of a video may be the file of a signal.
    """
    from pyarrow import OSFile
    from pyarrow import parquet as pq

    try:
        with OSFile(os.fsencode(path)) as source:  # Arrow takes only UTF-8 as text
            return "value" in pq.read_schema(source).names
    except (OSError, ValueError):
        return None


def check_name(name: Any, what: str = "a signal") -> str:
    """Return the name of a signal or static: any text of 1 to 200 bytes without NUL."""
    return str(as_name(f"the name of {what}", name, _MAX_NAME_BYTES))


def file_stem(name: str) -> str:
    """Return the stem of the files of a signal; different names have different stems.

    `/`, `%`, a leading dot and the dot of a trailing `.frames` are percent-encoded. If that is
    too long for a file name, the stem is `%%`, two characters that replace `/` and `%`, the name
    with these replacements, and `%`.
    """
    stem = name.replace("%", "%25").replace("/", "%2F")
    if stem.startswith("."):
        stem = f"%2E{stem[1:]}"
    if stem.endswith(_FRAMES):
        stem = f"{stem.removesuffix(_FRAMES)}%2E{_FRAMES[1:]}"
    if len(stem.encode()) <= _MAX_STEM_BYTES:
        return stem
    unused = (char for char in _SUBSTITUTES if char not in name and char not in "/%.")
    slash, percent = next(unused, ""), next(unused, "")
    if not percent:
        raise InvalidError(
            f"the name {name[:40]!r}… is too long for a file name: "
            "each `/` and `%` in it takes three bytes"
        )
    text = name.translate({ord("/"): slash, ord("%"): percent})
    return f"%%{slash}{percent}{text}%"  # the last character prevents a trailing `.frames`


def signal_name(stem: str) -> str:
    """Return the name of the signal whose files have this stem.

    A stem that `file_stem` cannot return is the name itself; bytes in it that are not UTF-8 are
    escaped.
    """
    stem = utf8_name(stem)
    if stem.startswith("%%") and len(stem) > len("%%ab%"):
        slash, percent = stem[2], stem[3]
        name = stem[4:-1].translate({ord(slash): "/", ord(percent): "%"})
    else:
        name = _ESCAPED.sub(lambda found: _ESCAPES[found[0]], stem)
    return name if name and file_stem(name) == stem else stem


def _last_number(root: Path) -> int:
    for block in sorted(_numbered(root), reverse=True):
        if numbers := _numbered(root / block, may_vanish=True):
            return int(max(numbers))
    return -1


def _directories(root: str | os.PathLike[str]) -> Iterator[tuple[EpisodeKey, str]]:
    """Iterate over the directories of episodes in a root, in no order."""
    # Strings, since a scan makes thousands of them and a Path takes longer than a stat.
    for block in _numbered(root):
        directory, number = f"{os.fspath(root)}/{block}", int(block)
        for name in _numbered(directory, may_vanish=True):
            yield EpisodeKey(int(name), number), f"{directory}/{name}"


def _numbered(directory: str | os.PathLike[str], *, may_vanish: bool = False) -> list[str]:
    """Return the names of the directories in a directory that are numbers of twelve digits."""
    try:
        with os.scandir(directory) as entries:
            return [each.name for each in entries if _NUMBER.fullmatch(each.name) and each.is_dir()]
    except OSError as error:
        if may_vanish and isinstance(error, FileNotFoundError):
            return []
        raise storage_error(error, directory, "read") from error


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError as error:
        raise storage_error(error, directory, "read") from error


def _exists(directory: str | os.PathLike[str], name: str) -> bool:
    path = f"{os.fspath(directory)}/{name}"
    try:
        os.stat(path)  # noqa: PTH116 - faster than a Path
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error(error, path, "read") from error
    return True
