"""Requests for the objects of a root, made with obstore.

All requests of a root go through one store, so that they share their connections. Its own
retries are off: how long a request is retried depends on what it is for.
"""

import builtins
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from pickle import PickleBuffer
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from relive._extras import require
from relive.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    InvalidError,
    NotFoundError,
    ReliveError,
    StorageError,
)
from relive.store.atomic import storage_error
from relive.store.config import OPEN_RETRY_S, read_retry_s
from relive.store.digest import FileDigest, read_checked
from relive.store.remote.buffers import LARGE_BYTES, lease
from relive.store.remote.connection import (
    Connection,
    Renewal,
    connect,
    public_name,
    scheme_of,
    split_address,
)
from relive.store.remote.failures import (
    BucketNotFoundError,
    CredentialsError,
    RefusedRangeError,
    failures,
    inspect,
    is_bucket_missing,
    translate,
)
from relive.store.remote.ranges import Data, Piece
from relive.store.remote.threads import at_once

Answer: TypeAlias = tuple[bytes, str]
"""The content of an object and its tag."""
Listed: TypeAlias = tuple[str, int, float]
"""Key, size and time of an object."""

IMMUTABLE: Final = "public, max-age=31536000, immutable"
NO_CACHE: Final = "no-cache"

_PART_FROM_BYTES: Final = 64 << 20
_PART_BYTES: Final = 16 << 20
_PARTS_AT_ONCE: Final = 8
_LIST_KEYS: Final = 1000
_DELETE_KEYS: Final = 1000
# A response that is too short is requested again: some servers cut off bodies.
_SHORT_ATTEMPTS: Final = 3
# What is copied at once of a long response: as much as arrives together, mostly.
_CHUNK_BYTES: Final = 64 << 10

_NEVER: Final = threading.Event()

_R = TypeVar("_R")


class _Backoff(NamedTuple):
    """How often and after which pauses a request is made again."""

    first_s: float = 0.1
    base: float = 2.0
    most_s: float = 15.0
    retries: int | None = None
    limit_s: float | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "_Backoff":
        given: dict[str, Any] = dict(options.get("retry_config") or {})
        pauses: dict[str, Any] = dict(given.get("backoff") or {})
        limit = given.get("retry_timeout")
        default = cls()
        try:
            return cls(
                _seconds(pauses.get("init_backoff", timedelta(seconds=default.first_s))),
                float(pauses.get("base", default.base)),
                _seconds(pauses.get("max_backoff", timedelta(seconds=default.most_s))),
                given.get("max_retries"),
                None if limit is None else _seconds(limit),
            )
        except (TypeError, ValueError):
            raise InvalidError("`retry_config` is not valid") from None

    def pause_s(self, attempt: int) -> float:
        """Return how long to wait after `attempt` failures; random, so that clients spread."""
        most = min(self.most_s, self.first_s * self.base ** min(attempt, 60))
        return most * random.uniform(0.5, 1.0)  # noqa: S311 - not for security


class _Task(NamedTuple):
    """A request that may be made several times."""

    key: str
    verb: str
    deadline: float
    stop: threading.Event
    """Set when its result is no longer needed."""


