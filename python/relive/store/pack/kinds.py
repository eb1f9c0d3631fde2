"""The kinds of payloads: bytes, runs, and kinds that users register."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from relive import _native
from relive._arguments import as_text, type_name
from relive.errors import InvalidTypeError, UnknownKindError
from relive.store.runs import Run

if TYPE_CHECKING:
    from relive.store.codec import BytesLike

Encode: TypeAlias = "Callable[[Any], BytesLike]"
Decode: TypeAlias = Callable[[memoryview], Any]

_RUNS: Final = {"v1": 1, "v2": 2, "auto": 2}
_REGISTERED: Final[dict[str, tuple[Encode, Decode]]] = {}


def register_kind(name: str, encode: Encode, decode: Decode) -> None:
    """Register how objects of a kind are stored as payloads and read again.

    The name is stored in every pack that has such entries. The functions are not: every
    process that decodes the entries registers the kind first. Registering a name again
    replaces its functions.

    Args:
        name: The name of the kind, at most 64 bytes.
        encode: Returns the bytes of an object.
        decode: Returns the object for a read-only memoryview.

    Example:
        >>> import json, relive
        >>> from relive.store.pack import register_kind
        >>> register_kind("json", lambda x: json.dumps(x).encode(), lambda b: json.loads(bytes(b)))
        >>> with relive.PackWriter("a.pack") as writer:
        ...     position = writer.append({"score": 7}, "json")
        >>> relive.PackReader.open("a.pack")[0]
        {'score': 7}
    """
    as_text("`name`", name)
    for argument, function in (("encode", encode), ("decode", decode)):
        if not callable(function):
            raise InvalidTypeError(f"`{argument}` must be a function, got {function!r}")
    _native.check_kind_name(name)
    _REGISTERED[name] = (encode, decode)


def encode_payload(kind: str, value: Any) -> bytes:
    """Return the payload that stores `value` in an entry of that kind."""
    as_text("`kind`", kind)
    if kind == "bytes":
        if isinstance(value, Run):
            raise InvalidTypeError(
                "a payload of the kind 'bytes' must be bytes, got a Run",
                hint='append(run, "v2") stores it as a run',
            )
        return _bytes(value)
    if kind in _RUNS:
        return value.to_bytes(_RUNS[kind]) if isinstance(value, Run) else _bytes(value)
    encode, _ = _registered(kind, "")
    return _bytes(encode(value))


def decode_payload(kind: str, payload: memoryview) -> Any:
    """Return the object that an entry of a registered kind stores."""
    _, decode = _registered(kind, "; payload(i) returns the bytes without decoding them")
    return decode(payload.toreadonly())


def _registered(kind: str, otherwise: str) -> tuple[Encode, Decode]:
    try:
        return _REGISTERED[kind]
    except KeyError:
        raise UnknownKindError(
            f"the kind {kind!r} is not registered",
            hint=f"call relive.store.pack.register_kind({kind!r}, encode, decode){otherwise}",
        ) from None


def _bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    try:
        # Through a memoryview, because bytes(7) is seven zeros.
        return bytes(memoryview(value))
    except TypeError as error:
        raise InvalidTypeError(f"a payload must be bytes, got {type_name(type(value))}") from error
