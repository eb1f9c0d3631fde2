"""`tf.train.Example` messages, parsed without TensorFlow."""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from relive.bridge.rows import RowReader
from relive.errors import CorruptError, UnsupportedError
from relive.model.schema import Field

Item = TypeVar("Item")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT: Final = 10
_U64: Final = (1 << 64) - 1
_MORE: Final = 0x80
"""A byte of at least this value is followed by another one of the same integer."""


class ExampleReader(RowReader[Item]):
    """Reads records of bytes as rows.

    `decode` is "example" for `tf.train.Example` messages, whose features become fields; "bytes"
    for the field `record`; or a function from the bytes to a row or to the value of `record`.
    """

    def __init__(self, decode: str | Callable[[bytes], Any]) -> None:
        self._decode = decode
        self.parallel = callable(decode)
        self.declared = {"record": Field("bytes")} if decode == "bytes" else None

    def decode_record(self, data: bytes, name: str) -> Mapping[str, Any]:
        """Return the row of a record, which errors call `name`."""
        if self._decode == "bytes":
            return {"record": data}
        if self._decode == "example":
            return parse_example(data, name)
        decoded = self._decode(data)  # type: ignore[operator]  # all strings are handled above
        return decoded if isinstance(decoded, Mapping) else {"record": decoded}

    def adjust_fields(self, fields: dict[str, Field]) -> dict[str, Field]:
        """Turn fields of shape (1,) into single values: a feature is always a list."""
        if self._decode != "example":
            return fields
        return {
            name: Field(field.dtype, ())
            if field.fixed and field.shape == (1,) and isinstance(field.dtype, np.dtype)
            else field
            for name, field in fields.items()
        }


class _WireError(Exception):
    """The bytes are not a valid message; `at` is the offset of the damage."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at


def parse_example(data: bytes, name: str = "the message") -> dict[str, Any]:
    """Return the features of a serialized `tf.train.Example`, sorted by name.

    A single byte string is returned as such, several as a list of texts; floats and integers
    are arrays of one dimension; a feature without a value is None. Bytes that are not an
    Example are a `CorruptError` with `name` and the offset.
    """
    features: dict[str, Any] = {}
    try:
        for number, kind, value, at in _fields(data, 0, len(data)):
            if number == 1 and kind == _BYTES:
                features.update(_features(data, *value))
            elif number == 2 and kind == _BYTES:  # noqa: PLR2004
                raise UnsupportedError(
                    f"{name} is a tf.train.SequenceExample, which is not supported",
                    hint="pass a function that decodes a record: decode=function",
                )
            elif number == 1:
                raise _WireError(at, "the features are not a message")  # noqa: TRY301 - as below
    except _WireError as error:
        raise CorruptError(
            f"{name} is not a valid tf.train.Example: {error} (at byte {error.at})"
        ) from None
    return dict(sorted(features.items()))


def _features(data: bytes, start: int, stop: int) -> Iterator[tuple[str, Any]]:
    for number, kind, value, at in _fields(data, start, stop):
        if number != 1:
            continue
        if kind != _BYTES:
            raise _WireError(at, "an item of the features is not a message")
        yield _entry(data, *value)


def _entry(data: bytes, start: int, stop: int) -> tuple[str, Any]:
    name, feature = "", None
    for number, kind, value, at in _fields(data, start, stop):
        if number in {1, 2} and kind != _BYTES:
            raise _WireError(at, "a feature is not a message")
        if number == 1:
            try:
                name = data[slice(*value)].decode()
            except UnicodeDecodeError:
                raise _WireError(at, "a feature name is not UTF-8") from None
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
            raise _WireError(at, f"the values of {name!r} are not a list")
        found = read(data, *value)  # protobuf: the last of several values counts
    return found


def _byte_list(data: bytes, start: int, stop: int) -> Any:
    values = []
    for number, kind, value, at in _fields(data, start, stop):
        if number == 1:
            if kind != _BYTES:
                raise _WireError(at, "a value of a bytes list is not a byte string")
            values.append(data[slice(*value)])
    if len(values) == 1:
        return values[0]
    try:
        return [value.decode() for value in values] or None
    except UnicodeDecodeError:
        raise UnsupportedError(
            "a feature is a list of byte strings that are not UTF-8, which cannot be stored",
            hint="pass a function that decodes a record: decode=function",
        ) from None


def _float_list(data: bytes, start: int, stop: int) -> npt.NDArray[np.float32]:
    parts = []
    for number, kind, value, at in _fields(data, start, stop):
        if number != 1:
            continue
        if kind == _BYTES:
            if (value[1] - value[0]) % 4:
                raise _WireError(at, "the size of a float list is not a multiple of 4")
            parts.append(np.frombuffer(data, "<f4", (value[1] - value[0]) // 4, value[0]))
        elif kind == _FIXED32:
            parts.append(np.frombuffer(struct.pack("<I", value), "<f4"))
        else:
            raise _WireError(at, "a value of a float list is not a float")
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
            raise _WireError(at, "a value of an int64 list is not an integer")
    return _joined(parts, np.dtype(np.int64))


def _joined(parts: list[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if len(parts) == 1:
        return parts[0].astype(dtype)
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)


def _varints(data: bytes, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Return packed integers: seven bits of every byte, the lowest first."""
    if stop == start:
        return np.empty(0, np.int64)
    raw = np.frombuffer(data, np.uint8, stop - start, start)
    if raw.max() < _MORE:  # one byte each
        return raw.astype(np.int64)
    ends = np.flatnonzero(raw < _MORE)
    if not ends.size or ends[-1] != raw.size - 1:
        raise _WireError(stop, "an integer is truncated")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > _MAX_VARINT:
        at = start + int(starts[np.argmax(lengths > _MAX_VARINT)])
        raise _WireError(at, "an integer has more than 10 bytes")
    position = np.arange(raw.size) - np.repeat(starts, lengths)
    bits = (raw & 0x7F).astype(np.uint64) << (7 * position).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, Any, int]]:
    """Yield the number, wire type, value and offset of each field between two offsets.

    The value of a bytes field is the pair of its start and end.
    """
    while at < stop:
        start = at
        tag = data[at]
        at += 1
        if tag >= _MORE:
            tag, at = _varint(data, start, stop)
        number, kind = tag >> 3, tag & 7
        value: Any
        if number == 0:
            raise _WireError(start, "a field has the number 0")
        if kind == _VARINT:
            value, at = _varint(data, at, stop)
        elif kind == _BYTES:
            if at < stop and data[at] < _MORE:
                length = data[at]
                at += 1
            else:
                length, at = _varint(data, at, stop)
            if length > stop - at:
                raise _WireError(start, "a field is longer than its message")
            value = (at, at + length)
            at += length
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
            if size > stop - at:
                raise _WireError(start, "a field is longer than its message")
            value = int.from_bytes(data[at : at + size], "little")
            at += size
        else:
            raise _WireError(start, f"a field has the unknown wire type {kind}")
        yield number, kind, value, start


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    value = 0
    for count in range(_MAX_VARINT):
        if at + count >= stop:
            raise _WireError(at, "an integer is truncated")
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < _MORE:
            return value & _U64, at + count + 1
    raise _WireError(at, "an integer has more than 10 bytes")
