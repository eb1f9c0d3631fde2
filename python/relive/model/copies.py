"""Copies of what JSON holds: who is given one may change it, and nobody else sees it."""

from typing import Any, Final

__all__ = ["copied"]

_NESTED: Final = frozenset({dict, list})


def copied(value: Any) -> Any:
    """Give a value with dicts and lists of its own, at any depth; all else in it is shared."""
    if type(value) is dict:
        return {key: copied(item) if type(item) in _NESTED else item for key, item in value.items()}
    if type(value) is list:
        return [copied(item) if type(item) in _NESTED else item for item in value]
    return value
