"""Services that issue credentials of AWS: of containers, of instances, and for web identities."""

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from relive.store.remote.credentials import Credentials, expires_s
from relive.store.remote.failures import CredentialsError, TemporaryCredentialsError

Setting = Callable[[str], str | None]
"""Returns an option, or the variable of the environment with its name in capitals after `AWS_`."""

_TASK_SERVICE: Final = "http://169.254.170.2"
_INSTANCE_SERVICE: Final = "http://169.254.169.254"
# Besides loopback addresses: the services of ECS and EKS.
_PLAIN_HOSTS: Final = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23"})
# A service of the machine responds at once; that of an instance exists only in the cloud.
_SERVICE_TIMEOUT_S: Final = 2.0
_INSTANCE_TIMEOUT_S: Final = 1.0
_STS_TIMEOUT_S: Final = 10.0
_ATTEMPTS: Final = 3
_MAX_BYTES: Final = 64 << 10
_TEMPORARY: Final = frozenset({408, 429, 500, 502, 503, 504})
_TRUE: Final = frozenset({"1", "true", "yes"})


@dataclass(frozen=True)
class ContainerSource:
    """The credentials of a task (ECS), a pod (EKS), or whatever `AWS_CONTAINER_…` names."""

    url: str
    token: str | None = None
    token_file: str | None = None

    def fetch(self, *, again: bool) -> Credentials:  # noqa: ARG002 - nothing is kept
        """Return what the service issues."""
        what = "the container credentials service"
        _check_container_url(self.url)
        token = _read_token(self.token_file) if self.token_file else self.token
        if token and re.search(r"[\r\n]", token):
            raise CredentialsError("the authorization token of the container has line breaks")
        headers = {"Accept": "application/json", **({"Authorization": token} if token else {})}
        return _issued(_attempts(self.url, headers, what), what)


@dataclass(frozen=True)
class InstanceSource:
    """The role of the instance (EC2), from its metadata service, version 2."""

    url: str = _INSTANCE_SERVICE

    def fetch(self, *, again: bool) -> Credentials:  # noqa: ARG002 - nothing is kept
        """Return the credentials of the role; without a service there are none at all."""
        what = "the instance metadata service"
        base = f"{self.url.rstrip('/')}/latest"
        try:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
            token = _get(f"{base}/api/token", lifetime, what, method="PUT").decode()
        except CredentialsError:  # there is no service, or it is disabled
            raise CredentialsError("no credentials were found") from None
        headers = {"X-aws-ec2-metadata-token": token}
        roles = f"{base}/meta-data/iam/security-credentials/"
        names = _attempts(roles, headers, what).decode().split()
        if not names:
            raise CredentialsError("no credentials were found: the instance has no role")
        return _issued(_attempts(f"{roles}{names[0]}", headers, what), what)


@dataclass(frozen=True)
class WebIdentitySource:
    """A role that is assumed with a token from a file, which something else renews."""

    token_file: str
    role: str
    session: str
    url: str

    def fetch(self, *, again: bool) -> Credentials:  # noqa: ARG002 - nothing is kept
        """Return what the security token service issues for the token."""
        what = "the security token service"
        body = urlencode(
            {
                "Action": "AssumeRoleWithWebIdentity",
                "Version": "2011-06-15",
                "RoleArn": self.role,
                "RoleSessionName": self.session,
                "WebIdentityToken": _read_token(self.token_file),
            }
        )
        data = _attempts(self.url, {}, what, body=body.encode(), timeout_s=_STS_TIMEOUT_S)
        text = data.decode(errors="replace")
        names = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
        found = [re.search(f"<{name}>\\s*([^<]+?)\\s*</{name}>", text) for name in names]
        key, secret, token, expires = (each[1] if each else None for each in found)
        if not key or not secret:
            raise CredentialsError(f"{what} returned no credentials")
        return Credentials(key, secret, token, expires_s(expires))


