"""Requests for the bytes of one remote object, made with obstore."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, NamedTuple

from relive._extras import require
from relive.errors import CorruptError, ReliveError, StorageError, UnsupportedError
from relive.store.config import OPEN_RETRY_S
from relive.store.remote.connection import (
    Connection,
    Renewal,
    connect,
    public_name,
    scheme_of,
    split_address,
)
from relive.store.remote.failures import (
    RefusedRangeError,
    TemporaryCredentialsError,
    failures,
    translate,
)
from relive.store.remote.ranges import Range
from relive.store.remote.threads import at_once, request_pool

# obstore resumes a body that was cut off only if the server sends an ETag.
ATTEMPTS: Final = 3


class Response(NamedTuple):
    """Bytes from `start` on, of an object that has `size` bytes and the version `tag`."""

    start: int
    data: bytes
    size: int
    tag: str | None


class ObjectClient:
    """Requests ranges of the object at `uri`, many at once. Thread-safe.

    `options` are those of obstore's store; `client_options` and `retry_config` are added to
    the defaults. Objects of one bucket share their connections.
    """

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        self.uri = uri
        self.options = dict(options)
        self.name = public_name(uri)
        scheme_of(uri)
        self._obstore = require("obstore", extra="remote", to="read remote files")
        self._failures: Any = failures()
        self._address, self._path = split_address(uri)
        self._connection = connect(self._address, self.options, {})

    def get_ends(self, head: int, tail: int) -> tuple[Response, Response | None]:
        """Return the first `head` and the last `tail` bytes, requested at the same time.

        If the server does not support suffix ranges, the tail is requested again with the size
        of the first response. The tail is None if the head is the whole object.
        """
        pool = request_pool()
        # A server may answer 5xx to a suffix range. Retries would not help, so the tail has its
        # own store, without retries.
        last = pool.submit(self._suffix, tail)
        try:
            first = self._get((0, head))
        except (RefusedRangeError, UnsupportedError) as error:
            return self._empty(error), None
        finally:
            found = last.result()  # no request runs after the call
        if first.size <= len(first.data):
            return first, None
        return first, found or self._get((max(0, first.size - tail), first.size))

    def get_ranges(self, ranges: Sequence[Range]) -> list[Response]:
        """Return the bytes of each range, with one request each, at most 64 at once."""
        try:
            return at_once(self._get, ranges, on_error=lambda: None)
        except RefusedRangeError:
            raise changed(self.name) from None

    def _get(self, wanted: Range) -> Response:
        start, stop = wanted
        for left in reversed(range(ATTEMPTS)):
            result = self._request(self._connection, {"range": (start, stop)})
            meta = result.meta
            try:
                data = bytes(result.bytes())
            except self._failures as error:
                if left:
                    continue
                raise self._translate(error) from None
            if len(data) == max(0, min(stop, meta["size"]) - start):
                return Response(start, data, meta["size"], _tag(meta))
        raise StorageError(
            f"cannot read `{self.name}`: the response has fewer bytes than its header declares"
        )

    def _suffix(self, count: int) -> Response | None:
        try:
            connection = connect(self._address, self.options, {"max_retries": 0})
            result = self._request(connection, {"range": {"suffix": count}})
            meta, (start, stop) = result.meta, result.range
            data = bytes(result.bytes())
        except (*self._failures, ReliveError):
            # The request for the head fails as well and reports it, unless it was temporary.
            return None
        whole = stop - start == len(data) and stop == meta["size"]
        return Response(start, data, stop, _tag(meta)) if whole else None

    def _empty(self, refusal: ReliveError) -> Response:
        # An empty file has no ranges; some servers answer with an error, some do not.
        try:
            meta = self._obstore.head(self._connection.store(), self._path)
        except self._failures:
            raise refusal from None
        if meta["size"]:
            raise refusal
        return Response(0, b"", 0, _tag(meta))

    def _request(self, connection: Connection, options: Mapping[str, object]) -> Any:
        # obstore repeats requests; what is repeated here is about credentials.
        deadline, renewal = time.monotonic() + OPEN_RETRY_S, Renewal(connection)
        for attempt in count():
            try:
                try:
                    return self._obstore.get(renewal.store(), self._path, options=options)
                except self._failures as error:
                    if not renewal.after(error):
                        raise
            except TemporaryCredentialsError as error:
                pause_s = min(5.0, 0.1 * 2.0**attempt)
                if time.monotonic() + pause_s > deadline:
                    raise self._translate(error) from None
                time.sleep(pause_s)
            except self._failures as error:
                raise self._translate(error) from None
        raise AssertionError  # for the type checker

    def _translate(self, error: Exception) -> ReliveError:
        return translate(error, self.name, self.uri)


def changed(name: str) -> CorruptError:
    """Return the error for an object that was replaced while it was read."""
    return CorruptError(f"`{name}` changed while it was being read", hint="open it again")


def _tag(meta: Mapping[str, Any]) -> str | None:
    if meta["e_tag"]:
        # Whether a tag is weak depends on how the response was sent, not on the object.
        return str(meta["e_tag"]).removeprefix("W/")
    changed: datetime = meta["last_modified"]
    return changed.isoformat() if changed > datetime.fromtimestamp(0, UTC) else None
