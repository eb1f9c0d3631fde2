"""Where the credentials of AWS come from, in the order of its own tools."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relive.errors import AuthenticationError
from relive.store.remote.credentials import Credentials, StoreCredentials, expires_s, renewed
from relive.store.remote.failures import CredentialsError


@dataclass(frozen=True)
class EnvironmentSource:
    """`AWS_ACCESS_KEY_ID` and the other variables, as they are when they are needed."""

    def fetch(self, *, again: bool) -> Credentials:  # noqa: ARG002 - nothing is kept
        """Return the credentials in the environment."""
        key = os.environ.get("AWS_ACCESS_KEY_ID")
        secret = os.environ.get("AWS_SECRET_ACCESS_KEY")
        if not key or not secret:
            raise CredentialsError("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must both be set")
        expires = os.environ.get("AWS_CREDENTIAL_EXPIRATION")
        return Credentials(
            key, secret, os.environ.get("AWS_SESSION_TOKEN") or None, expires_s(expires)
        )


def find_credentials(
    name: str, options: dict[str, Any], before: StoreCredentials | None
) -> StoreCredentials | None:
    """Return where the credentials come from, in the order of the tools of AWS.

    None means that they are in the options, or that requests are not signed. `before` are those of
    the store that this one replaces.
    """
    profile = options.pop("profile", None)
    return _find(name, options, profile) if before is None else before.copy()


def _find(name: str, options: Mapping[str, Any], profile: Any) -> StoreCredentials | None:
    given = _flat(options)

    def setting(name: str) -> str | None:
        value = given.get(name) or os.environ.get(f"AWS_{name.upper()}")
        return str(value) if value else None

    if profile is None:
        anonymous = (setting("skip_signature") or "").lower() in {"1", "true", "yes", "on"}
        if anonymous or given.keys() & {"access_key_id", "credential_provider"}:
            return None
        if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_SECRET_ACCESS_KEY"):
            return StoreCredentials(renewed(EnvironmentSource()), {})
    # Only now: these import what makes requests, which takes 10 ms.
    from relive.store.remote.credential_services import (
        NoSource,
        container_source,
        instance_source,
        web_identity_source,
    )
    from relive.store.remote.profiles import ProfileSource, has_profiles

    if profile is not None or has_profiles():
        chosen = ProfileSource(profile)
        config = chosen.open(name)
        if config is not None:
            return StoreCredentials(renewed(chosen), config)
        if profile is not None:
            raise AuthenticationError(
                f"cannot connect to `{name}`: the profile {profile!r} has no credentials"
            )
    finders = (web_identity_source, container_source, instance_source)
    sources = (source for find in finders if (source := find(setting)))
    return StoreCredentials(renewed(next(sources, NoSource())), {})


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options and those in `config` by their short names, such as `region`."""
    given = {**dict(options.get("config") or {}), **options}
    return {str(name).lower().removeprefix("aws_"): value for name, value in given.items()}
