"""Checks of arguments that many functions take, and the wording of their messages."""

import operator

import numpy as np

from relive import _native
from relive.errors import InvalidError, InvalidTypeError

INT64_MAX = (1 << 63) - 1
_MAX_WORKERS = 256


def as_int(
    name: str,
    value: object,
    *,
    at_least: int = 0,
    at_most: int | None = INT64_MAX,
    hint: str | None = None,
) -> int:
    """Return `value` as an int between two bounds, or raise an error that names the argument.

    Anything with `__index__` is an integer; `bool` is not. `at_most=None` is no upper bound.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidTypeError(f"`{name}` must be an integer, got {value!r}", hint=hint)
    if number < at_least:
        raise InvalidError(f"`{name}` must be at least {at_least}, got {number}", hint=hint)
    if at_most is not None and number > at_most:
        raise InvalidError(f"`{name}` must be at most {at_most}, got {number}", hint=hint)
    return number


def as_bool(name: str, value: object) -> bool:
    """Return `value` if it is a bool, of Python or NumPy; other objects are not true or false."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidTypeError(f"`{name}` must be True or False, got {value!r}")
    return bool(value)


def worker_count(workers: int | None) -> int:
    """Return the number of threads that `workers=` asks for; None is the default number."""
    if workers is None:
        return _native.default_threads()
    return as_int("workers", workers, at_least=1, at_most=_MAX_WORKERS)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise an `InvalidError` that lists the choices unless `value` is one of them."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidError(f"`{name}` must be one of {listed}, got {value!r}")


def as_text(what: str, value: object, *, hint: str | None = None) -> str:
    """Return `value` if it is a string that can be encoded; `what` is named in messages."""
    if not isinstance(value, str):
        raise InvalidTypeError(f"{what} must be a string, got {value!r}", hint=hint)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{what} cannot be encoded as UTF-8: {value!r}"
        raise InvalidError(message, hint=hint) from error
    return value


def as_name(what: str, value: object, max_bytes: int) -> str:
    """Return `value` if it is a string of 1 to `max_bytes` bytes of UTF-8 without NUL."""
    name = as_text(what, value)
    size = len(name.encode())
    if size > max_bytes:
        raise InvalidError(
            f"{what} must be at most {max_bytes} bytes long, got {size}: {name[:40]!r}…"
        )
    if not name or "\0" in name:
        raise InvalidError(f"{what} must not be empty or contain a NUL character, got {name!r}")
    return name


def utf8_name(name: str) -> str:
    r"""Return the name of a file as text that UTF-8 can encode: other bytes as in `\xff`."""
    if name.isascii():
        return name
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def type_name(kind: type) -> str:
    """Return the name of a type with its article: "an ndarray", "a uint8"."""
    name = kind.__name__
    vowel = name[0] in "AEIOaeio" or name == "ndarray"  # as they are pronounced
    return f"{'an' if vowel else 'a'} {name}"
