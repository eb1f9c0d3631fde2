"""Settings that are read from the environment, all of them here.

| variable | default | meaning |
|---|---|---|
| `RELIVE_ROOT` | `root` in the user's data directory | address of the root for `root=None` |
| `RELIVE_CACHE_DIR` | `relive` in the user's cache directory | what can be computed or read again |
| `RELIVE_CACHE_LIMIT` | 100GB | how large the cache of remote data may become |
| `RELIVE_CACHE_FREE` | 5GB | what the cache leaves free on its disk |
| `RELIVE_RETRY_S` | 600 | seconds for which reads of an open dataset are retried |
| `XDG_DATA_HOME` | `~/.local/share` | the user's data directory, outside of macOS |
| `XDG_CACHE_HOME` | `~/.cache` | the user's cache directory, outside of macOS |

Credentials of object stores are read by the library of each store.
"""

import math
import os
import re
import sys
from pathlib import Path
from typing import Final

from relive.errors import InvalidError
from relive.store.paths import absolute_path

OPEN_RETRY_S: Final = 60.0
"""Seconds for which requests that open something are retried."""

_READ_RETRY_S: Final = 600.0
_CACHE_LIMIT: Final = "100GB"
_CACHE_FREE: Final = "5GB"
_SIZE: Final = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))? ?(?:([KMGTP]?)(i?)B?)", re.IGNORECASE)
# Variables of these prefixes select the credentials, region and endpoint of object stores.
_CLOUDS: Final = ("AWS_", "AZURE_", "GOOGLE_")


def default_root() -> str:
    """Return the address of the root that `root=None` opens."""
    return os.environ.get("RELIVE_ROOT") or os.fspath(data_directory() / "root")


def data_directory() -> Path:
    """Return the directory in which relive keeps the data of this user. It may not exist."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "relive"
    return _xdg("XDG_DATA_HOME", ".local/share") / "relive"


def cache_directory() -> Path:
    """Return the directory of what can be computed or read again. It may not exist."""
    given = os.environ.get("RELIVE_CACHE_DIR")
    if given:
        return Path(absolute_path(given, "RELIVE_CACHE_DIR"))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "relive"
    return _xdg("XDG_CACHE_HOME", ".cache") / "relive"


def cache_limit() -> int:
    """Return how many bytes the cache may allocate; 0 keeps nothing."""
    return _size("RELIVE_CACHE_LIMIT", _CACHE_LIMIT)


def cache_free() -> int:
    """Return how many bytes the cache leaves free on its disk."""
    return _size("RELIVE_CACHE_FREE", _CACHE_FREE)


def parse_size(what: str, value: object) -> int:
    """Return a number of bytes, given as an integer or as in `200GB`, `1.5 TiB` or `4096`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise InvalidError(
            f"{what} must be a number of bytes, got {value!r}",
            hint="write it as in 200GB, 1.5TiB or 4096",
        )
    whole, fraction, unit, binary = found.groups()
    factor: int = (1024 if binary else 1000) ** " KMGTP".index(unit.upper() or " ")
    parts: int = 10 ** len(fraction or "")
    return int(whole) * factor + int(fraction or 0) * factor // parts


def read_retry_s() -> float:
    """Return how many seconds reads of an open dataset are retried."""
    text = os.environ.get("RELIVE_RETRY_S")
    if not text:
        return _READ_RETRY_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidError(
            f"`RELIVE_RETRY_S` must be a number of seconds, got {text!r}",
            hint="unset it for the default of 600 seconds",
        )
    return seconds


def cloud_environment() -> tuple[tuple[str, str], ...]:
    """Return the variables that configure object stores; a client is valid for one set of them."""
    return tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(_CLOUDS)))


def _size(variable: str, default: str) -> int:
    return parse_size(f"`{variable}`", os.environ.get(variable) or default)


def _xdg(variable: str, folder: str) -> Path:
    given = os.environ.get(variable, "")
    # A relative path is invalid by the XDG specification, and must be ignored.
    return Path(given) if given.startswith("/") else Path.home() / folder
