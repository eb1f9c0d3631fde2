"""A 64-bit hash of every row of a record batch, at which tables are cut into shards.

The hash depends on nothing but the values of the row and their types: not on chunks, slices, the
encoding of dictionaries, or what is stored under null slots. Floats are hashed by their bits. It
is stable across versions of relive, since other cuts would upload tables again. It is not
cryptographic: two different rows with one hash only cut a table at an unlucky place.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.errors import UnsupportedError
from relive.publish.write.arrow_parts import (
    Bounds,
    booleans,
    dictionary_positions,
    fixed_list_items,
    fixed_width,
    list_parts,
    range_sums,
    simplified,
    text_parts,
    validity,
)

if TYPE_CHECKING:
    import pyarrow as pa

Hashes: TypeAlias = npt.NDArray[np.uint64]

_NULL: Final = np.uint64(0x6A09E667F3BCC909)
# The multiplier that orders the parts of a value: odd, so that no part is lost.
_BASE: Final = np.uint64(0x9FB21C651E98DF25)
# The finalizer of SplitMix64.
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTORS: Final = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS: Final = np.uint64(30), np.uint64(27), np.uint64(31)
_WORD: Final = 8
_BITS: Final = 64


def hash_rows(batch: "pa.RecordBatch", columns: Sequence[str] | None = None) -> Hashes:
    """Return the hash of every row: of the values in `columns`, in that order, or of all."""
    arrays = batch.columns if columns is None else [batch.column(name) for name in columns]
    return _joined([hash_values(array) for array in arrays], batch.num_rows)


def hash_values(array: "pa.Array") -> Hashes:
    """Return the hash of every item of an array."""
    array = simplified(array)
    if not len(array):
        return np.empty(0, np.uint64)
    valid = validity(array)
    if valid is not None and not valid.any():
        return np.full(len(array), _NULL)
    hashes = _hash_valid(array)
    if valid is not None:
        hashes[~valid] = _NULL
    return hashes


def _hash_valid(array: "pa.Array") -> Hashes:  # noqa: PLR0911 - one for each type
    """Return the hashes of a simplified array; those of null slots are undefined."""
    import pyarrow as pa

    types = pa.types
    kind = array.type
    if types.is_dictionary(kind):
        positions, dictionary = dictionary_positions(array)
        return hash_values(dictionary)[positions]
    if types.is_boolean(kind):
        return _mixed(booleans(array).astype(np.uint64))
    if types.is_fixed_size_binary(kind):
        return _hash_fixed_binary(array, kind.byte_width)
    if types.is_string(kind) or types.is_binary(kind) or _is_large_text(kind):
        return _hash_text(*text_parts(array))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        bounds, children = list_parts(array)
        items = _joined([hash_values(child) for child in children], len(children[0]))
        return _hash_sequences(items, bounds)
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        items = hash_values(fixed_list_items(array)).reshape(len(array), size)
        return _mixed(items @ _powers(size)[:size])
    if types.is_struct(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
        return _joined([hash_values(child) for child in children], len(array))
    if types.is_primitive(kind) or types.is_decimal(kind):
        return _hash_numbers(fixed_width(array, kind.bit_width // 8))
    raise UnsupportedError(f"Parquet cannot hold values of type {kind}")


def _is_large_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _hash_numbers(data: npt.NDArray[np.uint8]) -> Hashes:
    nbytes = data.shape[1]
    if nbytes <= _WORD:
        return _mixed(data.view(f"<u{nbytes}")[:, 0].astype(np.uint64))
    words = data.view("<u8")
    return _joined([_mixed(words[:, i].copy()) for i in range(words.shape[1])], len(words))


def _hash_fixed_binary(array: "pa.Array", nbytes: int) -> Hashes:
    if not nbytes:
        return _mixed(np.zeros(len(array), np.uint64))
    data = fixed_width(array, nbytes)
    return _hash_text(np.arange(len(array) + 1) * nbytes, data.reshape(-1))


def _hash_text(bounds: Bounds, data: npt.NDArray[np.uint8]) -> Hashes:
    """Return a hash of the bytes between two bounds, as words of eight that end with zeros."""
    lengths = np.diff(bounds)
    counts = (lengths + (_WORD - 1)) >> 3
    words = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=words[1:])
    places = np.arange(words[-1])
    places <<= 3
    places += np.repeat(bounds[:-1] - words[:-1] * _WORD, counts)
    values = _words_at(data, places)
    rest = lengths & (_WORD - 1)
    cut = np.flatnonzero(rest)
    shifts = ((_WORD - rest[cut]) * 8).astype(np.uint64)
    last = words[1:][cut] - 1
    values[last] = values[last] << shifts >> shifts
    return _hash_sequences(_mixed(values), words, lengths)


def _words_at(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> Hashes:
    """Return the eight bytes at each place as little-endian integers; `places` is overwritten."""
    padded = np.zeros(len(data) // _WORD + 2, "<u8")
    padded.view(np.uint8)[: len(data)] = data
    shifts = ((places & (_WORD - 1)) << 3).view(np.uint64)
    places >>= 3
    words = padded.take(places)
    words >>= shifts
    places += 1
    following = padded.take(places)
    # Two shifts, because a shift by 64 bits is undefined.
    np.subtract(np.uint64(_BITS - 1), shifts, out=shifts)
    following <<= shifts
    following <<= np.uint64(1)
    words |= following
    return words


def _hash_sequences(
    items: Hashes, bounds: Bounds, lengths: npt.NDArray[np.int64] | None = None
) -> Hashes:
    """Return a hash of the items between two bounds: a polynomial of their hashes."""
    counts = np.diff(bounds)
    within = np.arange(len(items))
    within -= np.repeat(bounds[:-1], counts)
    terms = _powers(int(counts.max(initial=0))).take(within)
    terms *= items
    sums = range_sums(terms, bounds)
    sums += (counts if lengths is None else lengths).view(np.uint64)
    return _mixed(sums)


def _powers(count: int) -> Hashes:
    return np.cumprod(np.full(count + 1, _BASE), dtype=np.uint64)


def _joined(parts: list[Hashes], count: int) -> Hashes:
    """Return a hash of the parts of each of `count` values, in this order."""
    joined = np.zeros(count, np.uint64)
    for part in parts:
        joined *= _BASE
        joined += part
    return _mixed(joined)


def _mixed(values: Hashes) -> Hashes:
    """Change the values to hashes of them, in place, and return them."""
    values += _GAMMA
    shifted = values >> _SHIFTS[0]
    values ^= shifted
    for factor, shift in zip(_FACTORS, _SHIFTS[1:], strict=True):
        values *= factor
        np.right_shift(values, shift, out=shifted)
        values ^= shifted
    return values
