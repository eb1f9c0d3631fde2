"""Packs made of other packs: stored bytes are copied as they are."""

import os
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

from relive import _native
from relive.errors import InvalidError, InvalidTypeError
from relive.model.source import IndexArray
from relive.store.arrays import thread_count
from relive.store.pack.export import Progress
from relive.store.pack.files import Options, Part, open_parts
from relive.store.pack.reader import PackReader
from relive.store.pack.writer import PackWriter
from relive.store.paths import Location, expand

__all__ = ["Input", "merge", "subset"]

Input: TypeAlias = Location | PackReader
"""A path, a pattern or a URI of packs, or a reader of some of their entries."""


def merge(
    inputs: Input | Iterable[Input],
    output: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    align: int = 4096,
    checksum: bool = True,
    steps: bool = False,
    names: bool = True,
    overwrite: bool = False,
    threads: int | None = None,
) -> None:
    """Write the entries of several packs as one pack, with their kinds, and names unless told.

    Nothing is compressed anew. Two entries with the same name are an `InvalidError`, unless
    `names` are left out; packs that were compressed with different dictionaries are an
    `UnsupportedError`. `progress` is told how
    many entries are done. The other options are those of `PackWriter`.
    """
    listed = [inputs] if isinstance(inputs, str | os.PathLike | PackReader) else list(inputs)
    if not listed:
        raise InvalidError("the list of packs is empty")
    workers = thread_count(threads)
    parts: list[Part] = []
    numbers: list[IndexArray] = []
    rows: list[IndexArray] = []
    for found, (number, row) in (
        opened for each in listed for opened in _opened(each, Options(threads=workers))
    ):
        numbers.append(number + len(parts))
        rows.append(row)
        parts += found
    packs = [part.native for part in parts]
    writer = PackWriter(
        output,
        align=align,
        dictionary=_native.common_dictionary(packs),
        checksum=checksum,
        capacity=sum(map(len, rows)),
        steps=steps,
        overwrite=overwrite,
        threads=workers,
    )
    try:
        writer.copy(packs, np.concatenate(numbers), np.concatenate(rows), progress, names=names)
        writer.close()
    except BaseException as error:
        writer.abort()  # everything is still in the other packs
        if isinstance(error, InvalidError) and names and "same name" in error.message:
            error.hint = "names=False (--drop-names) leaves all names out"
        raise


def subset(
    reader: PackReader,
    output: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    align: int = 4096,
    checksum: bool = True,
    steps: bool = False,
    names: bool = True,
    overwrite: bool = False,
    threads: int | None = None,
) -> None:
    """Write the entries of a reader, in its order, as a pack of their own; see `merge`."""
    if not isinstance(reader, PackReader):
        raise InvalidTypeError(f"a reader of packs is needed, not {type(reader).__name__}")
    merge(
        reader,
        output,
        progress=progress,
        align=align,
        checksum=checksum,
        steps=steps,
        names=names,
        overwrite=overwrite,
        threads=threads,
    )


def _opened(
    each: Input, options: Options
) -> Iterator[tuple[tuple[Part, ...], tuple[IndexArray, IndexArray]]]:
    """Give packs, and for each entry the number of its pack and its position there."""
    if isinstance(each, PackReader):
        yield each.parts, each.places()
        return
    # One by one: together, packs in which kinds have different numbers are refused.
    for where in expand(each):
        (part,) = open_parts(where, options, {})
        rows = np.arange(len(part.native), dtype=np.int64)
        yield (part,), (np.zeros_like(rows), rows)
