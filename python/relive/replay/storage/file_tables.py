"""The tables of a closed run from the metadata of its file, for a copy without the database.

No checksum covers them there, so they are compared with the datasets that they describe.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from relive.errors import CorruptError, UnsupportedError
from relive.replay.columns import ColumnSpec
from relive.replay.storage.layout import check_run_id
from relive.replay.storage.tables import ChunkRow, EpisodeRow, RunRow, RunTables

_COUNTS: Final = ("steps", "episodes", "ends", "dropped", "number")
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

_Row = TypeVar("_Row", RunRow, EpisodeRow)


def file_tables(file: Any, path: Path) -> RunTables:
    """Return what the database had about a run, from an open file of h5py."""
    try:
        texts = [json.loads(file.attrs[name]) for name in ("run", "episodes", "columns")]
    except _UNREADABLE as error:
        raise UnsupportedError(
            f"`{path}` is not a closed run of relive", hint="h5py can read any HDF5 file"
        ) from error
    try:
        return _checked_tables(file, *texts)
    except _UNREADABLE as error:
        raise CorruptError(f"`{path}` is damaged: {error}") from error


def _checked_tables(file: Any, described: Any, episodes: Any, columns: Any) -> RunTables:
    run = _checked_row(RunRow(**described))
    check_run_id(run.run_id)
    rows = [_checked_row(EpisodeRow(**row)) for row in episodes]
    if [row.number for row in rows] != list(range(run.episodes)):
        raise ValueError(f"it has {len(rows)} episodes, but the run has {run.episodes}")
    specs = [ColumnSpec.from_json(json.dumps(column), run.run_id) for column in columns]
    chunks: dict[str, list[ChunkRow]] = {}
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
            chunks[name] = _chunks(name, dataset)
    for name, count in _EVERY_ROW.items():
        length = getattr(run, count)
        if sum(chunk[1] for chunk in chunks.get(name.replace(".", "/"), ())) != length:
            raise ValueError(f"{name!r} does not have {length} rows")
    return RunTables(run, rows, specs, chunks, {}, [])


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


def _chunks(name: str, dataset: Any) -> list[ChunkRow]:
    """Return where the chunks of a dataset are."""
    rows, length = dataset.chunks[0], dataset.shape[0]
    found: list[ChunkRow] = []

    def add(info: Any) -> bool | None:
        first = int(info.chunk_offset[0])
        found.append((first, min(rows, length - first), info.byte_offset, info.size, None))
        return True if len(found) > length else None  # a tree with a cycle has no end

    dataset.id.chunk_iter(add)
    if any(
        not 0 < kept <= rows or first % rows or offset >= 1 << 63
        for first, kept, offset, _, _ in found
    ):
        raise ValueError(f"{name!r} has chunks outside of it")
    return found
