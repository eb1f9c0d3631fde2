"""Locks in forked processes: another thread may hold one while this process is forked.

That thread is not copied, so that the copy of its lock is never released. Workers of PyTorch are
forked from processes with such threads.
"""

import os
import sys
import threading
import weakref
from functools import cached_property
from typing import Any, Final, Protocol


class Inherited(Protocol):
    """An object with locks."""

    def after_fork(self) -> None:
        """Replace them, in a forked process."""


# By identity: objects that are equal, or not hashable, have locks of their own.
_alive: "Final[weakref.WeakValueDictionary[int, Inherited]]" = weakref.WeakValueDictionary()
_LOCKLESS: Final = (3, 12)


def call_after_fork(owner: Inherited) -> None:
    """Call `owner.after_fork()` in every process that is forked while `owner` is alive."""
    _alive[id(owner)] = owner


def _after_fork() -> None:
    for owner in list(_alive.values()):
        owner.after_fork()
    if sys.version_info < _LOCKLESS:
        _unlock_properties()


def _unlock_properties() -> None:
    """Replace the locks of cached properties: Python 3.11 has one for all objects of a class."""
    modules = [module for name, module in sys.modules.items() if name.startswith("relive.")]
    for module in modules:
        for found in list(vars(module).values()):
            if isinstance(found, type) and found.__module__ == module.__name__:
                for each in vars(found).values():
                    if isinstance(each, cached_property):
                        unlocked: Any = each
                        unlocked.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
