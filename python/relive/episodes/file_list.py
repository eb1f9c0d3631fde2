"""`files.json`: the size and the SHA-256 of every other file of an episode.

It is written when the episode is committed. `meta.json` states from the beginning that it will
exist, so an episode that has lost it is damaged. Episodes of earlier versions and of other
programs have none; their files are not compared.
"""

import json
import os
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from relive._native import crc32c
from relive.episodes.layout import (
    COLUMNS,
    FILES,
    MARKER,
    META,
    OUTCOME,
    STATICS,
    VIDEO,
    visible_files,
)
from relive.errors import CorruptError, UnsupportedError
from relive.store.atomic import read_file, whole_file
from relive.store.digest import FileDigest, digest_of
from relive.store.signal.checksums import read_footer, sha256_of

CHECKSUMS: Final = "checksums"
"""The key of `meta.json` whose value is the name of `files.json`, if it will exist."""

_VERSION: Final = 1
_HEAD: Final = b'{\n "version": %d,\n "files": {' % _VERSION
_END_BYTES: Final = 32  # at least as many as `_END` matches
_END: Final = re.compile(rb',\n "crc": "([0-9a-f]{8})"\n\}\Z')


class FileList:
    """The files that an episode should have, with their digests.

    Without digests nothing is compared.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        digests: Mapping[str, FileDigest] | None = None,
    ) -> None:
        self._directory = directory
        self._digests = digests

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> "FileList":
        """Read the `files.json` of a committed episode; its absence may be a `CorruptError`."""
        text = _read_text(directory)
        return cls(directory, None if text is None else _parsed(directory, text))

    @property
    def names(self) -> AbstractSet[str] | None:
        """The names of the files; None if they are not known."""
        return None if self._digests is None else self._digests.keys()

    @property
    def digests(self) -> Mapping[str, FileDigest]:
        """The digests by name; empty if they are not known."""
        return self._digests or {}

    def footer_sha256(self, name: str) -> str | None:
        """Return the SHA-256 of the footer of a Parquet file, if it is known."""
        digest = self.digests.get(name)
        return None if digest is None else digest.footer_sha256

    def check(self, name: str, data: bytes | None) -> None:
        """Compare the content of a file, None if it does not exist, with its digest."""
        if self._digests is None:
            return
        digest = self._digests.get(name)
        if data is not None and digest is not None and _is_same(digest, data):
            return
        path = Path(self._directory, name)
        if data is None:
            if digest is not None:
                raise CorruptError(f"`{path}` is missing, but `{FILES}` lists it")
        elif digest is None:
            raise CorruptError(f"`{path}` is not in the list of files, `{FILES}`")
        else:
            raise differs(path)


def check_listed(directory: str | os.PathLike[str], name: str, data: bytes | None) -> None:
    """Compare the content of one JSON file with `files.json`, as `FileList.read(…).check` does.

    It does not parse the list if the list has the entry as `write_file_list` writes it.
    """
    text = _read_text(directory)
    if text is None:
        return
    if data is not None and text.startswith(_HEAD):
        entry = b'\n  "%b": {\n   "size": %d,\n   "sha256": "%b"\n  }'
        if entry % (name.encode(), len(data), sha256_of(data).encode()) in text:
            return
    FileList(directory, _parsed(directory, text)).check(name, data)


def differs(path: Path) -> CorruptError:
    """Return the error for a file whose content was changed."""
    return CorruptError(f"`{path}` is damaged: its SHA-256 differs from the one in `{FILES}`")


def is_listed(name: str) -> bool:
    """Return whether a file belongs to an episode, by its name; `files.json` does not."""
    return name in {META, OUTCOME, STATICS} or name.endswith((COLUMNS, VIDEO))


def write_file_list(folder: Path, known: Mapping[str, FileDigest]) -> None:
    """Write `files.json`; files without an entry in `known` are read."""
    names = sorted(filter(is_listed, visible_files(folder)))
    digests = {name: known.get(name) or _digest_of(folder / name) for name in names}
    files = {
        name: {key: value for key, value in digest._asdict().items() if value is not None}
        for name, digest in digests.items()
    }
    text = json.dumps({"version": _VERSION, "files": files}, indent=1)
    body = text.removesuffix("\n}").encode("ascii")  # a file name may not be UTF-8
    with whole_file(folder / FILES, overwrite=True) as file:
        file.write(b'%b,\n "crc": "%08x"\n}' % (body, crc32c(body)))


def _is_same(digest: FileDigest, data: bytes) -> bool:
    return (len(data), sha256_of(data)) == (digest.size, digest.sha256)


def _digest_of(path: Path) -> FileDigest:
    digest = digest_of(path)
    if not path.name.endswith(COLUMNS):
        return digest
    try:
        return digest._replace(footer_sha256=read_footer(os.fspath(path)).sha256)
    except CorruptError:
        return digest  # opening it raises the error


def _check_absence(folder: Path) -> None:
    """Raise if `meta.json` states that there is a `files.json`."""
    try:
        meta = json.loads(read_file(folder / META) or b"")
    except (OSError, ValueError, RecursionError):
        return  # reading it raises the error
    if isinstance(meta, dict) and CHECKSUMS in meta and not (folder / MARKER).exists():
        raise CorruptError(
            f"`{folder}` is damaged: `{FILES}` is missing, but `{META}` states that it exists"
        )


def _read_text(directory: str | os.PathLike[str]) -> bytes | None:
    """Return the content of `files.json`, whose checksum matches; None if there is none."""
    path = f"{os.fspath(directory)}/{FILES}"
    text = read_file(path)
    if text is None:
        _check_absence(Path(directory))
        return None
    end = _END.search(text, max(0, len(text) - _END_BYTES))
    if end is None or crc32c(text[: end.start()]) != int(end[1], 16):
        raise CorruptError(f"`{path}` is damaged: its checksum does not match")
    return text


def _parsed(directory: str | os.PathLike[str], text: bytes) -> dict[str, FileDigest]:
    path = f"{os.fspath(directory)}/{FILES}"
    try:
        stored = json.loads(text)
        version, files = stored["version"], stored["files"].items()
        if version <= _VERSION:
            return {
                name: FileDigest(entry["size"], entry["sha256"], entry.get("footer_sha256"))
                for name, entry in files
            }
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptError(f"`{path}` is not a list of files: {error}") from error
    raise UnsupportedError(
        f"`{path}` has version {version}, "
        f"but this version of relive reads only versions up to {_VERSION}",
        hint="upgrade relive",
    )
