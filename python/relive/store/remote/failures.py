"""Errors of obstore as errors of relive, by HTTP status and by the error code of the store.

obstore's errors contain whole URLs, and a URL may be signed; the body of a response may contain
anything. Their text is therefore read but never passed on, neither in a message nor as a cause.
"""

import re
from typing import Final, NamedTuple

from relive._extras import require
from relive.errors import (
    AccessDeniedError,
    AuthenticationError,
    InvalidError,
    NotFoundError,
    OfflineError,
    ReliveError,
    StorageError,
    UnsupportedError,
)

_TEMPORARY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_GONE: Final = frozenset({404, 410})
_DENIED: Final = frozenset({401, 403, 407})

_REJECTED: Final = frozenset(
    {
        "AuthenticationFailed",
        "AuthorizationHeaderMalformed",
        "InvalidAccessKeyId",
        "InvalidAuthenticationInfo",
        "InvalidSecurity",
        "InvalidToken",
        "InvalidTokenId",
        "NoAuthenticationInformation",
        "NotSignedUp",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_EXPIRED: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
)
_SSO: Final = ("SSOTokenLoadError", "TokenRetrievalError", "UnauthorizedSSOTokenError")
_SKEWED: Final = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture"})
_BUSY: Final = frozenset({"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
_FORBIDDEN: Final = frozenset({"AccessDenied"})
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "AccountNotFound"})

# The name of the class is in the text if obstore has asked for credentials.
_TEMPORARY_CREDENTIALS: Final = "TemporaryCredentialsError"

_OFFLINE: Final = (
    ("dns error", "the host name is unknown"),
    ("failed to lookup address", "the host name is unknown"),
    ("ConnectionRefused", "connection refused"),
    ("NetworkUnreachable", "the network is unreachable"),
    ("HostUnreachable", "the host is unreachable"),
    ("Timeout", "the server did not respond in time"),
    ("TimedOut", "the server did not respond in time"),
)
_CUT_OFF: Final = (
    ("IncompleteBody", "the response was cut off"),
    ("IncompleteMessage", "the connection was lost"),
    ("ConnectionReset", "the connection was lost"),
    ("ConnectionAborted", "the connection was lost"),
    ("BrokenPipe", "the connection was lost"),
    ("UnexpectedEof", "the connection was lost"),
    ("ChannelClosed", "the connection was lost"),
    ("SendRequest", "the connection was lost"),
)
_OTHER: Final = (
    ("certificate", "the certificate of the server is not trusted"),
    ("Unexpected", "the server returned a range that was not requested"),
    ("CONTENT_RANGE", "the response does not name its range"),
)


class BucketNotFoundError(NotFoundError):
    """The bucket or container does not exist, and so neither does any object in it."""


class RefusedRangeError(StorageError):
    """The server reports that the range is outside of the object."""


class CredentialsError(Exception):
    """There are no credentials; `reason` and `hint` are for users and have no secret."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class TemporaryCredentialsError(CredentialsError):
    """There are no credentials now, but there may be some later."""


class Failure(NamedTuple):
    """What is known about a failed request."""

    status: int | None
    code: str
    text: str
    """May contain secrets."""

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        if self.status is not None:
            return self.status in _TEMPORARY
        if self.code in _BUSY:
            return True
        if "certificate" in self.text:
            return False
        network = ("error sending request", "error decoding response body", "error reading a body")
        signs = [sign for sign, _ in (*_OFFLINE, *_CUT_OFF)]
        return any(sign in self.text for sign in (*network, *signs, _TEMPORARY_CREDENTIALS))

    @property
    def is_refusal(self) -> bool:
        """Whether the server has refused the credentials, so that others may be accepted."""
        return self.code in _EXPIRED | _REJECTED or self.status == 401  # noqa: PLR2004


def failures() -> tuple[type[Exception], ...]:
    """Return the classes of the errors of requests: obstore's, and those about credentials."""
    exceptions = require("obstore.exceptions", extra="remote", to="read remote files")
    return (exceptions.BaseError, OSError, ValueError, CredentialsError)


def is_bucket_missing(error: Exception) -> bool:
    """Return whether the bucket, not only the object, does not exist."""
    return inspect(error).code in _NO_BUCKET


def inspect(error: Exception) -> Failure:
    """Return what obstore's error says about the request."""
    if isinstance(error, CredentialsError):
        return Failure(None, "", type(error).__name__)
    text = str(error)
    status = re.search(r"status code: (\d{3})", text)
    code = (
        re.search(r"<Code>\s*(\w{1,60})\s*</Code>", text)
        or re.search(r"\"code\\?\": ?\\?\"(\w{1,60})\\?\"", text)
        # One of many objects was not deleted: the response itself has the status 200.
        or re.search(r"DeleteFailed \{\s*path: [^\n]*\n\s*code: \"(\w{1,60})\"", text)
    )
    return Failure(int(status[1]) if status else None, code[1] if code else "", text)


def translate(error: Exception, name: str, uri: str, verb: str = "read") -> ReliveError:  # noqa: PLR0911 - one line per case
    """Return the error of relive for one of obstore; `name` is the object's, without secrets."""
    exceptions = require("obstore.exceptions", extra="remote", to="read remote files")
    status, code, text = found = inspect(error)
    cannot = f"cannot {verb} `{name}`"
    if denial := _denial(error, found, cannot, uri):
        return denial
    if code in _NO_BUCKET:
        return BucketNotFoundError(f"{cannot}: the bucket does not exist", hint="check the address")
    if isinstance(error, FileNotFoundError) or status in _GONE:
        return NotFoundError(f"`{name}` does not exist")
    if isinstance(error, exceptions.UnauthenticatedError):  # a profile that cannot be used
        return AuthenticationError(
            f"{cannot}: the credentials could not be obtained", hint=credentials_hint(uri)
        )
    is_denied = isinstance(error, exceptions.PermissionDeniedError) or status in _DENIED
    if is_denied or code in _FORBIDDEN:
        shown = "" if status is None else f" (HTTP status {status})"
        return AccessDeniedError(f"{cannot}: access is denied{shown}", hint=_permission_hint(uri))
    if isinstance(error, exceptions.NotSupportedError):
        return UnsupportedError(
            f"{cannot}: the server does not support range requests",
            hint="download it, or use a server that supports range requests, such as nginx",
        )
    if isinstance(error, exceptions.InvalidPathError) or "Could not parse path" in text:
        return InvalidError(f"`{name}` is not a valid object name")
    if status == 416:  # noqa: PLR2004 - Range Not Satisfiable
        return RefusedRangeError(f"{cannot}: HTTP status {status}")
    if status is not None:
        return StorageError(f"{cannot}: HTTP status {status}")
    return _connection_error(text, cannot)


def credentials_hint(uri: str) -> str:
    """Return how credentials for `uri` are given."""
    scheme = uri.partition("://")[0].lower()
    if scheme in {"http", "https"}:
        return "pass a signed URL, or client_options={'default_headers': {'authorization': …}}"
    if scheme == "gs":
        return "set GOOGLE_APPLICATION_CREDENTIALS, or pass skip_signature=True if it is public"
    if scheme not in {"s3", "s3a"}:
        return "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    return (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (with relive[aws]), or"
        " pass skip_signature=True if it is public"
    )


