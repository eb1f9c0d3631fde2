"""Canonical JSON: one spelling of a document, so that its SHA-256 identifies it.

As RFC 8785 writes it, but without floats and with keys sorted by their UTF-8 bytes.
"""

import json
from typing import Any, Final

from relive.errors import InvalidError, InvalidTypeError, ManifestCorruptedError

MAX_INTEGER: Final = (1 << 53) - 1
MAX_DEPTH: Final = 128
MAX_BYTES: Final = 16 << 20
_MAX_DIGITS: Final = 17
_SHOWN: Final = 40


class _Wrong:
    """Something that is JSON but may not be in a document, in the place where it was."""

    def __init__(self, why: str) -> None:
        self.why = why


class _Violation(Exception):  # noqa: N818 - becomes one of several errors
    """What is wrong, and where: the path is put together while it is propagated."""

    def __init__(self, why: str, *, is_type: bool = False) -> None:
        super().__init__(why)
        self.is_type = is_type
        self.steps: list[str | int] = []

    def __str__(self) -> str:
        path = ""
        for step in reversed(self.steps):
            path = f"{path}[{step}]" if isinstance(step, int) else child(path, f"{step}")
        return f"{self.args[0]} at `{path}`" if path else f"{self.args[0]}"


def encode(value: object) -> bytes:
    """Return the only canonical form of a document of dicts, lists, strings, ints, bools, None."""
    try:
        _check(value, 0)
    except _Violation as error:
        cls = InvalidTypeError if error.is_type else InvalidError
        raise cls(f"not a document: {error}") from None
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode()


def decode(data: bytes, what: str, *, max_bytes: int = MAX_BYTES) -> Any:
    """Parse a document; `what` is named in the `ManifestCorruptedError` if it is malformed.

    Duplicate keys, floats, integers of 2^53 and more, lone surrogates, deep nesting and more than
    `max_bytes` are refused. The spelling need not be canonical.
    """
    if len(data) > max_bytes:
        raise ManifestCorruptedError(f"{what}: {len(data)} bytes, expected at most {max_bytes}")
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=lambda text: _Wrong(f"{text[:_SHOWN]} is not an integer"),
            parse_constant=lambda text: _Wrong(f"{text} is not an integer"),
        )
        _check(value, 0)
    except UnicodeDecodeError as error:
        message = f"{what}: not UTF-8 at byte {error.start}"
        raise ManifestCorruptedError(message) from None
    except json.JSONDecodeError as error:
        raise ManifestCorruptedError(f"{what}: not JSON: {error}") from None
    except RecursionError:
        raise ManifestCorruptedError(f"{what}: nested too deeply") from None
    except _Violation as error:
        raise ManifestCorruptedError(f"{what}: {error}") from None
    return value


def child(where: str, key: str) -> str:
    """Return the path of a value in an object at the path `where`: `tables.main`."""
    shown = key if key.isidentifier() or key.replace("-", "_").isidentifier() else ascii(key)
    return f"{where}.{shown}" if where else shown


def _object(pairs: list[tuple[str, Any]]) -> Any:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            return _Wrong(f"duplicate key {_shown(key)}")
        seen.add(key)
    raise AssertionError


def _integer(text: str) -> Any:
    if text == "-0":
        return _Wrong("-0 is not an integer")
    # Thousands of digits would take quadratic time.
    return int(text) if len(text) <= _MAX_DIGITS else _Wrong(f"{text[:_SHOWN]} is too large")


def _check(value: Any, depth: int) -> None:
    """Raise a `_Violation` at the first value that may not be in a document."""
    kind = type(value)
    if kind is str:
        _check_text(value)
    elif kind is int:
        if abs(value) > MAX_INTEGER:
            raise _Violation(f"{value} is too large")
    elif kind is dict or kind is list:
        _check_each(value, kind is dict, depth)
    elif kind is _Wrong:
        raise _Violation(value.why)
    elif not (value is None or kind is bool):
        raise _Violation(f"{value!r:.{_SHOWN}} is not allowed", is_type=True)


def _check_each(values: Any, is_object: bool, depth: int) -> None:  # noqa: FBT001 - 10,000 calls
    if depth >= MAX_DEPTH:
        raise _Violation(f"nested more than {MAX_DEPTH} levels")
    step: Any = None
    try:
        for step, each in values.items() if is_object else enumerate(values):
            if is_object:
                _check_key(step)
            _check(each, depth + 1)
    except _Violation as error:
        error.steps.append(step)
        raise


def _check_key(key: object) -> None:
    if type(key) is not str:
        raise _Violation(f"key {key!r} is not a string", is_type=True)
    _check_text(key)


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Violation(f"{_shown(text)} has a lone surrogate") from None


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN])
