"""Connections to stores, one for each address, options and process."""

import os
import re
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from relive._extras import require
from relive.errors import AuthenticationError, InvalidError, UnsupportedError
from relive.store.config import cloud_environment
from relive.store.remote.failures import CredentialsError, credentials_hint, inspect
from relive.store.remote.hidden import LEFT_OUT, has_secret

if TYPE_CHECKING:
    from relive.store.remote.credentials import StoreCredentials

HTTP: Final = ("http", "https")
BUCKETS: Final = ("s3", "s3a", "gs")
AZURE: Final = ("az", "adl", "azure", "abfs", "abfss")
SCHEMES: Final = (*HTTP, *BUCKETS, *AZURE)

# Long enough for one request of the largest size over a slow connection.
CLIENT: Final[Mapping[str, object]] = {"timeout": "2min", "read_timeout": "30s"}
RETRY: Final[Mapping[str, object]] = {"max_retries": 6, "retry_timeout": timedelta(minutes=1)}

# Stores keep their sockets open, so that there is a limit to how many are kept.
_MAX_CONNECTIONS: Final = 64

# The key that another request has got meanwhile may expire together with the one that was refused.
_RENEWALS: Final = 2

_lock = threading.Lock()
_connections: "Final[OrderedDict[object, tuple[Connection, object]]]" = OrderedDict()


def scheme_of(address: str) -> str:
    """Return the scheme of an address, or raise an `UnsupportedError`."""
    scheme = address.partition("://")[0].lower()
    if scheme not in SCHEMES:
        raise UnsupportedError(
            f"cannot read `{public_name(address)}`: unsupported scheme {scheme!r}",
            hint=f"the supported schemes are {', '.join(SCHEMES)}",
        )
    return scheme


def split_address(address: str) -> tuple[str, str]:
    """Return the address of a bucket or container, and the key in it; a URL is not split."""
    scheme, _, rest = address.partition("://")
    if scheme.lower() in HTTP:
        return address, ""
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


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


class Connection:
    """One of obstore's stores, whose credentials can be renewed. Thread-safe."""

    def __init__(
        self, address: str, options: Mapping[str, Any], retry: Mapping[str, object]
    ) -> None:
        self._address, self._retry = address, retry
        self._options = {name: value for name, value in options.items() if name != LEFT_OUT}
        self._is_complete = len(self._options) == len(options)
        self._lock = threading.Lock()
        self._store, self._credentials = _connect(address, self._options, retry)

    def store(self) -> Any:
        """Return the store; credentials that are about to expire are renewed first."""
        if not self._is_complete:
            raise CredentialsError(
                "credentials that are passed as options are not pickled",
                "name a profile with profile=, or set the credentials in the environment",
            )
        if self._credentials is not None:
            self._credentials.renewed.current()
        return self._store

    def renew(self, refused: Any) -> bool:
        """Return whether there is a store with other credentials than those of `refused`.

        Credentials that were passed as options cannot be renewed.
        """
        with self._lock:
            if self._store is not refused:
                return True  # another thread has renewed them
            if self._credentials is None:
                if not self._are_found_by_obstore():
                    return False
            elif not self._credentials.renewed.renew(self._credentials.used):
                return False
            # A store keeps its credentials until they expire, so that there is a new one.
            self._store, self._credentials = _connect(
                self._address, self._options, self._retry, self._credentials
            )
            return True

    def _are_found_by_obstore(self) -> bool:
        return scheme_of(self._address) in {"gs", *AZURE} and not has_secret(self._options)


class Renewal:
    """Renews the credentials of a connection for one request, a limited number of times."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._store: Any = None
        self._left = _RENEWALS

    def store(self) -> Any:
        """Return the store for the next attempt; one of a later attempt has other credentials."""
        self._store = self._connection.store()
        return self._store

    def after(self, error: Exception) -> bool:
        """Return whether the request may succeed with the credentials that there are now."""
        if not self._left or not inspect(error).is_refusal:
            return False
        is_renewed = self._connection.renew(self._store)
        self._left -= is_renewed  # a service that fails for a while is asked again
        return is_renewed


def connect(address: str, options: Mapping[str, Any], retry: Mapping[str, object]) -> Connection:
    """Return the connection to a bucket, a container or a URL; makes no request.

    The same arguments in the same process return the same connection, as long as the environment
    variables that configure clouds are the same.
    """
    key = (address, frozen(options), frozen(retry), cloud_environment())
    with _lock:
        if key in _connections:
            _connections.move_to_end(key)
            return _connections[key][0]
    made = Connection(address, options, retry)
    with _lock:
        # The options are kept because the key may have the identities of objects in them.
        made, _ = _connections.setdefault(key, (made, options))
        while len(_connections) > _MAX_CONNECTIONS:
            _connections.popitem(last=False)
    return made


def frozen(value: object) -> object:
    """Return a hashable form of options."""
    if isinstance(value, Mapping):
        return frozenset((key, frozen(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def _connect(
    address: str,
    given: Mapping[str, Any],
    retry: Mapping[str, object],
    before: "StoreCredentials | None" = None,
) -> tuple[Any, "StoreCredentials | None"]:
    """Return a store, and its credentials if they are renewed by relive."""
    # The scheme decides, because obstore takes a signed HTTPS URL of a cloud for a bucket and
    # looks for credentials.
    scheme = scheme_of(address)
    stores = require("obstore.store", extra="remote", to="read remote files")
    failures = require("obstore.exceptions", extra="remote", to="read remote files")
    name, options = public_name(address), dict(given)
    try:
        client = {**CLIENT, **options.pop("client_options", {})}
        options["client_options"] = client
        options["retry_config"] = {**RETRY, **options.pop("retry_config", {}), **retry}
        if scheme in HTTP:
            return stores.HTTPStore(_http(address, client), **options), None
        credentials = None
        if scheme in {"s3", "s3a"}:
            from relive.store.remote.aws import find_credentials

            if _plain_endpoint(options):
                client.setdefault("allow_http", True)
            credentials = find_credentials(name, options, before)
            if credentials is not None:
                options["credential_provider"] = credentials
        return stores.from_url(address, **options), credentials
    except (failures.BaseError, OSError, ValueError, TypeError) as error:
        if isinstance(error, AuthenticationError):
            raise
        known = _is_about_options(error)
        reason = str(error).partition("\n")[0] if known else "an option is missing or invalid"
        hint = None if known or scheme in HTTP else credentials_hint(address)
        raise InvalidError(f"cannot connect to `{name}`: {reason}", hint=hint) from None


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


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - one for each process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
