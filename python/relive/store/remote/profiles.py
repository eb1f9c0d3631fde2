"""Credentials from profiles of the AWS configuration, SSO included, through botocore."""

import os
import threading
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from relive._extras import require
from relive.errors import AuthenticationError
from relive.store.remote.credentials import Credentials
from relive.store.remote.failures import CredentialsError, TemporaryCredentialsError

_PURPOSE: Final = "use a profile of the AWS configuration"
_LOGIN: Final = frozenset(
    {
        "LoginRefreshRequired",
        "LoginTokenLoadError",
        "PendingAuthorizationExpiredError",
        "SSOError",
        "SSOTokenLoadError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)


class ProfileSource:
    """The credentials of a profile; None is the default one, or `AWS_PROFILE`."""

    def __init__(self, profile: str | None) -> None:
        self._profile = profile
        self._lock = threading.Lock()
        self._session: Any = None
        self._credentials: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProfileSource) and self._profile == other._profile

    def __hash__(self) -> int:
        return hash((ProfileSource, self._profile))

    def open(self, name: str) -> dict[str, str] | None:
        """Return the settings of the profile, or None if it has no credentials.

        A profile that does not exist or is not valid is an `AuthenticationError`; `name` is that
        of the bucket.
        """
        exceptions = require("botocore.exceptions", extra="aws", to=_PURPOSE)
        shown = self._profile or os.environ.get("AWS_PROFILE") or "default"
        try:
            with self._lock:
                self._load()
            if self._credentials is None:
                return None
            region = self._session.get_config_variable("region")
            return {"region": str(region)} if region else {}
        except exceptions.ProfileNotFound:
            message = f"cannot connect to `{name}`: no AWS profile {shown!r}"
        except exceptions.BotoCoreError:
            message = f"cannot connect to `{name}`: the AWS profile {shown!r} is not valid"
        raise AuthenticationError(
            message, hint="`aws configure list-profiles` lists the profiles"
        ) from None

    def fetch(self, *, again: bool) -> Credentials:
        """Return the credentials, which botocore renews; read the files anew if `again`."""
        exceptions = require("botocore.exceptions", extra="aws", to=_PURPOSE)
        try:
            with self._lock:
                if again or self._credentials is None:
                    self._load()
                credentials = self._credentials
            if credentials is None:
                raise CredentialsError("the AWS profile has no credentials")
            found = credentials.get_frozen_credentials()
        except (exceptions.BotoCoreError, exceptions.ClientError, OSError) as error:
            raise _translated(error) from None
        # Only credentials that botocore renews have it.
        expires = getattr(credentials, "_expiry_time", None)
        expires_s = expires.timestamp() if isinstance(expires, datetime) else None
        return Credentials(found.access_key, found.secret_key, found.token or None, expires_s)

    def _load(self) -> None:
        session = require("botocore.session", extra="aws", to=_PURPOSE).Session(
            profile=self._profile
        )
        # relive asks the services of containers and instances itself, when it makes a request.
        chain = session.get_component("credential_provider")
        for service in ("container-role", "iam-role"):
            chain.remove(service)
        self._credentials = session.get_credentials()
        self._session = session


def has_profiles() -> bool:
    """Return whether there may be a profile to use: it is named, or there are files and botocore.

    A profile that is named and cannot be read for lack of botocore is a `MissingExtraError`.
    """
    if os.environ.get("AWS_PROFILE"):
        return True
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    return any(Path(each).expanduser().is_file() for each in files) and bool(find_spec("botocore"))


def _translated(error: Exception) -> CredentialsError:
    """Return the error without its text, which may have parts of a configuration."""
    name = type(error).__name__
    if name in _LOGIN:
        return CredentialsError("the credentials have expired", hint="log in with `aws sso login`")
    network = ("HTTPClientError", "ConnectionError", "EndpointConnectionError", "MetadataRetrieval")
    if any(each.__name__.startswith(network) for each in type(error).__mro__):
        return TemporaryCredentialsError("the service that issues the credentials is unreachable")
    return CredentialsError("the credentials could not be obtained")
