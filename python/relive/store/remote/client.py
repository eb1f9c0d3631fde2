"""Requests for the bytes of one remote object, made by obstore, with typed answers and errors.

obstore's errors have whole URLs in them, and a URL may be signed: its text is looked at and
never passed on, neither in a message nor as a cause.
"""

import os
import re
import sys
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
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

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["Answer", "Fetcher", "Range", "changed", "forked", "public_name"]

HTTP: Final = ("http", "https")
BUCKETS: Final = ("s3", "s3a", "gs")
AZURE: Final = ("az", "adl", "azure", "abfs", "abfss")
SCHEMES: Final = (*HTTP, *BUCKETS, *AZURE)

# Enough to keep a long line full, few enough for a server that counts connections.
CONCURRENT: Final = 64
# A slow line gets time for a piece; a dead server is named within seconds.
CLIENT: Final[Mapping[str, object]] = {"timeout": "2min"}
RETRY: Final[Mapping[str, object]] = {"max_retries": 6, "retry_timeout": timedelta(minutes=1)}
# obstore goes on with a body that broke off only where the server gives an ETag.
ATTEMPTS: Final = 3

Range: TypeAlias = tuple[int, int]
"""The positions of the first byte, and of the one after the last."""


class Answer(NamedTuple):
    """Bytes from `start` on, of an object that has `size` bytes and is known by `tag`."""

    start: int
    data: bytes
    size: int
    tag: str | None


class _RefusedRangeError(StorageError):
    """The server says that the object has no such bytes."""


class Fetcher:
    """Makes requests for the object at `uri`, many at once. Thread-safe.

    `options` are those of obstore's store; `client_options` and `retry_config` are added to
    the defaults here.
    """

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        self.uri = uri
        self.options = dict(options)
        self.name = public_name(uri)
        self._scheme = uri.partition("://")[0].lower()
        if self._scheme not in SCHEMES:
            raise UnsupportedError(f"cannot read `{self.name}`: relive knows {', '.join(SCHEMES)}")
        self._obstore = require("obstore", extra="remote", to="read remote files")
        self._exceptions = require("obstore.exceptions", extra="remote", to="read remote files")
        self._failures = (self._exceptions.BaseError, OSError, ValueError)
        self._store, self._path = self._connect({})

    def ends(self, head: int, tail: int) -> tuple[Answer, Answer | None]:
        """Give the first `head` and the last `tail` bytes, asked for at the same time.

        A server that does not know how to count from the end is asked again, with the size
        that came with the head. The tail is None where the head is everything.
        """
        pool = _pool()
        # A server may answer 5xx to a range it does not understand: asking again is no use,
        # and so the tail has a store of its own, which does not.
        last = pool.submit(self._suffix, tail)
        try:
            first = self._get(0, head)
        except (_RefusedRangeError, UnsupportedError) as error:
            return self._empty(error), None
        finally:
            found = last.result()  # no request outlives the call
        if first.size <= len(first.data):
            return first, None
        return first, found or self._get(max(0, first.size - tail), first.size)

    def ranges(self, ranges: Sequence[Range]) -> list[Answer]:
        """Give the bytes of each range, by one request each, as many at once as is polite."""
        pool = _pool()
        calls = [pool.submit(self._get, start, stop) for start, stop in ranges]
        try:
            return [call.result() for call in calls]
        except _RefusedRangeError:
            raise changed(self.name) from None
        finally:
            for call in calls:
                call.cancel()

    def _get(self, start: int, stop: int) -> Answer:
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
                return Answer(start, data, meta["size"], _tag(meta))
        raise StorageError(f"cannot read `{self.name}`: the answer is shorter than it says")

    def _suffix(self, count: int) -> Answer | None:
        try:
            store, _ = self._connect({"max_retries": 0})
            result = self._request(store, {"range": {"suffix": count}})
            meta, (start, stop) = result.meta, result.range
            data = bytes(result.bytes())
        except (*self._failures, ReliveError):
            # The head's request meets the same trouble, and says so if it stays.
            return None
        whole = stop - start == len(data) and stop == meta["size"]
        return Answer(start, data, stop, _tag(meta)) if whole else None

    def _empty(self, refusal: ReliveError) -> Answer:
        # Of an empty file there are no ranges, which some servers call an error, and some not.
        try:
            meta = self._obstore.head(self._store, self._path)
        except self._failures:
            raise refusal from None
        if meta["size"]:
            raise refusal
        return Answer(0, b"", 0, _tag(meta))

    def _request(self, store: Any, options: Mapping[str, object]) -> Any:
        try:
            return self._obstore.get(store, self._path, options=options)
        except self._failures as error:
            raise self._translate(error) from None

    def _connect(self, retry: Mapping[str, object]) -> tuple[Any, str]:
        # Stores are made by name of their scheme: obstore would take a signed URL of a cloud
        # for a bucket, and look for credentials.
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
            told = str(error).partition("\n")[0] if known else "an option is missing or wrong"
            hint = None if known or scheme in HTTP else _credentials(self.uri)
            raise InvalidError(f"cannot reach `{self.name}`: {told}", hint=hint) from None

    def _translate(self, error: Exception) -> ReliveError:  # noqa: PLR0911 - one line per case
        text, exceptions = str(error), self._exceptions
        found = re.search(r"status code: (\d{3})", text)
        status = int(found[1]) if found else None
        name, why = self.name, _reason(status, text)
        # Credentials that were looked for in vain are an address that only clouds answer.
        if "169.254.169.254" in text or "metadata.google" in text:
            return AccessDeniedError(
                f"cannot read `{name}`: no credentials were found", hint=_credentials(self.uri)
            )
        if isinstance(error, FileNotFoundError) or status in {404, 410}:
            return NotFoundError(f"nothing is at `{name}`")
        denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        if isinstance(error, denied) or status in {401, 403}:
            return AccessDeniedError(f"cannot read `{name}`: {why}", hint=_credentials(self.uri))
        if isinstance(error, exceptions.NotSupportedError):
            return UnsupportedError(
                f"cannot read `{name}`: the server sends whole files, and not ranges of them",
                hint="download it, or serve it by a server that knows ranges, such as nginx",
            )
        if isinstance(error, exceptions.InvalidPathError) or "Could not parse path" in text:
            return InvalidError(f"`{name}` cannot be the name of an object")
        if status == 416:  # noqa: PLR2004 - Range Not Satisfiable
            return _RefusedRangeError(f"cannot read `{name}`: {why}")
        return StorageError(f"cannot read `{name}`: {why}")


