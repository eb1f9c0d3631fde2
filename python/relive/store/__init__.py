"""Bytes at rest, and the sources over them."""

from relive.store.memory import ArraySource

__all__ = ["ArraySource"]
