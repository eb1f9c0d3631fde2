"""Packs made from other packs: stored bytes are copied without being compressed again."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from relive import _native
from relive._arguments import type_name, worker_count
from relive.errors import InvalidError, InvalidTypeError, NameTakenError
from relive.model.report import Progress
from relive.store.pack.files import OpenOptions, PackFile, open_packs
from relive.store.pack.reader import PackReader
from relive.store.pack.writer import PackWriter
from relive.store.paths import Location, expand

if TYPE_CHECKING:
    from relive.model.source import IndexArray

Input: TypeAlias = Location | PackReader
"""A path, a glob pattern or a URI of packs, or a reader of some of their entries."""


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
    workers: int | None = None,
) -> None:
    """Write the entries of several packs as one pack.

    Nothing is compressed again. Two entries with the same name are an `InvalidError`. Packs
    that were compressed with different dictionaries are an `UnsupportedError`.

    Args:
        inputs: Paths, glob patterns, URIs, or readers of some entries.
        output: The path of the pack to write.
        progress: Called with the number of entries done and the number of all entries.
        names: Whether entries keep their names.
        align: As for `PackWriter`, like all that follow.
        checksum: Whether entries are stored with checksums.
        steps: Whether to store a table of the steps of all runs.
        overwrite: Whether to replace an existing file.
        workers: The most threads that one call uses.

    Example:
        >>> import relive
        >>> from relive.store.pack import merge
        >>> for name in ("a", "b"):
        ...     with relive.PackWriter(f"{name}.pack") as writer:
        ...         position = writer.append(name.encode())
        >>> merge(["a.pack", "b.pack"], "both.pack")
        >>> list(relive.PackReader.open("both.pack"))
        [b'a', b'b']
    """
    listed = [inputs] if isinstance(inputs, str | os.PathLike | PackReader) else list(inputs)
    if not listed:
        raise InvalidError("the list of packs to merge is empty")
    options = OpenOptions(workers=worker_count(workers))
    files: list[PackFile] = []
    numbers: list[IndexArray] = []
    rows: list[IndexArray] = []
    for reader in (each for one in listed for each in _readers(one, options)):
        file_numbers, positions = reader.locate_all()
        numbers.append(file_numbers + len(files))
        rows.append(positions)
        files += reader.files
    packs = [file.native for file in files]
    writer = PackWriter(
        output,
        align=align,
        dictionary=_native.common_dictionary(packs),
        checksum=checksum,
        capacity=sum(map(len, rows)),
        steps=steps,
        overwrite=overwrite,
        workers=options.workers,
    )
    try:
        writer.copy(packs, np.concatenate(numbers), np.concatenate(rows), progress, names=names)
        writer.close()
    except BaseException as error:
        writer.abort()  # everything is still in the other packs
        if isinstance(error, NameTakenError):
            error.hint = "names=False (--drop-names) leaves all names out"
        raise


def subset(reader: PackReader, output: str | os.PathLike[str], **options: Any) -> None:
    """Write the entries of a reader, in its order, as a new pack; options are those of `merge`.

    Example:
        >>> import relive
        >>> from relive.store.pack import subset
        >>> with relive.PackWriter("a.pack") as writer:
        ...     positions = writer.extend([b"a", b"b", b"c"])
        >>> subset(relive.PackReader.open("a.pack")[::2], "even.pack")
        >>> list(relive.PackReader.open("even.pack"))
        [b'a', b'c']
    """
    if not isinstance(reader, PackReader):
        raise InvalidTypeError(f"`reader` must be a PackReader, got {type_name(type(reader))}")
    merge(reader, output, **options)


def _readers(given: Input, options: OpenOptions) -> Iterable[PackReader]:
    if isinstance(given, PackReader):
        return [given]
    # One by one, because packs with different numbers for one kind cannot be opened as one.
    return [PackReader(open_packs(path, options, {})) for path in expand(given)]
