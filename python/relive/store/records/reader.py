"""Records as batches, and pieces of them."""

import functools
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int
from relive.errors import TooLargeError
from relive.model.source import Batch, IndexArray, Indices, as_indices, check_out, pick_fields
from relive.store.codec import train_dictionary
from relive.store.records.values import assemble
from relive.store.records.writer import Look

__all__ = ["gather_missing", "gather_objects", "gather_rows", "trained"]

_PIECE_BYTES: Final = 64 << 20
_GROWTH: Final = 4


def gather_rows(
    look: Look,
    rows: IndexArray,
    fields: Sequence[str] | None,
    out: Mapping[str, npt.NDArray[Any]] | None,
    threads: int,
) -> Batch:
    """Read records into one batch; see `Source.gather`."""
    described = look.described
    picked = pick_fields(described.fields, fields)
    given = check_out(out, picked, rows.shape)
    fixed = {name: array for name, array in given.items() if picked[name].fixed}
    columns = [described.columns[name] for name in picked]
    found = look.table.gather(rows, columns, fixed, threads)
    batch: Batch = {}
    for column, (name, field) in zip(columns, picked.items(), strict=True):
        dims = functools.partial(look.snapshot.dims, column, rows.reshape(-1))
        batch[name] = assemble(name, field, found[name], rows.shape, dims)
        if name in given and name not in fixed:
            given[name][...] = batch[name]
            batch[name] = given[name]
    return batch


def gather_objects(look: Look, name: str, most_bytes: int, threads: int) -> npt.NDArray[np.object_]:
    """Read all values of a field that have any size, unless they have more than `most_bytes`."""
    field, column = look.described.fields[name], look.described.columns[name]
    found = np.empty(look.length, dtype=object)
    start = size = 0
    count = 1  # until it is known how large values are
    while start < look.length:
        rows = np.arange(start, min(start + count, look.length), dtype=np.int64)
        stored = look.table.gather(rows, [column], None, threads)[name]
        size += stored[0].nbytes
        if size > most_bytes:
            raise TooLargeError(
                f"field {name!r} has more than {most_bytes} bytes",
                hint="gather some rows at a time",
            )
        dims = functools.partial(look.snapshot.dims, column, rows)
        found[start : start + len(rows)] = assemble(name, field, stored, rows.shape, dims)
        start += len(rows)
        count = min(count * _GROWTH, max(1, _PIECE_BYTES * start // max(1, size)))
    return found


def gather_missing(look: Look, field: str, indices: Indices | None) -> npt.NDArray[np.bool_]:
    """Say which records have no value in a field."""
    pick_fields(look.described.fields, [field])
    rows = as_indices(range(look.length) if indices is None else indices, look.length)
    found = look.snapshot.missing(look.described.columns[field], rows.reshape(-1))
    return found.reshape(rows.shape)


def trained(look: Look, field: str, size: int, samples: int, threads: int) -> bytes:
    """Train a dictionary from values of a field, spread over all records."""
    count = min(as_int("samples", samples, at_least=1), look.length)
    rows = np.linspace(0, look.length - 1, count).astype(np.int64)
    column = look.described.columns[field]
    values = look.table.gather(rows, [column], None, threads)[field]
    if isinstance(values, tuple):
        data, offsets = values
        pieces = [data[start:stop].tobytes() for start, stop in pairwise(offsets.tolist())]
    else:
        pieces = [value.tobytes() for value in values]
    return train_dictionary(pieces, size)
