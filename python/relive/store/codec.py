"""How one record's bytes are stored: raw, deflate, zstd or lz4, with or without a dictionary."""

from __future__ import annotations

from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np

from relive import _native
from relive.errors import InvalidError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    from typing_extensions import Buffer

    # Arrays are buffers too; NumPy's own types say so from Python 3.12 on only.
    BytesLike: TypeAlias = Buffer | npt.NDArray[Any]

__all__ = ["MAX_BYTES", "NAMES", "Codec", "train_dictionary"]

NAMES: Final[tuple[str, ...]] = tuple(_native.codec_names())
"""The codecs, each at the position of the id that stands for it in files."""

MAX_BYTES: Final = 1 << 30
"""The longest record that is encoded or decoded unless another limit is set: 1 GiB."""


class Codec:
    """One codec with its level, dictionary and limit; immutable, picklable, thread-safe.

    `name` is one of `raw`, `deflate`, `zstd` and `lz4` (`none` and `flate` are other
    words for the first two). `level` is 0 to 9 for deflate (6 unless said) and -7 to 22
    for zstd (3 unless said); the others have none. `dictionary`, for zstd, is what
    `train_dictionary` gave; it is digested once, here. Records longer than `max_bytes`
    are refused in both directions with `TooLargeError`.

    Bytes that are not what they claim to be are `CorruptError`, before memory is taken
    for them. The GIL is released during the work. `bytes` are read in place; any other
    buffer is copied first, since its owner may write to it meanwhile.
    """

    __slots__ = ("_native",)

    def __init__(
        self,
        name: str,
        level: int | None = None,
        dictionary: BytesLike | None = None,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if not isinstance(name, str):
            raise InvalidTypeError(f"a codec's name is a str, not {type(name).__name__}")
        self._native = _native.Codec(
            name,
            None if level is None else _integer(level, "level", -(1 << 31), (1 << 31) - 1),
            None if dictionary is None else _bytes(dictionary),
            _integer(max_bytes, "max_bytes", 0, (1 << 64) - 1),
        )

    @property
    def id(self) -> int:
        """The number that stands for this codec in files."""
        return self._native.id

    @property
    def name(self) -> str:
        """The name of this codec, in its one spelling."""
        return self._native.name

    @property
    def level(self) -> int | None:
        """The level in use; None for codecs without levels."""
        return self._native.level

    @property
    def dictionary(self) -> bytes | None:
        """The dictionary in use."""
        return self._native.dictionary

    @property
    def max_bytes(self) -> int:
        """The longest record that is encoded or decoded."""
        return self._native.max_bytes

    def encode(self, data: BytesLike) -> bytes:
        """Give the stored form of `data`."""
        return self._native.encode(_bytes(data))

    def encode_batch(self, records: Iterable[BytesLike], threads: int | None = None) -> list[bytes]:
        """Give the stored form of every record, in order.

        An error is that of the first record that fails, and names its position.
        """
        return self._native.encode_batch([_bytes(data) for data in records], _threads(threads))

    def decode(self, data: BytesLike, length: int) -> bytes:
        """Give the record of exactly `length` bytes that `data` is the stored form of."""
        return self._native.decode(_bytes(data), _integer(length, "length", 0, (1 << 64) - 1))

    def decode_batch(
        self, records: Iterable[BytesLike], lengths: npt.ArrayLike, threads: int | None = None
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Decode every record into one array, and give it with the offsets between records.

        Record i is `values[offsets[i]:offsets[i + 1]]`; there is one offset more than there
        are records. An error is that of the first record that fails, and names its position.
        """
        stored = [_bytes(data) for data in records]
        return self._native.decode_batch(stored, _lengths(lengths), _threads(threads))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Codec):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[partial[Codec], tuple[()]]:
        name, level, dictionary, max_bytes = self._key()
        return partial(type(self), name, level, dictionary, max_bytes=max_bytes), ()

    def __repr__(self) -> str:
        level = "" if self.level is None else f", level={self.level}"
        dictionary = self.dictionary
        trained = "" if dictionary is None else f", dictionary=<{len(dictionary)} bytes>"
        return f"Codec({self.name!r}{level}{trained})"

    def _key(self) -> tuple[str, int | None, bytes | None, int]:
        return self.name, self.level, self.dictionary, self.max_bytes


def train_dictionary(samples: Iterable[BytesLike], size: int = 112_640) -> bytes:
    """Train a zstd dictionary of at most `size` bytes from sample records.

    Deterministic. About a hundred times `size` in samples is plenty; fewer than eight, or
    samples too small to have anything in common, are an `InvalidError`.
    """
    wanted = _integer(size, "size", 0, (1 << 64) - 1)
    return _native.train_dictionary([_bytes(sample) for sample in samples], wanted)


def _bytes(data: BytesLike) -> bytes:
    if type(data) is bytes:
        return data
    try:
        # Through a memoryview: bytes(7) would be seven zeros.
        return bytes(memoryview(cast("Buffer", data)))
    except TypeError as error:
        raise InvalidTypeError(f"bytes are needed, not {type(data).__name__}") from error


def _integer(value: int, name: str, low: int, high: int) -> int:
    try:
        number = index(value)
    except TypeError as error:
        raise InvalidTypeError(f"{name} is an int, not {type(value).__name__}") from error
    if not low <= number <= high:
        raise InvalidError(f"{name} is {number}, outside of {low} to {high}")
    return number


def _threads(threads: int | None) -> int | None:
    return None if threads is None else _integer(threads, "threads", 1, (1 << 32) - 1)


def _lengths(lengths: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    array = np.asarray(lengths)
    if array.ndim != 1:
        raise InvalidError(f"lengths are a list of ints, not an array of shape {array.shape}")
    if array.size == 0:
        return np.empty(0, np.uint64)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"lengths are ints, not {array.dtype}")
    if (smallest := array.min()) < 0:
        raise InvalidError(f"a length is {smallest}, below 0")
    return array.astype(np.uint64)
