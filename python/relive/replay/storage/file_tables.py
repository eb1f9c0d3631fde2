"""The tables of a closed run from the metadata of its file, for a copy without the database.

One checksum covers the metadata, and the table of chunks in it has the checksum of each chunk.
"""

import json
import os
import struct
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from relive._native import crc32c
from relive.errors import CorruptError, UnsupportedError
from relive.replay.columns import ColumnSpec
from relive.replay.storage.layout import check_stored_run_id
from relive.replay.storage.tables import ChunkRow, EpisodeRow, RunRow, RunTables, SessionRow
from relive.store.atomic import open_reader, storage_error

_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK: Final = struct.Struct("<8sB19xQ12x")
"""The signature, the version of the superblock, and the end of the metadata."""
_SUPERBLOCK_VERSION: Final = 3
_TRAILER: Final = struct.Struct("<QI4s")
"""The offset of the metadata, its checksum, and the magic bytes."""
_TRAILER_MAGIC: Final = b"RPLY"
_UNCHECKED: Final = 8
"""Bytes at the end of the metadata that its checksum does not cover: itself and the magic bytes."""
_CHUNKS: Final = "chunks"
_SESSIONS: Final = "sessions"
_LENGTHS: Final = "episodes/lengths"
_CHUNK_COLUMNS: Final = 6
_MAX_U32: Final = (1 << 32) - 1
_COUNTS: Final = ("steps", "episodes", "ends", "dropped", "number", "first_row")
_MAX_LEVEL: Final = 1000
_MAX_CHUNK_ROWS: Final = 1 << 32
_EVERY_ROW: Final = {"episode": "steps", "final.episode": "ends"}
"""Columns that every step, or every end of an episode, has."""
_UNREADABLE: Final = (
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    RuntimeError,  # a RecursionError too
    MemoryError,
    SyntaxError,  # a dtype with brackets
)
"""What h5py and wrong values raise."""

_Row = TypeVar("_Row", RunRow, EpisodeRow, SessionRow)


def check_metadata(path: Path) -> None:
    """Compare the metadata of a file with its checksum, so that libhdf5 parses no damaged bytes.

    Raises `UnsupportedError` if the file has no such checksum.
    """
    try:
        with open_reader(path) as file:
            size = os.fstat(file.fileno()).st_size
            superblock = file.read(_SUPERBLOCK.size)
            if len(superblock) < _SUPERBLOCK.size or not superblock.startswith(_SIGNATURE):
                raise CorruptError(f"`{path}` is not a readable HDF5 file")
            _, version, end = _SUPERBLOCK.unpack(superblock)
            if version != _SUPERBLOCK_VERSION:
                raise _not_closed(path)
            if not _SUPERBLOCK.size + _TRAILER.size <= end <= size:
                raise CorruptError(f"`{path}` has {size} bytes, but its metadata ends at {end}")
            file.seek(end - _TRAILER.size)
            offset, crc, magic = _TRAILER.unpack(file.read(_TRAILER.size))
            if magic != _TRAILER_MAGIC:
                raise _not_closed(path)
            file.seek(min(offset, end))
            metadata = file.read(max(0, end - offset - _UNCHECKED))
    except OSError as error:
        raise storage_error(error, path, "read") from error
    if crc32c(metadata + superblock) != crc:
        raise CorruptError(f"`{path}`: the metadata of HDF5 is damaged")


def _not_closed(path: Path) -> UnsupportedError:
    return UnsupportedError(
        f"`{path}` is not a closed run of relive", hint="h5py can read any HDF5 file"
    )


def file_tables(file: Any, path: Path) -> RunTables:
    """Return what the database had about a run, from an open file of h5py.

    The metadata of the file was compared with its checksum before.
    """
    try:
        texts = [json.loads(file.attrs[name]) for name in ("run", "episodes", "columns")]
    except _UNREADABLE as error:
        raise _not_closed(path) from error
    try:
        # A run that only version 1 of the tables recorded has none.
        texts.append(json.loads(file.attrs.get(_SESSIONS, "[]")))
        return _checked_tables(file, *texts)
    except _UNREADABLE as error:
        raise CorruptError(f"`{path}` is damaged: {error}") from error