def changed(name: str) -> CorruptError:
    """Give the error for an object that is not the one it was."""
    return CorruptError(f"`{name}` changed while it was read", hint="open it again")


def public_name(uri: str) -> str:
    """Give `uri` without what may be secret: the user, the password, the query."""
    scheme, _, rest = uri.partition("://")
    if scheme.lower() in BUCKETS:
        return uri  # keys are not escaped, and have neither
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    place, slash, path = rest.partition("/")
    if scheme.lower() not in AZURE:  # which has a container before its account
        place = place.rpartition("@")[2]
    return f"{scheme}://{place}{slash}{path}"


def _http(uri: str, client: dict[str, Any]) -> str:
    # The user and the password of a URL are not sent by obstore: they become a header.
    parts = urlsplit(uri)
    client.setdefault("allow_http", parts.scheme.lower() == "http")
    user, at, place = parts.netloc.rpartition("@")
    if at:
        token = b64encode(unquote(user if ":" in user else f"{user}:").encode()).decode()
        headers = {"authorization": f"Basic {token}", **client.get("default_headers", {})}
        client["default_headers"] = headers
    return urlunsplit(parts._replace(netloc=place, fragment=""))


def _plain_endpoint(options: Mapping[str, Any]) -> bool:
    names = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
    told = [options.get("endpoint"), dict(options.get("config") or {}).get("endpoint")]
    return any(str(one).startswith("http://") for one in (*told, *map(os.environ.get, names)))


def _is_about_options(error: Exception) -> bool:
    # These name a key, never a value.
    return any(sign in str(error) for sign in ("onfiguration key", "Invalid key", "keyword"))


def _tag(meta: Mapping[str, Any]) -> str | None:
    if meta["e_tag"]:
        # Weak or strong depends on how the answer was sent, not on what is in it.
        return str(meta["e_tag"]).removeprefix("W/")
    changed: datetime = meta["last_modified"]
    return changed.isoformat() if changed > datetime.fromtimestamp(0, UTC) else None


_REASONS: Final = (
    ("dns error", "the name of the server is not known"),
    ("ConnectionRefused", "the connection was refused"),
    ("certificate", "the certificate of the server is not trusted"),
    ("Timeout", "the server took too long"),
    ("TimedOut", "the server took too long"),
    ("IncompleteBody", "the answer ended early"),
    ("ConnectionReset", "the connection broke"),
    ("Unexpected", "the server sent another range than it was asked for"),
    ("CONTENT_RANGE", "the server does not say which range it sends"),
)


def _reason(status: int | None, text: str) -> str:
    if status is not None:
        return f"the server answered {status}"
    found = (reason for sign, reason in _REASONS if sign in text)
    return next(found, "the request failed")


def _credentials(uri: str) -> str:
    scheme = uri.partition("://")[0].lower()
    if scheme in HTTP:
        return "give a signed URL, or client_options={'default_headers': {'authorization': …}}"
    if scheme == "gs":
        return "set GOOGLE_APPLICATION_CREDENTIALS, or give skip_signature=True if it is public"
    if scheme in AZURE:
        return "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    return (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give skip_signature=True if it is"
        " public"
    )


class _Process:
    """What belongs to one process: its threads, and whether it can use obstore itself."""

    def __init__(self, *, forked: bool) -> None:
        self.forked = forked
        self.lock = threading.Lock()
        self.pool: ThreadPoolExecutor | None = None


_process = _Process(forked=False)


def forked() -> bool:
    """Whether obstore was loaded before this process was forked, and waits for lost threads."""
    return _process.forked


def _after_fork() -> None:
    global _process  # noqa: PLW0603 - the child begins anew
    _process = _Process(forked="obstore" in sys.modules)


os.register_at_fork(after_in_child=_after_fork)


def _pool() -> "ThreadPoolExecutor":
    from concurrent.futures import ThreadPoolExecutor

    with _process.lock:
        if _process.pool is None:
            _process.pool = ThreadPoolExecutor(CONCURRENT, "relive-fetch")
        return _process.pool
