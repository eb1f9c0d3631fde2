"""`tf.train.Example` messages, read without TensorFlow."""

import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import CorruptError, UnsupportedError

__all__ = ["parse_example"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT: Final = 10
_U64: Final = (1 << 64) - 1
_MORE: Final = 0x80
"""A byte from here on says that another one follows."""


class _WireError(Exception):
    """The bytes are no message of this kind; `at` is where."""

    def __init__(self, at: int, trouble: str) -> None:
        super().__init__(trouble)
        self.at = at


def parse_example(data: bytes, where: str = "the message") -> dict[str, Any]:
    """Give the features of a serialized `tf.train.Example`, in the order of their names.

    A list of one byte string is that string, longer ones a list of texts; floats and integers
    are arrays of one dimension; a feature without values of any type is None. Bytes that are no
    Example are a `CorruptError` that says `where` and at which byte.
    """
    features: dict[str, Any] = {}
    try:
        for number, kind, value, at in _fields(data, 0, len(data)):
            if number == 1 and kind == _BYTES:
                features.update(_features(data, *value))
            elif number == 2 and kind == _BYTES:  # noqa: PLR2004
                raise UnsupportedError(
                    f"{where} is a tf.train.SequenceExample",
                    hint="decode it yourself: decode=function",
                )
            elif number == 1:
                raise _WireError(at, "the features are no message")  # noqa: TRY301 - as below it
    except _WireError as error:
        raise CorruptError(f"{where} at byte {error.at} is no tf.train.Example: {error}") from None
    return dict(sorted(features.items()))


def _features(data: bytes, start: int, stop: int) -> Iterator[tuple[str, Any]]:
    for number, kind, value, at in _fields(data, start, stop):
        if number != 1:
            continue
        if kind != _BYTES:
            raise _WireError(at, "an entry of the features is no message")
        yield _entry(data, *value)


def _entry(data: bytes, start: int, stop: int) -> tuple[str, Any]:
    name, feature = "", None
    for number, kind, value, at in _fields(data, start, stop):
        if number in {1, 2} and kind != _BYTES:
            raise _WireError(at, "a feature is no message")
        if number == 1:
            try:
                name = data[slice(*value)].decode()
            except UnicodeDecodeError:
                raise _WireError(at, "a name is no UTF-8") from None
        elif number == 2:  # noqa: PLR2004
            feature = _feature(data, name, *value)
    return name, feature


def _feature(data: bytes, name: str, start: int, stop: int) -> Any:
    found: Any = None
    for number, kind, value, at in _fields(data, start, stop):
        read = {1: _byte_list, 2: _float_list, 3: _int_list}.get(number)
        if read is None:
            continue
        if kind != _BYTES:
            raise _WireError(at, f"the values of {name!r} are no list")
        found = read(data, *value)  # of several, the last one counts
    return found


def _byte_list(data: bytes, start: int, stop: int) -> Any:
    values = []
    for number, kind, value, at in _fields(data, start, stop):
        if number == 1:
            if kind != _BYTES:
                raise _WireError(at, "a byte string is none")
            values.append(data[slice(*value)])
    if len(values) == 1:
        return values[0]
    try:
        return [value.decode() for value in values] or None
    except UnicodeDecodeError:
        raise UnsupportedError(
            "a feature has several byte strings that are no text, which no field can hold",
            hint="decode it yourself: decode=function",
        ) from None


def _float_list(data: bytes, start: int, stop: int) -> npt.NDArray[np.float32]:
    parts = []
    for number, kind, value, at in _fields(data, start, stop):
        if number != 1:
            continue
        if kind == _BYTES:
            if (value[1] - value[0]) % 4:
                raise _WireError(at, "floats do not have four bytes each")
            parts.append(np.frombuffer(data, "<f4", (value[1] - value[0]) // 4, value[0]))
        elif kind == _FIXED32:
            parts.append(np.frombuffer(struct.pack("<I", value), "<f4"))
        else:
            raise _WireError(at, "a float is none")
    return _joined(parts, np.dtype(np.float32))


def _int_list(data: bytes, start: int, stop: int) -> npt.NDArray[np.int64]:
    parts = []
    for number, kind, value, at in _fields(data, start, stop):
        if number != 1:
            continue
        if kind == _BYTES:
            parts.append(_varints(data, *value))
        elif kind == _VARINT:
            parts.append(np.array([value], np.uint64).view(np.int64))
        else:
            raise _WireError(at, "an integer is none")
    return _joined(parts, np.dtype(np.int64))


def _joined(parts: list[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if len(parts) == 1:
        return parts[0].astype(dtype)
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)


def _varints(data: bytes, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Read packed integers all at once: seven bits of every byte, the lowest first."""
    if stop == start:
        return np.empty(0, np.int64)
    raw = np.frombuffer(data, np.uint8, stop - start, start)
    if raw.max() < _MORE:  # one byte each
        return raw.astype(np.int64)
    ends = np.flatnonzero(raw < _MORE)
    if not ends.size or ends[-1] != raw.size - 1:
        raise _WireError(stop, "an integer has no end")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > _MAX_VARINT:
        at = start + int(starts[np.argmax(lengths > _MAX_VARINT)])
        raise _WireError(at, "an integer is too long")
    place = np.arange(raw.size) - np.repeat(starts, lengths)
    bits = (raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, Any, int]]:
    """Give number, wire type, value and place of each field between two places.

    The value of a field of bytes is where they begin and end.
    """
    while at < stop:
        place = at
        tag = data[at]
        at += 1
        if tag >= _MORE:
            tag, at = _varint(data, place, stop)
        number, kind = tag >> 3, tag & 7
        value: Any
        if number == 0:
            raise _WireError(place, "a field has the number 0")
        if kind == _VARINT:
            value, at = _varint(data, at, stop)
        elif kind == _BYTES:
            if at < stop and data[at] < _MORE:
                length = data[at]
                at += 1
            else:
                length, at = _varint(data, at, stop)
            if length > stop - at:
                raise _WireError(place, "a field is longer than what holds it")
            value = (at, at + length)
            at += length
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
            if size > stop - at:
                raise _WireError(place, "a field is longer than what holds it")
            value = int.from_bytes(data[at : at + size], "little")
            at += size
        else:
            raise _WireError(place, f"there is no wire type {kind}")
        yield number, kind, value, place


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    value = 0
    for count in range(_MAX_VARINT):
        if at + count >= stop:
            raise _WireError(at, "an integer has no end")
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < _MORE:
            return value & _U64, at + count + 1
    raise _WireError(at, "an integer is too long")
