"""`DirectoryRoot`: objects as files of a directory."""

import builtins
import contextlib
import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from relive.errors import AlreadyExistsError, CorruptError, NotFoundError
from relive.store.atomic import make_directory, open_file, read_file, storage_error, whole_file
from relive.store.digest import FileDigest, read_checked
from relive.store.locks import locked
from relive.store.remote.ranges import Data, KeyRange, cut
from relive.store.remote.threads import at_once
from relive.store.roots.root import (
    Body,
    Check,
    Entry,
    Root,
    Stored,
    check_key,
    check_prefix,
    check_range,
)

# Held while an object is compared and replaced. Keys cannot begin with a dot.
LOCK_NAME: Final = ".lock"
# Below this, reading takes less time than handing the work to threads.
_THREADS_FROM_BYTES: Final = 1 << 20
_MAX_SEND_BYTES: Final = 16 << 20


class DirectoryRoot(Root):
    """Objects as files below a directory, which is created by the first write.

    Files are written under a temporary name, synced and renamed. `create` uses a hard link, which
    fails if the name exists; `replace` holds a file lock while it compares and renames.
    """

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.name = os.fspath(self.path)

    def get_many(self, keys: Sequence[str]) -> builtins.list[Stored | None]:
        """Return the objects, None for missing ones."""
        return [self._find(key) for key in keys]

    def read_ranges(
        self,
        ranges: Sequence[KeyRange],
        check: Check | None = None,
        *,
        gap: int | None = None,  # noqa: ARG002 - nothing to join
    ) -> builtins.list[Data]:
        """Return the bytes of each range, read from the files."""
        by_key = defaultdict[str, list[int]](list)
        for position, (key, start, stop) in enumerate(ranges):
            check_range(key, start, stop)
            if start < stop:
                by_key[key].append(position)
        found: list[Data] = [b""] * len(ranges)
        with contextlib.ExitStack() as stack:
            pieces: list[tuple[int, str, int, int, int]] = []
            for key, positions in by_key.items():
                handle = self._open(key)
                stack.callback(os.close, handle)
                for position in positions:
                    _, start, stop = ranges[position]
                    pieces += [(position, key, handle, *piece) for piece in cut([(start, stop)])]

            def read(piece: tuple[int, str, int, int, int]) -> bytes:
                _, key, handle, start, stop = piece
                data = self._pread(key, handle, start, stop)
                if check is not None:
                    check(key, start, data)
                return data

            total = sum(stop - start for _, _, _, start, stop in pieces)
            parts = (
                [read(piece) for piece in pieces]
                if total < _THREADS_FROM_BYTES
                else at_once(read, pieces)
            )
        joined = defaultdict[int, list[bytes]](list)
        for piece, part in zip(pieces, parts, strict=True):
            joined[piece[0]].append(part)
        for position, several in joined.items():
            found[position] = several[0] if len(several) == 1 else b"".join(several)
        return found

    def exists(self, keys: Sequence[str]) -> builtins.list[bool]:
        """Return for each key whether there is such a file."""
        return [self._is_file(self._file(key)) for key in keys]

    def sizes(self, keys: Sequence[str]) -> builtins.list[int | None]:
        """Return the size of each file, None for missing ones."""
        return [self._size(self._file(key)) for key in keys]

    def put(self, key: str, body: Body, *, immutable: bool = True) -> None:  # noqa: ARG002
        """Write an object, or replace it."""
        target = self._target(key)
        with whole_file(target, overwrite=True) as file:
            if isinstance(body, Path):
                _copy(body, file)
            else:
                file.write(body)

    def put_file(
        self, key: str, path: Path, expected: FileDigest, sent: Callable[[int], object]
    ) -> None:
        """Write a file as an object; `sent` is called with the bytes that are copied."""
        with whole_file(self._target(key), overwrite=True) as file:
            for piece in read_checked(path, expected):
                file.write(piece)
                sent(file.tell())

    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:  # noqa: ARG002
        """Write an object that does not exist."""
        try:
            with whole_file(self._target(key)) as file:
                file.write(data)
        except AlreadyExistsError:
            raise self._already_exists(key) from None
        return _tag(data)

    def replace(self, key: str, data: bytes, tag: str) -> str:
        """Replace an object that still has `tag`."""
        target = self._target(key)
        with locked(self.path / LOCK_NAME, create=True, wait=True):
            found = self._find(key)
            if found is None or found.tag != tag:
                raise self._conflict(key)
            with whole_file(target, overwrite=True) as file:
                file.write(data)
        return _tag(data)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the files below `prefix`; temporary ones are left out."""
        prefix = check_prefix(prefix)
        yield from _walk(self.path / prefix, prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files; their directories stay."""
        for key in keys:
            path = self._file(key)
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise storage_error(error, path, "delete") from error

    def file(self, key: str) -> Path:
        """Return the path of an object, which may not exist."""
        return self._file(key)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the path."""
        return type(self), (self.path,)

    def _file(self, key: str) -> Path:
        return self.path / check_key(key)

    @staticmethod
    def _is_file(path: Path) -> bool:
        try:
            return path.is_file()
        except OSError as error:
            raise storage_error(error, path, "read") from error

    @staticmethod
    def _size(path: Path) -> int | None:
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, path, "read") from error
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def _target(self, key: str) -> Path:
        path = self._file(key)
        make_directory(path.parent)
        return path

    def _get(
        self,
        key: str,
        if_changed: str | None,
        retry_s: float | None,  # noqa: ARG002 - nothing to retry
    ) -> Stored | None:
        found = self._find(key)
        if found is None:
            raise self._missing(key)
        return None if found.tag == if_changed else found

    def _find(self, key: str) -> Stored | None:
        try:
            data = read_file(self._file(key))
        except NotFoundError:  # a file where a directory is expected
            return None
        return None if data is None else Stored(data, _tag(data))

    def _open(self, key: str) -> int:
        path = self._file(key)
        try:
            return open_file(path)
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(key) from None
        except OSError as error:
            raise storage_error(error, path, "read") from error

    def _pread(self, key: str, handle: int, start: int, stop: int) -> bytes:
        try:
            data = os.pread(handle, stop - start, start)
            while 0 < len(data) < stop - start:
                more = os.pread(handle, stop - start - len(data), start + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise storage_error(error, self._file(key), "read") from error
        if len(data) != stop - start:
            raise CorruptError(
                f"`{self._file(key)}` is too short: bytes {start} to {stop} were requested"
            )
        return data


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _copy(source: Path, target: BinaryIO) -> None:
    try:
        handle = open_file(source)
    except OSError as error:
        raise storage_error(error, source, "read") from error
    try:
        offset = 0
        while sent := os.sendfile(target.fileno(), handle, offset, _MAX_SEND_BYTES):
            offset += sent
    finally:
        os.close(handle)


def _walk(folder: Path, prefix: str) -> Iterator[Entry]:
    folders = [(folder, prefix)]
    while folders:
        directory, before = folders.pop()
        try:
            with os.scandir(directory) as found:
                entries = list(found)
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted meanwhile, or never there
        except OSError as error:
            raise storage_error(error, directory, "list") from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                status = entry.stat()
                if stat.S_ISDIR(status.st_mode):
                    folders.append((Path(entry.path), f"{before}{entry.name}/"))
                elif stat.S_ISREG(status.st_mode):
                    yield Entry(f"{before}{entry.name}", status.st_size, status.st_mtime)
