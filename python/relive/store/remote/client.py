"""Requests for the bytes of one remote object, made with obstore.

obstore's errors contain whole URLs, and a URL may be signed. Their text is therefore read but
never passed on, neither in a message nor as a cause.
"""

import os
import re
import sys
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from relive._extras import require
from relive.errors import (
    AccessDeniedError,
    CorruptError,
    InvalidError,
    NotFoundError,
    ReliveError,
    StorageError,
    UnsupportedError,
)
from relive.store.remote.ranges import Range

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

HTTP: Final = ("http", "https")
BUCKETS: Final = ("s3", "s3a", "gs")
AZURE: Final = ("az", "adl", "azure", "abfs", "abfss")
SCHEMES: Final = (*HTTP, *BUCKETS, *AZURE)

# Enough requests to use a connection with high latency, and few enough for most servers.
CONCURRENT: Final = 64
# Long enough for one request of the largest size over a slow connection.
CLIENT: Final[Mapping[str, object]] = {"timeout": "2min"}
RETRY: Final[Mapping[str, object]] = {"max_retries": 6, "retry_timeout": timedelta(minutes=1)}
# obstore resumes a body that was cut off only if the server sends an ETag.
ATTEMPTS: Final = 3


class Response(NamedTuple):
    """Bytes from `start` on, of an object that has `size` bytes and the version `tag`."""

    start: int
    data: bytes
    size: int
    tag: str | None


class _RefusedRangeError(StorageError):
    """The server reports that the range is outside of the object."""


class ObjectClient:
    """Requests ranges of the object at `uri`, many at once. Thread-safe.

    `options` are those of obstore's store; `client_options` and `retry_config` are added to
    the defaults of this module.
    """

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        self.uri = uri
        self.options = dict(options)
        self.name = public_name(uri)
        self._scheme = uri.partition("://")[0].lower()
        if self._scheme not in SCHEMES:
            raise UnsupportedError(
                f"cannot read `{self.name}`: unsupported scheme {self._scheme!r}",
                hint=f"the supported schemes are {', '.join(SCHEMES)}",
            )
        self._obstore = require("obstore", extra="remote", to="read remote files")
        self._exceptions = require("obstore.exceptions", extra="remote", to="read remote files")
        self._failures = (self._exceptions.BaseError, OSError, ValueError)
        self._store, self._path = self._connect({})

    def get_ends(self, head: int, tail: int) -> tuple[Response, Response | None]:
        """Return the first `head` and the last `tail` bytes, requested at the same time.

        If the server does not support suffix ranges, the tail is requested again with the size
        of the first response. The tail is None if the head is the whole object.
        """
        pool = _pool()
        # A server may answer 5xx to a suffix range. Retries would not help, so the tail has its
        # own store, without retries.
        last = pool.submit(self._suffix, tail)
        try:
            first = self._get(0, head)
        except (_RefusedRangeError, UnsupportedError) as error:
            return self._empty(error), None
        finally:
            found = last.result()  # no request runs after the call
        if first.size <= len(first.data):
            return first, None
        return first, found or self._get(max(0, first.size - tail), first.size)

    def get_ranges(self, ranges: Sequence[Range]) -> list[Response]:
        """Return the bytes of each range, with one request each, at most 64 at once."""
        pool = _pool()
        calls = [pool.submit(self._get, start, stop) for start, stop in ranges]
        try:
            return [call.result() for call in calls]
        except _RefusedRangeError:
            raise changed(self.name) from None
        finally:
            for call in calls:
                call.cancel()

    def _get(self, start: int, stop: int) -> Response:
        for left in reversed(range(ATTEMPTS)):
            result = self._request(self._store, {"range": (start, stop)})
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
            store, _ = self._connect({"max_retries": 0})
            result = self._request(store, {"range": {"suffix": count}})
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
            meta = self._obstore.head(self._store, self._path)
        except self._failures:
            raise refusal from None
        if meta["size"]:
            raise refusal
        return Response(0, b"", 0, _tag(meta))

    def _request(self, store: Any, options: Mapping[str, object]) -> Any:
        try:
            return self._obstore.get(store, self._path, options=options)
        except self._failures as error:
            raise self._translate(error) from None

    def _connect(self, retry: Mapping[str, object]) -> tuple[Any, str]:
        # The scheme decides, because obstore takes a signed HTTPS URL of a cloud for a bucket and
        # looks for credentials.
        stores = require("obstore.store", extra="remote", to="read remote files")
        scheme = self._scheme
        options = dict(self.options)
        client = {**CLIENT, **options.pop("client_options", {})}
        options["client_options"] = client
        options["retry_config"] = {**RETRY, **options.pop("retry_config", {}), **retry}
        try:
            if scheme in HTTP:
                return stores.HTTPStore(_http(self.uri, client), **options), ""
            if scheme in BUCKETS:
                if scheme != "gs" and _plain_endpoint(options):
                    client.setdefault("allow_http", True)
                bucket, _, key = self.uri.partition("://")[2].partition("/")
                return stores.from_url(f"{scheme}://{bucket}", **options), key
            folder, _, key = self.uri.rpartition("/")
            return stores.from_url(folder, **options), key
        except (*self._failures, TypeError) as error:
            known = _is_about_options(error)
            reason = str(error).partition("\n")[0] if known else "an option is missing or invalid"
            hint = None if known or scheme in HTTP else _credentials(self.uri)
            raise InvalidError(f"cannot connect to `{self.name}`: {reason}", hint=hint) from None

    def _translate(self, error: Exception) -> ReliveError:  # noqa: PLR0911 - one line per case
        text, exceptions = str(error), self._exceptions
        found = re.search(r"status code: (\d{3})", text)
        status = int(found[1]) if found else None
        name, why = self.name, _reason(status, text)
        # Without credentials, obstore asks the metadata server, which exists only in clouds.
        if "169.254.169.254" in text or "metadata.google" in text:
            return AccessDeniedError(
                f"cannot read `{name}`: no credentials were found", hint=_credentials(self.uri)
            )
        if isinstance(error, FileNotFoundError) or status in {404, 410}:
            return NotFoundError(f"`{name}` does not exist")
        denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        if isinstance(error, denied) or status in {401, 403}:
            return AccessDeniedError(f"cannot read `{name}`: {why}", hint=_credentials(self.uri))
        if isinstance(error, exceptions.NotSupportedError):
            return UnsupportedError(
                f"cannot read `{name}`: the server does not support range requests",
                hint="download it, or use a server that supports range requests, such as nginx",
            )
        if isinstance(error, exceptions.InvalidPathError) or "Could not parse path" in text:
            return InvalidError(f"`{name}` is not a valid object name")
        if status == 416:  # noqa: PLR2004 - Range Not Satisfiable
            return _RefusedRangeError(f"cannot read `{name}`: {why}")
        return StorageError(f"cannot read `{name}`: {why}")


