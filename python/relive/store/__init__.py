"""Bytes at rest, and the sources over them."""

from relive.store.arrays import ArraySource

__all__ = ["ArraySource"]
