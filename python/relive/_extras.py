"""Optional dependencies: imported on first use; the error for a missing one names its extra."""

import sys
from importlib import import_module
from types import ModuleType

from relive._interrupts import uninterrupted
from relive.errors import MissingExtraError


def require(name: str, *, extra: str, to: str) -> ModuleType:
    """Import module `name`, or raise a `MissingExtraError` that names the extra to install.

    `to` completes the message "`name` is needed to …". A module that is installed but fails to
    import raises its own error. Ctrl-C is raised after the import: an extension module that is
    imported halfway cannot be imported again in this process.
    """
    try:
        if name in sys.modules:
            return import_module(name)
        return uninterrupted(lambda: import_module(name))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(
            f"`{name}` is needed to {to}", hint=f"pip install 'relive[{extra}]'"
        ) from error