def _permission_hint(uri: str) -> str:
    if uri.partition("://")[0].lower() in {"http", "https"}:
        return credentials_hint(uri)
    return "use other credentials, or ask the owner of the bucket for the permission"


def _denial(error: Exception, found: Failure, cannot: str, uri: str) -> ReliveError | None:
    status, code, text = found
    hint = credentials_hint(uri)
    if isinstance(error, CredentialsError):
        return AuthenticationError(f"{cannot}: {error.reason}", hint=error.hint or hint)
    # Without credentials, obstore asks the metadata server, which exists only in clouds.
    if any(each in text for each in ("169.254.169.254", "169.254.170.2", "metadata.google")):
        return AuthenticationError(f"{cannot}: no credentials were found", hint=hint)
    shown = "" if status is None else f" (HTTP status {status})"
    # boto3 renews the credentials of a profile; its error is part of the text.
    if code in _EXPIRED or any(each in text for each in _SSO):
        return AuthenticationError(
            f"{cannot}: the credentials have expired{shown}",
            hint="renew them, for example with `aws sso login`, or set AWS_SESSION_TOKEN again",
        )
    if code in _SKEWED:
        return AuthenticationError(
            f"{cannot}: the clock of this machine differs from that of the server{shown}",
            hint="set the clock, for example with `timedatectl set-ntp true`",
        )
    if code in _REJECTED or status == 401:  # noqa: PLR2004 - Unauthorized
        return AuthenticationError(f"{cannot}: the credentials were rejected{shown}", hint=hint)
    return None


def _connection_error(text: str, cannot: str) -> ReliveError:
    for reasons, cls in ((_OTHER[:1], StorageError), (_OFFLINE, OfflineError)):
        for sign, reason in reasons:
            if sign in text:
                return cls(f"{cannot}: {reason}")
    for sign, reason in (*_CUT_OFF, *_OTHER):
        if sign in text:
            return StorageError(f"{cannot}: {reason}")
    return StorageError(f"{cannot}: the request failed")
