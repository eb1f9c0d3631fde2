"""Arithmetic on row lengths: bins, buckets and batches. No values are touched."""

import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError
from relive.model.indices import IndexArray

__all__ = ["Packed", "bucket_by_length", "length_batches", "pack_lengths", "positive"]


class Packed(NamedTuple):
    """Rows laid end to end in bins of one capacity."""

    values: npt.NDArray[Any]
    """`(bins, capacity, *inner)`; what no row covers holds the fill value."""
    segments: npt.NDArray[np.int32]
    """`(bins, capacity)`: 1 for the first row of a bin, 2 for the next; 0 where there is none."""
    positions: npt.NDArray[np.int32]
    """`(bins, capacity)`: how far into its row each value is."""
    rows: list[IndexArray]
    """For each bin the rows in it: segment k of bin b is row `rows[b][k - 1]`."""


def pack_lengths(lengths: IndexArray, capacity: int) -> list[IndexArray]:
    """Assign rows to bins by first-fit-decreasing; equal lengths keep their order."""
    over = lengths > capacity
    if over.any():
        row = int(np.argmax(over))
        raise InvalidError(
            f"row {row} has the length {lengths[row]}, and the capacity is {capacity}",
            hint="cut the row, or raise the capacity",
        )
    leaves = 1 << max(0, len(lengths) - 1).bit_length()
    # A tree over the room left in each bin finds the first that fits in log(bins) steps:
    # node k is the most room below it, and its children are 2k and 2k + 1.
    room = [capacity] * (2 * leaves)
    bins: list[list[int]] = []
    for row in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[row])
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < size:
                node += 1
        place = node - leaves
        if place == len(bins):
            bins.append([])
        bins[place].append(row)
        room[node] -= size
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return [np.array(rows, dtype=np.int64) for rows in bins]


def bucket_by_length(lengths: npt.ArrayLike, boundaries: npt.ArrayLike) -> list[IndexArray]:
    """Group rows by length: bucket k has those that fit `boundaries[k]` and no smaller one.

    Gives one bucket more than there are boundaries, for the rows longer than all of them;
    rows are in ascending order, and each is in exactly one bucket.
    """
    sizes = _lengths(lengths)
    bounds = np.asarray(boundaries)
    if bounds.ndim != 1 or (np.diff(bounds) <= 0).any():
        raise InvalidError("boundaries must be numbers in increasing order")
    bucket = np.searchsorted(bounds, sizes, side="left")
    return [np.flatnonzero(bucket == k).astype(np.int64) for k in range(len(bounds) + 1)]


def length_batches(lengths: npt.ArrayLike, batch_size: int, seed: int = 0) -> list[IndexArray]:
    """Divide rows into batches of similar length, in an order that depends on `seed` alone.

    Each row is in exactly one batch. Rows of one length are shuffled among their batches, and
    the batches among themselves; one of them is short when `batch_size` does not divide.
    """
    sizes = _lengths(lengths)
    step = positive("batch_size", batch_size)
    bits = np.random.PCG64(positive("seed", seed, at_least=0))
    order = np.lexsort((bits.random_raw(len(sizes)), sizes)).astype(np.int64)
    batches = [order[start : start + step] for start in range(0, len(order), step)]
    turn = np.argsort(bits.random_raw(len(batches)), kind="stable")
    return [batches[k] for k in turn.tolist()]


def positive(what: str, number: int, *, at_least: int = 1) -> int:
    """Give `number` as a Python integer of `at_least` so much."""
    try:
        value = operator.index(number)
    except TypeError as error:
        raise InvalidTypeError(f"`{what}` must be an integer, not {number!r}") from error
    if value < at_least:
        raise InvalidError(f"`{what}` must be at least {at_least}, not {value}")
    return value


def _lengths(lengths: npt.ArrayLike) -> IndexArray:
    sizes = np.asarray(lengths)
    if sizes.size == 0:
        return np.empty(0, dtype=np.int64)
    if sizes.dtype.kind not in "iu":
        raise InvalidTypeError(f"lengths must be integers, not {sizes.dtype}")
    if sizes.ndim != 1 or sizes.min() < 0:
        raise InvalidError("lengths must be one axis of numbers that are not negative")
    return sizes.astype(np.int64)