@dataclass(frozen=True)
class NoSource:
    """No credentials at all."""

    def fetch(self, *, again: bool) -> Credentials:  # noqa: ARG002 - nothing is kept
        """Raise the error."""
        raise CredentialsError("no credentials were found")


def web_identity_source(setting: Setting) -> WebIdentitySource | None:
    """Return the source for a web identity that is configured, if there is one."""
    token_file, role = setting("web_identity_token_file"), setting("role_arn")
    if not token_file or not role:
        return None
    region = setting("region") or setting("default_region") or "us-east-1"
    url = setting("endpoint_url_sts") or f"https://sts.{region}.amazonaws.com"
    return WebIdentitySource(token_file, role, setting("role_session_name") or "relive", url)


def container_source(setting: Setting) -> ContainerSource | None:
    """Return the source for the service that `AWS_CONTAINER_…` names, if there is one."""
    relative = setting("container_credentials_relative_uri")
    full = setting("container_credentials_full_uri")
    token = setting("container_authorization_token")
    token_file = setting("container_authorization_token_file")
    if relative:
        return ContainerSource(f"{_TASK_SERVICE}{relative}", token, token_file)
    return ContainerSource(full, token, token_file) if full else None


def instance_source(setting: Setting) -> InstanceSource | None:
    """Return the source for the role of the instance, unless it is disabled."""
    if (setting("ec2_metadata_disabled") or "").lower() in _TRUE:
        return None
    url = setting("ec2_metadata_service_endpoint") or setting("metadata_endpoint")
    return InstanceSource(url or _INSTANCE_SERVICE)


def _check_container_url(url: str) -> None:
    # The token of the container must not be sent to a host that a variable happens to name.
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or host in _PLAIN_HOSTS or host == "localhost":
        return
    try:
        allowed = parts.scheme == "http" and ip_address(host).is_loopback
    except ValueError:
        allowed = False
    if not allowed:
        raise CredentialsError(
            "the address in AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor local"
        )


def _read_token(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise TemporaryCredentialsError(f"the token file `{path}` cannot be read") from None


def _issued(data: bytes, what: str) -> Credentials:
    """Return credentials from the JSON of a service of a container or instance."""
    try:
        found: Mapping[str, Any] = json.loads(data)
        key, secret = str(found["AccessKeyId"]), str(found["SecretAccessKey"])
        token, expires = found.get("Token"), found.get("Expiration")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CredentialsError(f"{what} returned no credentials") from None
    return Credentials(
        key, secret, str(token) if token else None, expires_s(str(expires) if expires else None)
    )


def _attempts(
    url: str,
    headers: Mapping[str, str],
    what: str,
    *,
    body: bytes | None = None,
    timeout_s: float = _SERVICE_TIMEOUT_S,
) -> bytes:
    for left in reversed(range(_ATTEMPTS)):
        try:
            return _get(url, headers, what, body=body, timeout_s=timeout_s)
        except TemporaryCredentialsError:
            if not left:
                raise
    raise AssertionError  # for the type checker


def _get(
    url: str,
    headers: Mapping[str, str],
    what: str,
    *,
    method: str | None = None,
    body: bytes | None = None,
    timeout_s: float = _INSTANCE_TIMEOUT_S,
) -> bytes:
    # Services of the machine are not reached through a proxy; others may be.
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if body is None:
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(  # noqa: S310 - the address is configured
            url, body, dict(headers), method=method
        )
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as response:
            data: bytes = response.read(_MAX_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        temporary = error.code in _TEMPORARY
        cls = TemporaryCredentialsError if temporary else CredentialsError
        raise cls(f"{what} returned HTTP status {error.code}") from None
    except (OSError, http.client.HTTPException):
        raise TemporaryCredentialsError(f"{what} cannot be reached") from None
    except ValueError:
        raise CredentialsError(f"the address of {what} is not valid") from None
    return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Raises the status of a redirect: the token would be sent to another host."""

    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect."""
