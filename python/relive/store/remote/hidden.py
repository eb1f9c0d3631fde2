"""Secrets that were passed as options or in an address, and how pickles do without them.

A pickle may be written to a file, so that it has only the name of a secret. The process that made
it and those forked from it know the secret by that name; any other process gets the options
without it. `multiprocessing` pickles for a process of the same program, through a pipe that only
the two of them have: there the secret is sent along.
"""

import os
import re
import threading
from collections.abc import Callable, Mapping
from multiprocessing.reduction import ForkingPickler
from secrets import token_hex
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit, urlunsplit

LEFT_OUT: Final = "credentials_left_out"
"""An option that stands for those that were left out."""

_T = TypeVar("_T")

_SECRET: Final = re.compile(
    r"secret|password|token|bearer|sas_|^access_key|access_key$|master_key|account_key|service_account_key|key_base64"
)
_PLACE: Final = re.compile(r"_(file|path|uri|url|endpoint)$")

_lock = threading.Lock()
_values: Final[dict[str, object]] = {}


def is_secret(option: str) -> bool:
    """Return whether the value of an option is secret, or belongs to one that is."""
    name = option.lower()
    return bool(_SECRET.search(name)) and not _PLACE.search(name)


def has_secret(options: Mapping[str, Any]) -> bool:
    """Return whether some option is secret."""
    client: Mapping[str, Any] = options.get("client_options") or {}
    names = [*options, *(options.get("config") or {})]
    return (
        any(is_secret(str(name)) for name in names)
        or bool(client.get("default_headers"))
        or "@" in str(client.get("proxy_url") or "")
    )


def hidden_options(options: Mapping[str, Any]) -> object:
    """Return options for `__reduce__`: as they are, or without secrets if there are some."""
    if not has_secret(options):
        return dict(options)
    public: dict[str, Any] = {
        name: value for name, value in options.items() if not is_secret(str(name))
    }
    if "config" in public:
        config = dict(public["config"] or {}).items()
        public["config"] = {name: value for name, value in config if not is_secret(str(name))}
    if "client_options" in public:
        client = dict(public["client_options"] or {})
        for name in ("default_headers", "proxy_url"):
            client.pop(name, None)
        public["client_options"] = client
    return Hidden(dict(options), {**public, LEFT_OUT: True})


def hidden_address(address: str) -> object:
    """Return an address for `__reduce__`: as it is, or without user, password and query."""
    if not address.lower().startswith("http"):
        return address
    parts = urlsplit(address)
    public = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    return address if public == parts else Hidden(address, urlunsplit(public))


class Hidden(Generic[_T]):
    """Pickled instead of a value that is or has a secret; `public` is the value without it."""

    def __init__(self, value: _T, public: _T) -> None:
        self.value = value
        self._public = public

    def __reduce__(self) -> tuple[object, ...]:
        return _find, (_name_of(self.value), self._public)

    def __repr__(self) -> str:
        return f"Hidden({self._public!r})"


def _reduce_for_process(hidden: Hidden[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _keep, (_name_of(hidden.value), hidden.value)


ForkingPickler.register(Hidden, _reduce_for_process)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - one for each process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _name_of(value: object) -> str:
    with _lock:
        for name, known in _values.items():
            if known == value:
                return name
        name = token_hex(8)
        _values[name] = value
        return name


def _keep(name: str, value: _T) -> _T:
    with _lock:
        _values[name] = value
    return value


def _find(name: str, public: _T) -> object:
    with _lock:
        return _values.get(name, public)
