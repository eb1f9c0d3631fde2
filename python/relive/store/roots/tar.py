"""`TarRoot`: the objects of a root in one tar file, read in place."""

import builtins
import hashlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from relive.errors import CorruptError, InvalidError, ReadOnlyError
from relive.store.atomic import check_file, open_file, storage_error
from relive.store.remote.ranges import Data, KeyRange
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


class _Member(NamedTuple):
    offset: int
    size: int
    modified_s: float


class TarRoot(Root):
    """A root as `relive mirror --tar` writes it. Read-only, thread-safe and picklable.

    Members that are not plain files, or whose name may not be a key, are ignored. Of several of
    one name the last one counts, as for `tar`.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.absolute()
        self.name = os.fspath(self.file)
        self.is_read_only = True
        self._members = _members(self.file)

    def get_many(self, keys: Sequence[str]) -> builtins.list[Stored | None]:
        """Return the objects, None for missing ones."""
        return [self._stored(key) if check_key(key) in self._members else None for key in keys]

    def read_ranges(
        self,
        ranges: Sequence[KeyRange],
        check: Check | None = None,
        *,
        gap: int | None = None,  # noqa: ARG002 - nothing to join
    ) -> builtins.list[Data]:
        """Return the bytes of each range."""
        found: list[Data] = []
        for key, start, stop in ranges:
            check_range(key, start, stop)
            data = self._read(key, start, stop)
            if check is not None and data:
                check(key, start, data)
            found.append(data)
        return found

    def exists(self, keys: Sequence[str]) -> builtins.list[bool]:
        """Return for each key whether there is such an object."""
        return [check_key(key) in self._members for key in keys]

    def sizes(self, keys: Sequence[str]) -> builtins.list[int | None]:
        """Return the size of each object, None for missing ones."""
        found = [self._members.get(check_key(key)) for key in keys]
        return [None if each is None else each.size for each in found]

    def put(self, key: str, body: Body, *, immutable: bool = True) -> None:  # noqa: ARG002
        """Refuse to write."""
        raise self._read_only(key)

    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:  # noqa: ARG002
        """Refuse to write."""
        raise self._read_only(key)

    def replace(self, key: str, data: bytes, tag: str) -> str:  # noqa: ARG002
        """Refuse to write."""
        raise self._read_only(key)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the objects below `prefix`."""
        prefix = check_prefix(prefix)
        for key, member in self._members.items():
            if key.startswith(prefix):
                yield Entry(key, member.size, member.modified_s)

    def delete(self, keys: Sequence[str]) -> None:
        """Refuse to delete."""
        for key in keys:
            raise self._read_only(key)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the path."""
        return type(self), (self.file,)

    def _get(
        self,
        key: str,
        if_changed: str | None,
        retry_s: float | None,  # noqa: ARG002 - nothing to retry
    ) -> Stored | None:
        if key not in self._members:
            raise self._missing(key)
        found = self._stored(key)
        return None if found.tag == if_changed else found

    def _stored(self, key: str) -> Stored:
        data = self._read(key, 0, self._members[key].size)
        return Stored(data, hashlib.sha256(data).hexdigest())

    def _read(self, key: str, start: int, stop: int) -> bytes:
        member = self._members.get(key)
        if member is None:
            raise self._missing(key)
        try:
            with open(self.file, "rb", buffering=0, opener=open_file) as file:
                data = b""
                while stop <= member.size and len(data) < stop - start:
                    at = start + len(data)
                    part = os.pread(file.fileno(), stop - at, member.offset + at)
                    if not part:
                        break
                    data += part
        except OSError as error:
            raise storage_error(error, self.file, "read") from error
        if len(data) != stop - start:
            raise CorruptError(
                f"`{self.uri(key)}` is too short: bytes {start} to {stop} were requested"
            )
        return data

    def _read_only(self, key: str) -> ReadOnlyError:
        return ReadOnlyError(f"cannot write `{self.uri(key)}`: a tar file is read-only")


def _members(path: Path) -> dict[str, _Member]:
    found: dict[str, _Member] = {}
    try:
        check_file(path)
        with tarfile.open(path, "r:") as archive:
            for each in archive:
                if not each.isfile() or each.issparse():
                    continue
                try:
                    key = check_key(each.name)
                except InvalidError:
                    continue
                found[key] = _Member(each.offset_data, each.size, float(each.mtime))
    except tarfile.TarError as error:
        raise CorruptError(f"`{path}` is not a tar file: {error}") from None
    except OSError as error:
        raise storage_error(error, path, "read") from error
    return found
