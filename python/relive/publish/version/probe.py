"""Checks that a root obeys conditional puts, before a publisher relies on them.

Some stores ignore the condition and overwrite: then two publishers would lose each other's work.
"""

import contextlib
import secrets
from typing import Any, Final

from relive.errors import (
    AlreadyExistsError,
    ConflictError,
    ReadOnlyError,
    ReliveError,
    UnsupportedError,
)
from relive.publish.version.canonical import encode
from relive.publish.version.document import FORMAT, as_flag, as_object, parse_document
from relive.publish.version.listing import now
from relive.publish.version.names import ROOT_KEY
from relive.store.roots.root import Root

_FOLDER: Final = "probes"
_HINT: Final = (
    "publish with lock=True (--lock) to use a lock object instead, if no other program publishes "
    "to this root without it"
)


def were_verified(root: Root) -> bool:
    """Return whether `relive.json` records that conditional puts work; one request."""
    (stored,) = root.get_many([ROOT_KEY])
    return stored is not None and is_verified(stored.data, root)


def is_verified(data: bytes, root: Root) -> bool:
    """Return whether the content of `relive.json` records that conditional puts work."""

    def parse(tree: Any) -> bool:
        puts = as_object(tree.get("conditional_puts", {}), "conditional_puts")
        return as_flag(puts.get("verified", False), "conditional_puts.verified")

    return parse_document(data, root.uri(ROOT_KEY), parse)


def verify(root: Root) -> None:
    """Create an object twice and replace one with a stale tag; record that both were refused.

    An `UnsupportedError` if the store did either.
    """
    if root.is_read_only:
        raise ReadOnlyError(f"the root `{root.name}` is read-only", hint="publish to another root")
    problem = find_problem(root)
    if problem is not None:
        raise UnsupportedError(f"the root `{root.name}` {problem}", hint=_HINT)
    tree: dict[str, Any] = {
        "format": FORMAT,
        "conditional_puts": {"verified": True, "time": now()},
    }
    root.put(ROOT_KEY, encode(tree), immutable=False)


def find_problem(root: Root) -> str | None:
    """Return what a root does wrong with conditional puts, None if it obeys them."""
    key = f"{_FOLDER}/{secrets.token_hex(16)}"
    try:
        found = _problem(root, key)
    except BaseException:
        with contextlib.suppress(ReliveError):  # the first error is the cause
            root.delete([key])
        raise
    root.delete([key])
    return found


def _problem(root: Root, key: str) -> str | None:
    first, second = b"first", b"second one"
    tag = _written(root, key, first, None)
    try:
        root.create(key, second)
    except AlreadyExistsError:
        pass
    else:
        return "replaces an object that may only be created"
    changed = _written(root, key, second, tag)
    if changed == tag:
        return "does not change the tag of an object that changes"
    try:
        root.replace(key, first, tag)
    except ConflictError:
        pass
    else:
        return "replaces an object that has changed meanwhile"
    return None if root.get(key) == (second, changed) else "does not return what was written"


def _written(root: Root, key: str, data: bytes, tag: str | None) -> str:
    """Create or replace an object; return its tag."""
    try:
        return root.create(key, data) if tag is None else root.replace(key, data, tag)
    except (AlreadyExistsError, ConflictError):
        # The response may have been lost, and the repeated request was refused. If it was not,
        # the caller finds other content.
        return root.get(key).tag
