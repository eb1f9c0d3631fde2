"""What payloads can be: bytes, runs, and kinds that users name themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from relive import _native
from relive.errors import InvalidTypeError, UnknownKindError
from relive.store.runs import Run

if TYPE_CHECKING:
    from relive.store.codec import BytesLike

__all__ = ["decode_payload", "encode_payload", "register_kind"]

Encode: TypeAlias = "Callable[[Any], BytesLike]"
Decode: TypeAlias = Callable[[memoryview], Any]

_RUNS: Final = {"v1": 1, "v2": 2, "auto": 2}
_REGISTERED: Final[dict[str, tuple[Encode, Decode]]] = {}


def register_kind(name: str, encode: Encode, decode: Decode) -> None:
    """Say how objects of a kind become payloads, and payloads such objects again.

    `encode(value)` gives bytes, `decode(payload)` gets a memoryview that is not writable.
    The name, of at most 64 bytes, is stored in every pack that has such entries; the functions
    are not, so every process that decodes them registers the kind first. A name that is
    registered again has the new functions from then on.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"a kind is named by a string, not {name!r}")
    for function in (encode, decode):
        if not callable(function):
            raise InvalidTypeError(f"a kind is encoded and decoded by functions, not {function!r}")
    _native.check_kind_name(name)
    _REGISTERED[name] = (encode, decode)


def encode_payload(kind: str, value: Any) -> bytes:
    """Give the payload that `value` is stored as in an entry of that kind."""
    if not isinstance(kind, str):
        raise InvalidTypeError(f"a kind is named by a string, not {kind!r}")
    if kind == "bytes":
        if isinstance(value, Run):
            raise InvalidTypeError(
                "a run is not of the kind 'bytes'", hint='append(run, "v2") stores it as a run'
            )
        return _bytes(value)
    if kind in _RUNS:
        return value.to_bytes(_RUNS[kind]) if isinstance(value, Run) else _bytes(value)
    encode, _ = _registered(kind, "")
    return _bytes(encode(value))


def decode_payload(kind: str, payload: memoryview) -> Any:
    """Give the object that an entry of a user's kind holds."""
    _, decode = _registered(kind, "; payload(i) gives the bytes as they are")
    return decode(payload.toreadonly())


def _registered(kind: str, otherwise: str) -> tuple[Encode, Decode]:
    try:
        return _REGISTERED[kind]
    except KeyError:
        raise UnknownKindError(
            f"nobody registered the kind {kind!r}",
            hint=f"relive.store.pack.register_kind({kind!r}, encode, decode){otherwise}",
        ) from None


def _bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    try:
        # Through a memoryview: bytes(7) would be seven zeros.
        return bytes(memoryview(value))
    except TypeError as error:
        raise InvalidTypeError(f"a payload is bytes, not {type(value).__name__}") from error
