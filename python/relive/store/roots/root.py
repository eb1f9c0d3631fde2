"""`Root`: objects by key under one address, the interface of everything that is published."""

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, overload

from relive._arguments import as_text
from relive.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
)
from relive.store.atomic import storage_error
from relive.store.digest import FileDigest, read_checked
from relive.store.remote.ranges import Data, KeyRange

Body: TypeAlias = bytes | Path
"""The content of an object, or the path of a file that has it."""

Check: TypeAlias = Callable[[str, int, Data], None]
"""Called with key, offset and bytes of every response, on the thread that received it."""

__all__ = [
    "Body",
    "Check",
    "Data",
    "Entry",
    "KeyRange",
    "Root",
    "Stored",
    "check_key",
    "check_prefix",
    "check_range",
    "read_body",
]

_MAX_KEY_BYTES: Final = 900  # S3 allows 1024, and the address has a prefix
_MAX_SEGMENT_BYTES: Final = 200  # file systems allow 255, and temporary names are longer


class Stored(NamedTuple):
    """The content of an object and its tag, which changes with the content."""

    data: bytes
    tag: str
    """Opaque; for `replace` and `get(if_changed=…)`."""


class Entry(NamedTuple):
    """One object of a listing."""

    key: str
    size: int
    modified_s: float
    """When it was written, in seconds since 1970 by the clock of the store."""


class Root(ABC):
    """Objects by key under one address. Thread-safe, picklable, works in forked processes.

    A pickle has the address and the options, no connection. Keys are relative paths with `/`
    between segments; a segment that is empty or begins with a dot is an `InvalidError`. An
    object is written as a whole or not at all, and is visible everywhere when the call returns.

    Requests that open something are retried for a minute, `read_ranges` for `RELIVE_RETRY_S`
    seconds; both wait longer after every failure. A server that cannot be reached is an
    `OfflineError`.
    """

    name: str
    """The address in messages, without secrets."""

    path: Path | None = None
    """The directory of a directory root, else None."""

    is_read_only: bool = False
    """Whether objects can only be read: a plain web server."""

    @overload
    def get(self, key: str, *, if_changed: None = None, retry_s: float | None = None) -> Stored: ...

    @overload
    def get(self, key: str, *, if_changed: str, retry_s: float | None = None) -> Stored | None: ...

    def get(
        self, key: str, *, if_changed: str | None = None, retry_s: float | None = None
    ) -> Stored | None:
        """Return an object; a missing one is a `NotFoundError`.

        With `if_changed`, the tag of an earlier answer, return None if it is still the same.
        `retry_s=0` makes one attempt; None retries for a minute.
        """
        return self._get(check_key(key), if_changed, retry_s)

    @abstractmethod
    def get_many(self, keys: Sequence[str]) -> builtins.list[Stored | None]:
        """Return objects in the order of `keys`, None for missing ones, in one round trip."""

    @abstractmethod
    def read_ranges(
        self, ranges: Sequence[KeyRange], check: Check | None = None, *, gap: int | None = None
    ) -> builtins.list[Data]:
        """Return the bytes of each `(key, start, stop)`, in order, in one round trip.

        Ranges of an object that are at most `gap` bytes apart (None: 256 KiB) are one request, one
        longer than 8 MiB is several, and 64 requests are in flight at once. Each result has
        exactly the requested length; an empty one needs no request, and one over 64 KiB may be a
        read-only view of a whole response, which it keeps in memory. A missing object is a
        `NotFoundError`, one that is too short a `CorruptError`.

        `check(key, start, data)` is called for every response, on the thread that received it;
        an error that it raises is raised here. Every response begins at the start of a range or a
        multiple of 8 MiB after it. Directories and memory are read by exactly the given ranges.
        """

    @abstractmethod
    def exists(self, keys: Sequence[str]) -> builtins.list[bool]:
        """Return for each key whether there is such an object, in one round trip."""

    def sizes(self, keys: Sequence[str]) -> builtins.list[int | None]:
        """Return the size of each object, None for missing ones, in one round trip."""
        return [None if each is None else len(each.data) for each in self.get_many(keys)]

    @abstractmethod
    def put(self, key: str, body: Body, *, immutable: bool = True) -> None:
        """Write an object, or replace it. A file over 64 MiB is uploaded in parts.

        HTTP caches may keep an `immutable` object forever, and any other one not at all.
        """

    def put_file(
        self, key: str, path: Path, expected: FileDigest, sent: Callable[[int], object]
    ) -> None:
        """Write a file as an immutable object, or replace it, if it has the expected content.

        The bytes that are written are compared, not those of an earlier or later moment. A file
        with other ones is an `UnfinishedError`, and the object stays as it was.

        `sent` may be called with how many bytes of it were read so far, on any thread.
        """
        del sent
        self.put(key, b"".join(read_checked(path, expected, max(1, expected.size))))

    @abstractmethod
    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:
        """Write an object that does not exist and return its tag, else `AlreadyExistsError`."""

    @abstractmethod
    def replace(self, key: str, data: bytes, tag: str) -> str:
        """Replace an object that still has the tag `tag`, else `ConflictError`; return its new tag.

        Compare and swap are one step: of several writers with the same tag, one succeeds.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the objects in the folder `prefix` and below it, in no particular order.

        A web server cannot list: `UnsupportedError`.
        """

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; keys without an object are ignored."""

    @property
    def identity(self) -> str:
        """What distinguishes this root from all others, for what is remembered of it."""
        return self.name

    def uri(self, key: str) -> str:
        """Return the name of an object in messages."""
        return f"{self.name.rstrip('/')}/{key}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def _get(self, key: str, if_changed: str | None, retry_s: float | None) -> Stored | None:
        """Return an object, or None if it has the tag `if_changed`."""

    def _missing(self, key: str) -> NotFoundError:
        return NotFoundError(f"`{self.uri(key)}` does not exist")

    def _already_exists(self, key: str) -> AlreadyExistsError:
        return AlreadyExistsError(f"`{self.uri(key)}` already exists")

    def _conflict(self, key: str) -> ConflictError:
        return ConflictError(
            f"`{self.uri(key)}` was changed by another writer", hint="read it again and retry"
        )


def check_key(key: str) -> str:
    """Return `key`, or raise an `InvalidError` if it is not the key of an object."""
    encoded = as_text("a key", key).encode()
    segments = encoded.split(b"/")
    if (
        "\0" in key
        or "\\" in key
        or len(encoded) > _MAX_KEY_BYTES
        or any(
            not segment or segment.startswith(b".") or len(segment) > _MAX_SEGMENT_BYTES
            for segment in segments
        )
    ):
        raise InvalidError(f"{key[:100]!r} is not a valid key")
    return key


def check_prefix(prefix: str) -> str:
    """Return a folder as "" or with a slash at its end."""
    prefix = as_text("`prefix`", prefix).removesuffix("/")
    return f"{check_key(prefix)}/" if prefix else ""


def check_range(key: str, start: int, stop: int) -> None:
    """Raise an error for an invalid key or a range that no object can have."""
    check_key(key)
    if not 0 <= start <= stop:
        raise OutOfRangeError(f"bytes {start} to {stop} of `{key}` are not a range")


def read_body(body: Body) -> bytes:
    """Return the bytes of a body."""
    if not isinstance(body, Path):
        return bytes(body)
    try:
        return body.read_bytes()
    except OSError as error:
        raise storage_error(error, body, "read") from error