def _checked_tables(
    file: Any, described: Any, episodes: Any, columns: Any, sessions: Any
) -> RunTables:
    run = _checked_row(RunRow(**described))
    check_stored_run_id(run.run_id)
    rows = [_checked_row(EpisodeRow(**row)) for row in episodes]
    numbers = [row.number for row in rows]  # some may be missing
    lengths = file[_LENGTHS]  # which is in the file, unlike a number in a text
    if lengths.shape != (run.episodes,) or lengths.nbytes > file.id.get_filesize():
        raise ValueError(f"{_LENGTHS!r} does not have {run.episodes} episodes")
    if numbers != sorted(set(numbers)) or any(number >= run.episodes for number in numbers[-1:]):
        raise ValueError(f"its {len(rows)} episodes are not numbered below {run.episodes}")
    specs = [ColumnSpec.from_json(json.dumps(column), run.run_id) for column in columns]
    sizes: dict[str, tuple[int, int]] = {}
    for place, spec in enumerate(specs):
        _check_spec(spec, specs[:place])
        length = run.steps if spec.rows_of == "steps" else run.ends
        for name, dtype, shape, chunk_rows in _datasets(spec):
            dataset = file[name]
            has = (dataset.dtype, dataset.shape[1:], dataset.chunks[0])
            if has != (np.dtype(dtype), shape, chunk_rows):
                raise ValueError(f"{name!r} is not stored as described")
            if not name.startswith("planes/") and dataset.shape[0] != length:
                raise ValueError(f"{name!r} has {dataset.shape[0]} rows instead of {length}")
            sizes[name] = (chunk_rows, dataset.shape[0])
    chunks = _chunks(file, sizes)
    for name, count in _EVERY_ROW.items():
        length = getattr(run, count)
        if sum(chunk[1] for chunk in chunks.get(name.replace(".", "/"), ())) != length:
            raise ValueError(f"{name!r} does not have {length} rows")
    begun = [_checked_row(SessionRow(**session)) for session in sessions]
    return RunTables(run, rows, specs, chunks, {}, [], sessions=begun)


def _checked_row(row: _Row) -> _Row:
    """Raise unless each value has the type of its column."""
    for field in fields(row):
        value = getattr(row, field.name)
        kind: Any = field.type
        if not isinstance(value, int | float if kind is float else kind):
            raise TypeError(f"`{field.name}` is {value!r}")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"`{field.name}` is too large")
        if field.name in _COUNTS and value < 0:
            raise ValueError(f"`{field.name}` is {value}")
        if isinstance(value, str):
            value.encode()  # raises for text that is not Unicode
    return row


def _check_spec(spec: ColumnSpec, before: list[ColumnSpec]) -> None:
    """Raise unless a column is one that a recorder makes."""
    is_leaf = isinstance(spec.field, str) and all(type(key) in {str, int} for key in spec.keys)
    is_stored = (
        isinstance(spec.dtype, str)
        and np.dtype(spec.dtype).kind in "biufc"
        and spec.rows_of in {"steps", "ends"}
        and spec.stack in {None, "first", "last"}
        and isinstance(spec.codec, str)
        and type(spec.shuffle) is bool
        and 0 < spec.chunk_rows <= _MAX_CHUNK_ROWS
        and (spec.level is None or -_MAX_LEVEL * _MAX_LEVEL <= spec.level <= _MAX_LEVEL)
    )
    for text in (spec.name, spec.codec):
        text.encode()  # raises for text that is not Unicode
    planes = spec.planes_of
    if planes is not None:
        others = dict(enumerate(before))
        is_stored &= spec.stack is not None and others[planes].planes_of is None
        is_stored &= (others[planes].stack, others[planes].shape) == (spec.stack, spec.shape)
    if not is_leaf or not is_stored:
        raise ValueError(f"column {spec.name!r} is not stored as described")


def _datasets(spec: ColumnSpec) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Return the path, the dtype, the shape of a row and the rows of a chunk of each dataset."""
    if spec.stack is None:
        return [(spec.path, spec.dtype, spec.shape, spec.chunk_rows)]
    shape = spec.shape[1:] if spec.stack == "first" else spec.shape[:-1]
    depth = spec.shape[0 if spec.stack == "first" else -1]
    stored = ((spec.dtype, shape, spec.chunk_rows), ("<u8", (depth,), 1024))
    return [(name, *how) for name, how in zip(spec.paths, stored[-len(spec.paths) :], strict=True)]


def _chunks(file: Any, sizes: dict[str, tuple[int, int]]) -> dict[str, list[ChunkRow]]:
    """Return the chunks of each dataset, of which the rows of a chunk and all rows are known."""
    table = file[_CHUNKS]
    if (table.dtype, table.shape[1:]) != (np.dtype("<i8"), (_CHUNK_COLUMNS,)):
        raise ValueError(f"{_CHUNKS!r} is not a table of chunks")
    if table.nbytes > file.id.get_filesize():
        raise ValueError(f"{_CHUNKS!r} has {len(table)} rows, which the file cannot have")
    values = table[()]
    if (values < 0).any() or (values[:, 4:] > _MAX_U32).any():
        raise ValueError(f"{_CHUNKS!r} has impossible values")
    names = list(sizes)
    found: dict[str, list[ChunkRow]] = {name: [] for name in names}
    for number, first, kept, offset, size, crc in values.tolist():
        name = names[number]
        rows, length = sizes[name]
        if not 0 < kept <= rows or first % rows or first + kept > length:
            raise ValueError(f"{name!r} has chunks outside of it")
        found[name].append((first, kept, offset, size, crc))
    return found
