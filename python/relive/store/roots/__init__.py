"""Roots: objects by key in a directory, in memory, or in an object store."""

from relive.store.remote.ranges import Data, KeyRange
from relive.store.roots.open import open_root
from relive.store.roots.root import Body, Check, Entry, Root, Stored

__all__ = ["Body", "Check", "Data", "Entry", "KeyRange", "Root", "Stored", "open_root"]
