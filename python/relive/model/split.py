"""Seeded splits into disjoint views that together are the whole source."""

import math
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int, type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.select import Subset, view
from relive.model.source import IndexArray, Row, Rows, Source, check_source, pick_fields

By: TypeAlias = str | Callable[[Row], object] | Sequence[object] | npt.NDArray[Any]
"""What groups rows: a field name, a function of the row, or one key per row."""

_BATCH_ROWS: Final = 1 << 14
_BY_HINT: Final = "pass a field name, a function of the row, or one key for each row"
_NAN: Final = struct.pack("<d", math.nan)


def split(
    source: Source, ratios: Iterable[float], *, by: By | None = None, seed: int = 0
) -> tuple[Subset, ...]:
    """Split `source` into one view per ratio; each row is in exactly one, in ascending order.

    The result is the same on every machine and in every version.

    Args:
        source: The rows to split.
        ratios: Positive numbers, relative to their sum.
        by: Keeps rows with equal keys together: a field name, a function of the row, or one
            key per row. The view of a key depends only on the key, the ratios and the seed,
            so it stays the same when rows are appended; sizes are then approximate. Without
            `by`, rows are drawn at random and the sizes are exact to one row.
        seed: Chooses the split.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> from relive.load import split
        >>> train, test = split(relive.ArraySource(np.arange(100)), (0.8, 0.2))
        >>> len(train), len(test)
        (80, 20)
    """
    check_source(source)
    shares = _shares(ratios)
    seed = as_int("seed", seed, at_most=None)
    if by is None:
        parts = _at_random(len(source), shares, seed)
    else:
        parts = _by_key(_keys(source, by), len(source), shares, seed)
    return tuple(view(source, _as_rows(rows)) for rows in parts)


def split_keys(
    keys: Sequence[object], ratios: Iterable[float], *, seed: int = 0
) -> tuple[IndexArray, ...]:
    """Split the positions of `keys` as `split(by=keys)` does: one ascending array per ratio."""
    shares = _shares(ratios)
    seed = as_int("seed", seed, at_most=None)
    return tuple(_by_key(iter([list(keys)]), len(keys), shares, seed))


def _shares(ratios: Iterable[float]) -> list[Fraction]:
    try:
        exact = [Fraction(ratio) for ratio in ratios]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidError(
            f"`ratios` must be positive numbers, got {ratios!r}", hint="for example (0.8, 0.2)"
        ) from error
    if not exact or min(exact) <= 0:
        raise InvalidError(
            f"`ratios` must be positive numbers, got {ratios!r}", hint="for example (0.8, 0.2)"
        )
    total = sum(exact)
    return [ratio / total for ratio in exact]


def _at_random(length: int, shares: list[Fraction], seed: int) -> list[IndexArray]:
    quotas = [share * length for share in shares]
    sizes = [math.floor(quota) for quota in quotas]
    largest = sorted(range(len(shares)), key=lambda k: (sizes[k] - quotas[k], k))
    for k in largest[: length - sum(sizes)]:
        sizes[k] += 1
    # Raw bits are the same in every version of NumPy; Generator.permutation may change.
    order = np.argsort(np.random.PCG64(seed).random_raw(length), kind="stable")
    cuts = list(accumulate(sizes))[:-1]
    return [np.sort(part).astype(np.int64) for part in np.split(order, cuts)]


def _as_rows(rows: IndexArray) -> Rows:
    if len(rows) == 0:
        return range(0)
    first, last = int(rows[0]), int(rows[-1])
    return range(first, last + 1) if last - first + 1 == len(rows) else rows


def _keys(source: Source, by: By) -> Iterator[npt.NDArray[Any] | list[object]]:
    """Iterate over the keys of all rows, in batches."""
    length = len(source)
    if isinstance(by, str):
        pick_fields(source.fields, [by])
        for start in range(0, length, _BATCH_ROWS):
            rows = np.arange(start, min(start + _BATCH_ROWS, length), dtype=np.int64)
            keys = source.gather(rows, [by])[by]
            yield keys if isinstance(keys, np.ndarray) else list(keys)
    elif callable(by):
        for row in source:
            yield [by(row)]
    else:
        yield _given_keys(by, length)


def _given_keys(by: Any, length: int) -> npt.NDArray[Any] | list[object]:
    try:
        keys = by if isinstance(by, np.ndarray) else list(by)
        count = len(keys)
    except TypeError as error:
        raise InvalidTypeError(
            f"`by` must be a string, a function or a list of keys, got {by!r}", hint=_BY_HINT
        ) from error
    if count != length:
        raise InvalidError(
            f"`by` must have one key for each of {length} rows, got {count}", hint=_BY_HINT
        )
    return keys


def _by_key(
    batches: Iterator[npt.NDArray[Any] | list[object]],
    length: int,
    shares: list[Fraction],
    seed: int,
) -> list[IndexArray]:
    bounds = [math.floor(end * (1 << 64)) for end in accumulate(shares)][:-1]
    salt = b"%d\0" % seed
    known: dict[bytes, int] = {}

    def side(key: object) -> int:
        text = _encoded(key)
        found = known.get(text)
        if found is None:
            digest = blake2b(salt + text, digest_size=8, person=b"relive.split").digest()
            found = known[text] = bisect_right(bounds, int.from_bytes(digest, "little"))
        return found

    sides = np.empty(length, dtype=np.intp)
    done = 0
    for keys in batches:
        here = sides[done : done + len(keys)]
        if isinstance(keys, np.ndarray) and keys.ndim == 1 and keys.dtype.kind in "biufSU":
            unique, inverse = np.unique(keys, return_inverse=True)
            here[:] = np.array([side(key) for key in unique], dtype=np.intp)[inverse]
        else:
            here[:] = [side(key) for key in keys]
        done += len(keys)
    return [np.flatnonzero(sides == k).astype(np.int64) for k in range(len(shares))]


def _encoded(key: object) -> bytes:  # noqa: PLR0911 - one line per type
    """Return bytes that are equal for equal keys, in every process and on every machine."""
    if isinstance(key, (np.datetime64, np.timedelta64)):
        return b"t%s:%d;" % (str(key.dtype).encode(), key.astype(np.int64))
    if isinstance(key, (np.ndarray, np.generic)):
        key = key.tolist()
    if key is None:
        return b"n"
    if isinstance(key, float) and not key.is_integer():
        return b"f" + (_NAN if math.isnan(key) else struct.pack("<d", key))
    if isinstance(key, (int, float)):  # 1, 1.0 and True are equal keys
        return b"i%d;" % int(key)
    if isinstance(key, str):
        key_bytes = key.encode("utf-8", "surrogatepass")
        return b"s%d:%s" % (len(key_bytes), key_bytes)
    if isinstance(key, (bytes, bytearray)):
        return b"b%d:%s" % (len(key), key)
    if isinstance(key, (list, tuple)):
        return b"(%s)" % b"".join(map(_encoded, key))
    if isinstance(key, Mapping):
        pairs = sorted((_encoded(name), _encoded(value)) for name, value in key.items())
        return b"{%s}" % b"".join(part for pair in pairs for part in pair)
    raise InvalidTypeError(
        f"the keys in `by` cannot have the type {type_name(type(key))}",
        hint="use strings, bytes, numbers or tuples of them",
    )