class RootClient:
    """The objects below `address`, by key. Thread-safe; not for forked processes."""

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self.address = address
        self.name = public_name(address).rstrip("/")
        self._options = dict(options)
        self._backoff = _Backoff.of(options)
        self._scheme = scheme_of(address)
        self._obstore = require("obstore", extra="remote", to="read remote files")
        self._exceptions = require("obstore.exceptions", extra="remote", to="read remote files")
        self._failures: Any = failures()
        self._bucket, prefix = split_address(address)
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._connection = connect(self._bucket, self._options, {"max_retries": 0})

    @property
    def _store(self) -> Any:
        return self._connection.store()

    def get(
        self, key: str, if_changed: str | None = None, retry_s: float | None = None
    ) -> Answer | None:
        """Return an object; None if its tag is `if_changed`."""
        etag = None if if_changed is None else _etag(if_changed)
        options = {} if etag is None else {"if_none_match": etag}

        def call(_: int) -> Answer | None:
            try:
                result = self._obstore.get(self._store, self._path(key), options=options)
            except self._exceptions.NotModifiedError:
                return None
            tag = _tag(result.meta)
            return None if tag == if_changed else (bytes(result.bytes()), tag)

        return self._attempt(call, key, "read", retry_s)

    def get_many(self, keys: Sequence[str]) -> list[Answer | None]:
        """Return the objects, None for missing ones."""

        def call(key: str) -> Answer | None:
            try:
                return self.get(key)
            except BucketNotFoundError:
                raise
            except NotFoundError:
                return None

        return self._at_once(call, keys)

    def fetch(self, pieces: Sequence[Piece], receive: Callable[[Piece, Data], None]) -> None:
        """Request ranges; `receive` is called with every response, on the thread that got it."""
        stop = threading.Event()
        retry_s = read_retry_s()

        def call(piece: Piece) -> None:
            receive(piece, memoryview(self._fetch(piece, retry_s, stop)))

        at_once(call, pieces, on_error=stop.set)

    def fetch_all(self, pieces: Sequence[Piece]) -> list[PickleBuffer]:
        """Return the bytes of ranges, for another process."""
        stop = threading.Event()
        retry_s = read_retry_s()
        return at_once(
            lambda piece: PickleBuffer(self._fetch(piece, retry_s, stop)),
            pieces,
            on_error=stop.set,
        )

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Return for each key whether there is such an object."""
        return [size is not None for size in self.sizes(keys)]

    def sizes(self, keys: Sequence[str]) -> list[int | None]:
        """Return the size of each object, None for missing ones."""

        def head(key: str) -> int:
            meta = self._attempt(lambda _: self._obstore.head(self._store, self._path(key)), key)
            return int(meta["size"])

        def call(key: str) -> int | None:
            try:
                return head(key)
            except NotFoundError:
                return None
            except (AccessDeniedError, StorageError) as error:
                # The response to a HEAD request has no body, and so no error code by which
                # credentials would be renewed.
                if not isinstance(error, AccessDeniedError) and "status 400" not in str(error):
                    raise
                return head(key) if self._has_byte(key) else None

        return self._at_once(call, keys)

    def put(self, key: str, body: bytes | Path, cache_control: str) -> None:
        """Write an object, or replace it."""
        try:
            size = body.stat().st_size if isinstance(body, Path) else len(body)
            if isinstance(body, Path) and size <= _PART_FROM_BYTES:
                body = body.read_bytes()
        except OSError as error:
            raise storage_error(error, f"{body!s}", "read") from error
        self._put(key, lambda: body, cache_control, in_parts=size > _PART_FROM_BYTES)

    def put_file(
        self,
        key: str,
        path: Path,
        expected: FileDigest,
        cache_control: str,
        sent: Callable[[int], object] | None = None,
    ) -> None:
        """Write a file as an object, or replace it, if its content is the expected one.

        `sent` is called with the bytes read of a large file.
        """
        if expected.size <= _PART_FROM_BYTES:
            self.put(
                key, b"".join(read_checked(path, expected, max(1, expected.size))), cache_control
            )
            return

        def pieces() -> Iterator[bytes]:
            # obstore aborts the upload if this raises.
            done = 0
            for piece in read_checked(path, expected):
                done += len(piece)
                if sent is not None:
                    sent(done)
                yield piece

        self._put(key, pieces, cache_control, in_parts=True)

    def _put(
        self, key: str, content: Callable[[], object], cache_control: str, *, in_parts: bool
    ) -> None:
        """Write an object; `content` is called for each attempt."""
        if in_parts:
            # One part of many that fails is repeated on its own, which obstore does.
            connection = connect(self._bucket, self._options, {"max_retries": 10})
            parts = {"chunk_size": _PART_BYTES, "max_concurrency": _PARTS_AT_ONCE}
        else:
            connection, parts = self._connection, {"use_multipart": False}

        def call(_: int) -> object:
            attributes = {"Cache-Control": cache_control}
            return self._obstore.put(
                connection.store(), self._path(key), content(), attributes=attributes, **parts
            )

        self._attempt(call, key, "write", connection=connection)

    def create(self, key: str, data: bytes, cache_control: str) -> str:
        """Write an object that does not exist and return its tag."""

        def call(attempt: int) -> str:
            try:
                return self._put_if(key, data, "create", cache_control)
            except self._exceptions.AlreadyExistsError as error:
                if inspect(error).code == "ConditionalRequestConflict":
                    raise _TryAgainError from None
                if attempt and (tag := self._written(key, data)):
                    return tag
                raise AlreadyExistsError(f"`{self._name(key)}` already exists") from None

        return self._attempt(call, key, "write")

    def replace(self, key: str, data: bytes, tag: str, cache_control: str) -> str:
        """Replace an object that still has `tag`, and return its new tag."""
        etag, _, version = tag.partition(" ")
        mode = {"e_tag": etag, "version": version} if version else {"e_tag": etag}

        def call(attempt: int) -> str:
            try:
                return self._put_if(key, data, mode, cache_control)
            except self._exceptions.AlreadyExistsError:  # status 409: two writers at once
                raise _TryAgainError from None
            except (self._exceptions.PreconditionError, FileNotFoundError) as error:
                if is_bucket_missing(error):
                    raise
                if attempt and (new := self._written(key, data)):
                    return new
                raise ConflictError(
                    f"`{self._name(key)}` was changed by another writer",
                    hint="read it again and retry",
                ) from None

        return self._attempt(call, key, "write")

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects in a folder."""
        last: str | None = None
        task = _Task(prefix, "list", time.monotonic() + self._limit_s(None), _NEVER)
        renewal = Renewal(self._connection)
        for attempt in count():
            try:
                renewal.store()
                for chunk in self._obstore.list(
                    self._store,
                    f"{self._prefix}{prefix}" or None,
                    offset=last,
                    chunk_size=_LIST_KEYS,
                ):
                    for meta in chunk:
                        last = meta["path"]
                        key = last.removeprefix(self._prefix)
                        yield key, meta["size"], meta["last_modified"].timestamp()
            except self._failures as error:
                self._recover(error, attempt, task, renewal)
            else:
                return

    def list_all(self, prefix: str) -> builtins.list[Listed]:
        """Return the objects in a folder, for another process."""
        return [*self.list(prefix)]

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""
        if self._scheme in {"s3", "s3a"}:
            batches = [
                [self._path(key) for key in keys[at : at + _DELETE_KEYS]]
                for at in range(0, len(keys), _DELETE_KEYS)
            ]
            for batch in batches:
                self._delete(batch, "")
        else:
            # All that have begun are awaited, also after an error: gc relies on it.
            at_once(lambda key: self._delete(self._path(key), key), keys)

    def _has_byte(self, key: str) -> bool:
        try:
            self._attempt(lambda _: self._get_range(key, 0, 1), key)
        except NotFoundError:
            return False
        except RefusedRangeError:  # an empty object
            return True
        return True

    def _fetch(self, piece: Piece, retry_s: float, stop: threading.Event) -> Any:
        def call(attempt: int) -> Any:
            large = piece.stop - piece.start >= LARGE_BYTES
            read = self._read_range if large else self._get_range
            data = read(piece.key, piece.start, piece.stop)
            if len(data) == piece.stop - piece.start:
                return data
            if attempt + 1 < _SHORT_ATTEMPTS:
                raise _TryAgainError
            raise self._too_short(piece)

        try:
            return self._attempt(call, piece.key, "read", retry_s, stop)
        except RefusedRangeError:
            raise self._too_short(piece) from None

    def _get_range(self, key: str, start: int, stop: int) -> Any:
        return self._obstore.get_range(self._store, self._path(key), start=start, end=stop)

    def _read_range(self, key: str, start: int, stop: int) -> memoryview:
        """Return the same in memory that is used again; shorter, if it is not as long."""
        found = self._obstore.get(
            self._store, self._path(key), options={"range": (start, stop)}
        ).stream(min_chunk_size=_CHUNK_BYTES)
        data = lease(stop - start)
        out, at = np.frombuffer(data, np.uint8), 0
        for chunk in found:
            part = np.frombuffer(chunk, np.uint8)[: len(out) - at]
            np.copyto(out[at : at + len(part)], part)
            at += len(part)
        return data[:at]

    def _too_short(self, piece: Piece) -> CorruptError:
        return CorruptError(
            f"`{self._name(piece.key)}` is too short: bytes {piece.start} to {piece.stop} were"
            " requested"
        )

    def _put_if(self, key: str, data: bytes, mode: object, cache_control: str) -> str:
        attributes = {"Cache-Control": cache_control}
        found = self._obstore.put(
            self._store, self._path(key), data, attributes=attributes, mode=mode
        )
        return _joined_tag(found["e_tag"], found["version"])

    def _written(self, key: str, data: bytes) -> str | None:
        """Return the tag of an object if an attempt that seemed to fail has written it."""
        try:
            found = self.get(key)
        except NotFoundError:
            return None
        return found[1] if found is not None and found[0] == data else None

    def _delete(self, paths: object, key: str) -> None:
        def call(_: int) -> None:
            try:
                self._obstore.delete(self._store, paths)
            except FileNotFoundError as error:
                if is_bucket_missing(error):
                    raise

        self._attempt(call, key, "delete")

    def _attempt(
        self,
        call: Callable[[int], _R],
        key: str,
        verb: str = "read",
        retry_s: float | None = None,
        stop: threading.Event | None = None,
        *,
        connection: Connection | None = None,
    ) -> _R:
        """Return `call(attempt)`, repeated while it fails for reasons that may pass."""
        task = _Task(key, verb, time.monotonic() + self._limit_s(retry_s), stop or _NEVER)
        renewal = Renewal(connection or self._connection)
        for attempt in count():
            try:
                renewal.store()
                return call(attempt)
            except ReliveError:
                raise
            except (*self._failures, _TryAgainError) as error:
                self._recover(error, attempt, task, renewal)
        raise AssertionError  # for the type checker

    def _recover(self, error: Exception, attempt: int, task: "_Task", renewal: Renewal) -> None:
        """Renew refused credentials, or wait before the next attempt, or raise the error."""
        try:
            if renewal.after(error):
                return
        except CredentialsError as failure:
            error = failure
        self._pause(error, attempt, task)

    def _pause(self, error: Exception, attempt: int, task: "_Task") -> None:
        """Wait before the next attempt, or raise the error if there is none."""
        temporary = isinstance(error, _TryAgainError) or inspect(error).is_temporary
        retries = self._backoff.retries
        pause_s = self._backoff.pause_s(attempt)
        if (
            not temporary
            or (retries is not None and attempt >= retries)
            or time.monotonic() + pause_s > task.deadline
            or task.stop.wait(pause_s)
        ):
            raise translate(error, self._name(task.key), self.address, task.verb) from None

    def _limit_s(self, retry_s: float | None) -> float:
        limit = OPEN_RETRY_S if retry_s is None else retry_s
        given = self._backoff.limit_s
        return limit if given is None else min(limit, given)

    def _at_once(self, call: Callable[[str], _R], keys: Sequence[str]) -> builtins.list[_R]:
        return at_once(call, keys, on_error=lambda: None)

    def _path(self, key: str) -> str:
        return f"{self._prefix}{key}"

    def _name(self, key: str) -> str:
        return f"{self.name}/{key}" if key else self.name


class _TryAgainError(Exception):
    """The request may succeed if it is made again."""


def _tag(meta: Mapping[str, Any]) -> str:
    if meta["e_tag"]:
        return _joined_tag(meta["e_tag"], meta["version"])
    # A web server without ETags. The tag begins with a space, so that it is not sent as one.
    return f" {meta['last_modified'].isoformat()}/{meta['size']}"


def _joined_tag(etag: str | None, version: str | None) -> str:
    return f"{etag or ''} {version or ''}".rstrip()


def _etag(tag: str) -> str | None:
    return tag.partition(" ")[0] or None


def _seconds(value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError
