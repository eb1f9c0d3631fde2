"""Roots: objects by key in a directory, in memory, or in an object store."""

from relive.store.roots.open import open_root
from relive.store.roots.root import Body, Check, Data, Entry, Root, Stored

__all__ = ["Body", "Check", "Data", "Entry", "Root", "Stored", "open_root"]
