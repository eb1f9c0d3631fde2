"""obstore's stores, one for each address, options and process."""

import os
import re
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from relive._extras import require
from relive.errors import AuthenticationError, InvalidError, UnsupportedError
from relive.store.config import cloud_environment
from relive.store.remote.failures import credentials_hint

HTTP: Final = ("http", "https")
BUCKETS: Final = ("s3", "s3a", "gs")
AZURE: Final = ("az", "adl", "azure", "abfs", "abfss")
SCHEMES: Final = (*HTTP, *BUCKETS, *AZURE)

# Long enough for one request of the largest size over a slow connection.
CLIENT: Final[Mapping[str, object]] = {"timeout": "2min", "read_timeout": "30s"}
RETRY: Final[Mapping[str, object]] = {"max_retries": 6, "retry_timeout": timedelta(minutes=1)}

# Stores keep their connections, so that there is a limit to how many are kept.
_MAX_STORES: Final = 64
# botocore renews credentials that expire within this time.
_CREDENTIALS_TTL: Final = timedelta(minutes=5)

_lock = threading.Lock()
_stores: Final[OrderedDict[object, tuple[Any, object]]] = OrderedDict()


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


def connect(address: str, options: Mapping[str, Any], retry: Mapping[str, object]) -> Any:
    """Return the store for a bucket, a container or a URL; makes no request.

    The same arguments in the same process return the same store, with its open connections, as
    long as the environment variables that configure clouds are the same.
    """
    key = (address, frozen(options), frozen(retry), cloud_environment())
    with _lock:
        if key in _stores:
            _stores.move_to_end(key)
            return _stores[key][0]
    store = _connect(address, options, retry)
    with _lock:
        # The options are kept because the key may have the identities of objects in them.
        store, _ = _stores.setdefault(key, (store, options))
        while len(_stores) > _MAX_STORES:
            _stores.popitem(last=False)
    return store


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


def _connect(address: str, given: Mapping[str, Any], retry: Mapping[str, object]) -> Any:
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
            return stores.HTTPStore(_http(address, client), **options)
        if scheme in {"s3", "s3a"}:
            if _plain_endpoint(options):
                client.setdefault("allow_http", True)
            _add_profile(name, options)
        return stores.from_url(address, **options)
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


def _add_profile(name: str, options: dict[str, Any]) -> None:
    """Take credentials from a profile of the AWS configuration, which obstore does not read."""
    profile = options.pop("profile", None)
    if profile is None:
        given = {*options, *dict(options.get("config") or {})}
        plain = {str(each).lower().removeprefix("aws_") for each in given}
        if plain & {"access_key_id", "credential_provider", "skip_signature"}:
            return
        sources = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
        containers = ("RELATIVE", "FULL")
        if any(os.environ.get(each) for each in sources) or any(
            os.environ.get(f"AWS_CONTAINER_CREDENTIALS_{each}_URI") for each in containers
        ):
            return
        profile = os.environ.get("AWS_PROFILE") or None
    if profile is None and not _has_aws_files():
        return
    session = _aws_session(name, profile)
    if session is None:
        if profile is None:
            return  # an instance may have a role
        raise AuthenticationError(
            f"cannot connect to `{name}`: the profile {profile!r} has no credentials"
        )
    auth = require("obstore.auth.boto3", extra="aws", to="use a profile of the AWS configuration")
    options["credential_provider"] = auth.Boto3CredentialProvider(session, ttl=_CREDENTIALS_TTL)


def _has_aws_files() -> bool:
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    return any(Path(each).expanduser().is_file() for each in files)


def _aws_session(name: str, profile: str | None) -> Any:
    """Return a boto3 session with credentials, or None.

    Without a name, boto3 may be missing. A profile that cannot be read is an error.
    """
    from importlib.util import find_spec

    if profile is None and find_spec("boto3") is None:
        return None
    boto3 = require("boto3", extra="aws", to="use a profile of the AWS configuration")
    exceptions = require("botocore.exceptions", extra="aws", to="use a profile")
    hint = "`aws configure list-profiles` lists the profiles"
    try:
        session = boto3.Session(profile_name=profile)
        return session if session.get_credentials() is not None else None
    except exceptions.ProfileNotFound:
        message = f"cannot connect to `{name}`: no AWS profile {profile!r}"
    except exceptions.BotoCoreError:
        message = f"cannot connect to `{name}`: the AWS profile {profile!r} is not valid"
    raise AuthenticationError(message, hint=hint) from None


def _is_about_options(error: Exception) -> bool:
    # Messages of these errors name an option, never its value.
    return any(sign in str(error) for sign in ("onfiguration key", "Invalid key", "keyword"))


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - one for each process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
