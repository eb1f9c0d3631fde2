"""Credentials of AWS that are renewed before they expire, and again when a server refuses them.

Credentials are named, never passed between processes: each process finds them by itself, from the
same environment, files or service, and renews them for itself.
"""

import os
import threading
import time
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

from relive.store.config import cloud_environment
from relive.store.remote.failures import CredentialsError, TemporaryCredentialsError

# Credentials are renewed when so much time is left, or half of what they were valid for.
_RENEW_BEFORE_S: Final = 300.0
# The shortest time between two renewals of credentials that are still valid.
_MIN_PAUSE_S: Final = 1.0


class Credentials(NamedTuple):
    """A key and its secret; `expires_s` is in seconds since 1970, None if that is not known."""

    access_key_id: str
    secret_access_key: str
    token: str | None = None
    expires_s: float | None = None

    def is_same(self, other: "Credentials | None") -> bool:
        """Return whether a server cannot distinguish them; the time may differ."""
        return other is not None and self[:3] == other[:3]

    def __repr__(self) -> str:
        return "Credentials(…)"


def expires_s(text: str | None) -> float | None:
    """Return a time in ISO 8601 as seconds since 1970; None if it is not one."""
    try:
        found = datetime.fromisoformat((text or "").strip())
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


class Source(Protocol):
    """Where credentials come from. Equal sources return the same credentials."""

    def fetch(self, *, again: bool) -> Credentials:
        """Return credentials, or raise a `CredentialsError`.

        With `again`, a server has refused the last ones, and nothing that was kept may be used.
        """


class RenewedCredentials:
    """The credentials of a source, fetched when they are first used. Thread-safe.

    Threads that find them about to expire do not wait: one renews them, the others go on with
    those that are still valid. A renewal that fails is repeated, and is an error only when they
    have expired.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._found: Credentials | None = None
        self._renew_s = 0.0
        self._failed: tuple[float, CredentialsError] | None = None

    @property
    def renew_s(self) -> float:
        """The time from which on they are renewed."""
        return self._renew_s

    def current(self) -> Credentials:
        """Return valid credentials, or raise a `CredentialsError`."""
        found, begin_s = self._found, time.time()
        if found is not None and begin_s < self._renew_s:
            return found
        must = found is None or (found.expires_s is not None and begin_s >= found.expires_s)
        if not self._lock.acquire(blocking=must):
            assert found is not None  # noqa: S101 - for the type checker
            return found
        try:
            if self._found is not None and self._found is not found:
                return self._found  # of another thread, while this one waited
            if self._failed is not None and self._failed[0] > begin_s:
                raise self._failed[1]
            try:
                return self._keep(self._source.fetch(again=False))
            except CredentialsError as error:
                if found is not None and not must:
                    self._renew_s = time.time() + _MIN_PAUSE_S
                    return found
                raise self._remember(error) from None
        finally:
            self._lock.release()

    def renew(self, refused: Credentials | None) -> bool:
        """Return whether there are other credentials than those that a server has refused."""
        with self._lock:
            if self._found is not None and not self._found.is_same(refused):
                return True
            try:
                found = self._source.fetch(again=True)
            except CredentialsError as error:
                raise self._remember(error) from None
            if found.is_same(refused):
                return False
            self._keep(found)
            return True

    def _keep(self, found: Credentials) -> Credentials:
        now = time.time()
        left = float("inf") if found.expires_s is None else max(0.0, found.expires_s - now)
        # If the clock is wrong, they may seem to have expired already, and are used all the same.
        self._renew_s = now + max(left / 2, left - _RENEW_BEFORE_S, _MIN_PAUSE_S)
        self._found, self._failed = found, None
        return found

    def _remember(self, error: CredentialsError) -> CredentialsError:
        if self._found is not None and not isinstance(error, TemporaryCredentialsError):
            # What has worked before is expected to work again.
            error = TemporaryCredentialsError(error.reason, error.hint)
        self._failed = time.time(), error
        return error


class StoreCredentials:
    """Calls `RenewedCredentials` for one of obstore's stores, which keeps what is returned."""

    # obstore asks again when `expires_at` is reached.
    refresh_threshold = timedelta(0)

    def __init__(self, renewed: RenewedCredentials, config: Mapping[str, str]) -> None:
        self.config = dict(config)
        """Options that obstore adds to those of the store."""
        self.renewed = renewed
        self.used: Credentials | None = None
        """What the store has."""

    def copy(self) -> "StoreCredentials":
        """Return the same for another store."""
        return StoreCredentials(self.renewed, self.config)

    def __call__(self) -> dict[str, Any]:
        """Return credentials in the form of obstore."""
        found = self.renewed.current()
        self.used = found
        expires_at = None
        if found.expires_s is not None:
            again_s = max(self.renewed.renew_s, time.time() + _MIN_PAUSE_S)
            expires_at = datetime.fromtimestamp(again_s, UTC)
        return {
            "access_key_id": found.access_key_id,
            "secret_access_key": found.secret_access_key,
            "token": found.token,
            "expires_at": expires_at,
        }


_lock = threading.Lock()
_shared: "weakref.WeakValueDictionary[object, RenewedCredentials]" = weakref.WeakValueDictionary()


def renewed(source: Source) -> RenewedCredentials:
    """Return the credentials of a source, which all stores of this process share."""
    key = source, cloud_environment()
    with _lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = RenewedCredentials(source)
        return found


def _after_fork() -> None:
    global _lock, _shared
    _lock, _shared = threading.Lock(), weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_after_fork)
