"""Codecs of stored bytes: raw, deflate, zstd or lz4, with or without a dictionary."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np

from relive import _native
from relive._arguments import as_int, as_text, type_name, worker_count
from relive.errors import InvalidError, InvalidTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    from typing_extensions import Buffer

    # Arrays are buffers too, but NumPy's types declare it only from Python 3.12 on.
    BytesLike: TypeAlias = Buffer | npt.NDArray[Any]

__all__ = ["MAX_BYTES", "NAMES", "Codec", "train_dictionary"]

NAMES: Final[tuple[str, ...]] = tuple(_native.codec_names())
"""The names of the codecs, each at the position of its id in files."""

MAX_BYTES: Final = 1 << 30
"""The default limit of encoded and decoded records: 1 GiB."""

_UINT64_MAX: Final = (1 << 64) - 1


class Codec:
    """One codec with its level, dictionary and limit; immutable, picklable, thread-safe.

    Bytes that are not valid are a `CorruptError`, raised before memory is allocated for
    them. The GIL is released during the work. `bytes` are read without a copy; any other
    buffer is copied first, because another thread may write to it.

    Args:
        name: `raw`, `deflate`, `zstd` or `lz4`; `none` and `flate` are other names of the
            first two.
        level: 0 to 9 for deflate, by default 6, and -7 to 22 for zstd, by default 3; the
            others do not have levels.
        dictionary: For zstd, a dictionary of `train_dictionary`.
        max_bytes: Longer records are a `TooLargeError`, in both directions.

    Example:
        >>> from relive.store.codec import Codec
        >>> codec = Codec("zstd", level=5)
        >>> stored = codec.encode(b"relive" * 100)
        >>> len(stored) < 600, codec.decode(stored, 600) == b"relive" * 100
        (True, True)
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
        self._native = _native.Codec(
            as_text("`name`", name),
            None
            if level is None
            else as_int("level", level, at_least=-(1 << 31), at_most=(1 << 31) - 1),
            None if dictionary is None else _bytes(dictionary),
            as_int("max_bytes", max_bytes, at_most=_UINT64_MAX),
        )

    @property
    def id(self) -> int:
        """The number of this codec in files."""
        return self._native.id

    @property
    def name(self) -> str:
        """The name of this codec: `raw`, `deflate`, `zstd` or `lz4`."""
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
        """Return the stored form of `data`."""
        return self._native.encode(_bytes(data))

    def encode_batch(self, records: Iterable[BytesLike], workers: int | None = None) -> list[bytes]:
        """Return the stored form of every record, in order.

        An error is that of the first record that fails, and names its position.
        """
        return self._native.encode_batch([_bytes(data) for data in records], worker_count(workers))

    def decode(self, data: BytesLike, length: int) -> bytes:
        """Return the record of exactly `length` bytes of which `data` is the stored form."""
        return self._native.decode(_bytes(data), as_int("length", length, at_most=_UINT64_MAX))

    def decode_batch(
        self, records: Iterable[BytesLike], lengths: npt.ArrayLike, workers: int | None = None
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Decode every record into one array, and return it with the offsets of the records.

        Record i is `values[offsets[i]:offsets[i + 1]]`; there is one offset more than there
        are records. An error is that of the first record that fails, and names its position.
        """
        stored = [_bytes(data) for data in records]
        return self._native.decode_batch(stored, _lengths(lengths), worker_count(workers))

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

    Deterministic. About a hundred times `size` in samples is enough; fewer than eight, or
    samples too small to have anything in common, are an `InvalidError`.
    """
    wanted = as_int("size", size)
    return _native.train_dictionary([_bytes(sample) for sample in samples], wanted)


def _bytes(data: BytesLike) -> bytes:
    if type(data) is bytes:
        return data
    try:
        # Through a memoryview, because bytes(7) is seven zeros.
        return bytes(memoryview(cast("Buffer", data)))
    except TypeError as error:
        raise InvalidTypeError(f"the data must be bytes, got {type_name(type(data))}") from error


def _lengths(lengths: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    array = np.asarray(lengths)
    if array.ndim != 1:
        raise InvalidError(f"`lengths` must have one dimension, got the shape {array.shape}")
    if array.size == 0:
        return np.empty(0, np.uint64)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"`lengths` must be integers, got {array.dtype}")
    if (smallest := array.min()) < 0:
        raise InvalidError(f"`lengths` must be at least 0, got {smallest}")
    return array.astype(np.uint64)
