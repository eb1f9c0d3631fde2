"""Optional dependencies: imported when they are needed, and named when they are missing."""

import sys
from importlib import import_module
from types import ModuleType

from relive._interrupts import undisturbed
from relive.errors import MissingExtraError

__all__ = ["require"]


def require(name: str, *, extra: str, to: str) -> ModuleType:
    """Import module `name`, or say which extra of relive to install `to` do what was asked.

    A module that is there and fails while it is imported raises its own error: installing
    the extra again would not help. Ctrl-C is raised when it is imported: an extension that is
    there by half could never be imported again in this process.
    """
    try:
        if name in sys.modules:
            return import_module(name)
        return undisturbed(lambda: import_module(name))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(
            f"`{name}` is needed to {to}", hint=f"pip install 'relive[{extra}]'"
        ) from error