def changed(name: str) -> CorruptError:
    """Return the error for an object that was replaced while it was read."""
    return CorruptError(f"`{name}` changed while it was being read", hint="open it again")


def public_name(uri: str) -> str:
    """Return `uri` without what may be secret: user, password and query."""
    scheme, _, rest = uri.partition("://")
    if scheme.lower() in BUCKETS:
        return uri  # object keys are not escaped and have neither
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    if scheme.lower() not in AZURE:  # where the container precedes the account
        host = host.rpartition("@")[2]
    return f"{scheme}://{host}{slash}{path}"


def _http(uri: str, client: dict[str, Any]) -> str:
    # obstore does not send the user and password of a URL, so they become a header.
    parts = urlsplit(uri)
    client.setdefault("allow_http", parts.scheme.lower() == "http")
    user, at, host = parts.netloc.rpartition("@")
    if at:
        token = b64encode(unquote(user if ":" in user else f"{user}:").encode()).decode()
        headers = {"authorization": f"Basic {token}", **client.get("default_headers", {})}
        client["default_headers"] = headers
    return urlunsplit(parts._replace(netloc=host, fragment=""))


def _plain_endpoint(options: Mapping[str, Any]) -> bool:
    names = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
    given = [options.get("endpoint"), dict(options.get("config") or {}).get("endpoint")]
    return any(str(one).startswith("http://") for one in (*given, *map(os.environ.get, names)))


def _is_about_options(error: Exception) -> bool:
    # Messages of these errors name an option, never its value.
    return any(sign in str(error) for sign in ("onfiguration key", "Invalid key", "keyword"))


def _tag(meta: Mapping[str, Any]) -> str | None:
    if meta["e_tag"]:
        # Whether a tag is weak depends on how the response was sent, not on the object.
        return str(meta["e_tag"]).removeprefix("W/")
    changed: datetime = meta["last_modified"]
    return changed.isoformat() if changed > datetime.fromtimestamp(0, UTC) else None


_REASONS: Final = (
    ("dns error", "the host name is unknown"),
    ("ConnectionRefused", "connection refused"),
    ("certificate", "the certificate of the server is not trusted"),
    ("Timeout", "the server did not respond in time"),
    ("TimedOut", "the server did not respond in time"),
    ("IncompleteBody", "the response was cut off"),
    ("ConnectionReset", "the connection was lost"),
    ("Unexpected", "the server returned a range that was not requested"),
    ("CONTENT_RANGE", "the response does not name its range"),
)


def _reason(status: int | None, text: str) -> str:
    if status is not None:
        return f"HTTP status {status}"
    found = (reason for sign, reason in _REASONS if sign in text)
    return next(found, "the request failed")


def _credentials(uri: str) -> str:
    scheme = uri.partition("://")[0].lower()
    if scheme in HTTP:
        return "pass a signed URL, or client_options={'default_headers': {'authorization': …}}"
    if scheme == "gs":
        return "set GOOGLE_APPLICATION_CREDENTIALS, or pass skip_signature=True if it is public"
    if scheme in AZURE:
        return "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    return (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass skip_signature=True if it is"
        " public"
    )


class _Process:
    """The state of one process: its request threads, and whether it can use obstore."""

    def __init__(self, *, forked: bool) -> None:
        self.forked = forked
        self.lock = threading.Lock()
        self.pool: ThreadPoolExecutor | None = None


_process = _Process(forked=False)


def is_forked() -> bool:
    """Return whether this process was forked after obstore was loaded, and cannot use it."""
    return _process.forked


def _after_fork() -> None:
    global _process  # noqa: PLW0603 - one for each process
    _process = _Process(forked="obstore" in sys.modules)


os.register_at_fork(after_in_child=_after_fork)


def _pool() -> "ThreadPoolExecutor":
    from concurrent.futures import ThreadPoolExecutor

    with _process.lock:
        if _process.pool is None:
            _process.pool = ThreadPoolExecutor(CONCURRENT, "relive-fetch")
        return _process.pool
