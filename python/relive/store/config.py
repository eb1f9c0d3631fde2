"""Settings that are read from the environment, all of them here.

| variable | default | meaning |
|---|---|---|
| `RELIVE_ROOT` | `root` in the user's data directory | address of the root for `root=None` |
| `RELIVE_CACHE_DIR` | `relive` in the user's cache directory | what can be computed or read again |
| `RELIVE_RETRY_S` | 600 | seconds for which reads of an open dataset are retried |
| `XDG_DATA_HOME` | `~/.local/share` | the user's data directory, outside of macOS |
| `XDG_CACHE_HOME` | `~/.cache` | the user's cache directory, outside of macOS |

Credentials of object stores are read by the library of each store.
"""

import math
import os
import sys
from pathlib import Path
from typing import Final

from relive.errors import InvalidError

OPEN_RETRY_S: Final = 60.0
"""Seconds for which requests that open something are retried."""

_READ_RETRY_S: Final = 600.0
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
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "relive"
    return _xdg("XDG_CACHE_HOME", ".cache") / "relive"


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


def _xdg(variable: str, folder: str) -> Path:
    given = os.environ.get(variable, "")
    # A relative path is invalid by the XDG specification, and must be ignored.
    return Path(given) if given.startswith("/") else Path.home() / folder
