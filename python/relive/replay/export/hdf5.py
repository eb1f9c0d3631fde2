"""Writes a run as an HDF5 file that every HDF5 tool reads, without a filter plugin."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int, check_choice
from relive._native import RunArraysWriter, StepArrays, timestamp
from relive.errors import InvalidError
from relive.model.report import Progress
from relive.replay.arrays import FINAL, RunArrays, SmallDataset
from relive.replay.columns import ColumnSpec, chunk_rows
from relive.replay.export.target import check_target
from relive.replay.source import source_of
from relive.replay.storage.tables import RunTables
from relive.replay.writing.writer import file_attributes, file_description
from relive.store.atomic import whole_file

FILTERS: Final = {"gzip": "deflate", "none": "raw"}
"""The filters that are part of HDF5, and the codecs that write their bytes."""
PLAIN_VERSION: Final = "1.0"
"""The version of the plain layout."""
GZIP_LEVEL: Final = 4

_BLOCK_BYTES: Final = 16 << 20
_THREADS: Final = 2
_PLAIN: Final = ("frames", "observations", "actions")


def export_h5(
    root: str | os.PathLike[str],
    run_id: str | None,
    target: str | os.PathLike[str],
    *,
    plain: bool = False,
    filter: str = "gzip",  # noqa: A002 - the word of HDF5
    level: int = GZIP_LEVEL,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write the arrays of a run as an HDF5 file, and return how many steps it has.

    The file appears when it is complete. The core of relive writes it: the library of HDF5 ends
    the process when the disk is full.

    Args:
        root: The directory of the runs, or the `.h5` file of a run.
        run_id: The id of the run; None for a file.
        target: The `.h5` or `.hdf5` file to write. The files of the runs themselves are an
            `InvalidError`.
        plain: Write `/frames`, `/observations`, `/actions`, `/rewards` (float32), `/dones`,
            `/episodes/starts` and `/episodes/lengths`, with whole observations, episode by episode.
            A step without a value has zeros there, and one without a reward NaN. Otherwise the file
            has the datasets of the file of the run.
        filter: `gzip` or `none`.
        level: The level of gzip, 1 to 9.
        overwrite: Replace an existing file.
        progress: Called with how many rows of arrays are written, and of all of them.
    """
    check_choice("filter", filter, tuple(FILTERS))
    as_int("level", level, at_least=1, at_most=9)
    source = source_of(root, run_id)
    path = check_target(target, (".h5", ".hdf5"), [source])
    tables = source.tables
    if tables.run.steps and not tables.columns:
        raise InvalidError(
            f"run {tables.run.run_id!r} was recorded without arrays",
            hint="export its steps to Parquet",
        )
    codec = FILTERS[filter], level if filter == "gzip" else None
    arrays = source.arrays if tables.columns else None
    with whole_file(path, overwrite=overwrite) as file:
        part = Path(f"{file.name}.part")
        try:
            export = (_Plain if plain else _Same)(tables, arrays, codec, progress)
            export.write(RunArraysWriter(part, threads=_THREADS))
            part.replace(file.name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    return tables.run.steps


class _Export(ABC):
    """Copies the columns of a run to a file."""

    def __init__(
        self,
        tables: RunTables,
        arrays: RunArrays | None,
        codec: tuple[str, int | None],
        progress: Progress | None,
    ) -> None:
        self._tables = tables
        self._arrays = arrays
        self._codec = codec
        self._progress = progress
        self._done = 0
        self._total: int | None = None
        count = tables.run.steps
        numbers = np.zeros(0, np.int64)
        if arrays is not None and count:
            numbers = arrays.read("episode", np.arange(count))
        self._order = np.argsort(numbers, kind="stable")
        lengths = np.bincount(numbers, minlength=tables.run.episodes).astype("<i8")
        self._lengths = lengths
        self._starts = np.cumsum(lengths) - lengths

    @abstractmethod
    def write(self, writer: RunArraysWriter) -> None:
        """Write the file."""

    def _encoded(self, spec: ColumnSpec) -> ColumnSpec:
        """Return a column with the filter of the export."""
        codec, level = self._codec
        shuffle = codec != "raw" and np.dtype(spec.dtype).itemsize > 1
        return replace(spec, codec=codec, level=level, shuffle=shuffle)

    def _episodes(self) -> list[SmallDataset]:
        return [
            _dataset("episodes/starts", self._starts),
            _dataset("episodes/lengths", self._lengths),
        ]

    def _count(self, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(self._done, self._total)


class _Same(_Export):
    """The datasets of the file of the run."""

    def write(self, writer: RunArraysWriter) -> None:
        """Write the file."""
        run, columns = self._tables.run, self._tables.columns
        lengths = {"steps": run.steps, "ends": run.ends}
        self._total = sum(lengths[spec.rows_of] for spec in columns)
        made = [self._encoded(spec) for spec in columns]
        for spec in made:
            writer.add_column(spec.described())
        for number, spec in enumerate(made):
            self._copy(writer, number, spec, lengths[spec.rows_of])
        datasets = self._episodes()
        if not np.array_equal(self._order, np.arange(run.steps)):
            datasets.append(_dataset("episodes/rows", self._order))
        # The metadata of the run's own file is elsewhere.
        described = replace(run, metadata_offset=None, metadata_bytes=None, metadata_crc=None)
        tables = replace(self._tables, run=described, columns=made)
        attributes = {**file_attributes(run), **file_description(tables)}
        writer.finish(run.steps, run.ends, attributes, datasets)
        writer.sync()

    def _copy(self, writer: RunArraysWriter, number: int, spec: ColumnSpec, count: int) -> None:
        arrays = self._arrays
        if arrays is None or spec.field not in arrays.fields or 0 in spec.shape:
            return
        for rows in _blocks(np.arange(count), spec):
            if spec.stack is not None:
                self._copy_stacks(writer, number, spec, rows, arrays)
            else:
                writer.append_rows(number, int(rows[0]), arrays.read(spec.name, rows))
            self._count(len(rows))

    def _copy_stacks(
        self,
        writer: RunArraysWriter,
        number: int,
        spec: ColumnSpec,
        rows: npt.NDArray[np.int64],
        arrays: RunArrays,
    ) -> None:
        """Copy the rows that have a value one by one, so that each plane is stored once again."""
        present = rows[arrays.are_valid(spec.field, rows)]
        values = arrays.read(spec.name, present)
        numbers = arrays.read("episode" if spec.rows_of == "steps" else f"{FINAL}episode", present)
        streams = [self._streams.get(episode, 0) for episode in numbers.tolist()]
        writer.append(
            [
                (row, StepArrays(stream, [(number, np.ascontiguousarray(value))]))
                for row, stream, value in zip(present.tolist(), streams, values, strict=True)
            ]
        )

    @cached_property
    def _streams(self) -> dict[int, int]:
        """A number for the sub-environment and agent of each episode."""
        keys: dict[tuple[int, str], int] = {}
        return {
            row.number: keys.setdefault((row.env_index, row.agent_id), len(keys))
            for row in self._tables.episodes
        }


class _Plain(_Export):
    """The layout that needs nothing but HDF5: whole observations, and one flag at episode ends."""

    def write(self, writer: RunArraysWriter) -> None:
        """Write the file."""
        run = self._tables.run
        columns = [
            self._encoded(replace(spec, stack=None, planes_of=None, chunk_rows=_rows(spec)))
            for field in _PLAIN
            for spec in self._fields().get(field, ())
        ]
        rewards, dones = (
            self._encoded(ColumnSpec(name, (), dtype, (), chunk_rows(size)))
            for name, dtype, size in (("rewards", "<f4", 4), ("dones", "|b1", 1))
        )
        self._total = run.steps * (len(columns) + 2)
        for spec in (*columns, rewards, dones):
            writer.add_column(spec.described())
        for number, spec in enumerate((*columns, rewards, dones)):
            first = 0
            for rows in _blocks(self._order, spec):
                if 0 not in spec.shape:
                    writer.append_rows(number, first, self._values(spec, first, rows))
                first += len(rows)
                self._count(len(rows))
        attributes: dict[str, str | int] = {
            "run_id": run.run_id,
            "total_steps": run.steps,
            "total_episodes": run.episodes,
            "created_at": timestamp(run.created_ns),
            "version": PLAIN_VERSION,
        }
        writer.finish(run.steps, run.ends, attributes, self._episodes(), chunk_table=False)
        writer.sync()

    def _fields(self) -> dict[str, list[ColumnSpec]]:
        return {} if self._arrays is None else self._arrays.fields

    def _values(
        self, spec: ColumnSpec, first: int, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any]:
        """Return the values of steps, the first of which is row `first` of the file."""
        arrays = self._arrays
        assert arrays is not None  # noqa: S101 - there are steps
        if spec.name == "rewards":
            rewards = arrays.read("rewards", rows)
            rewards[~arrays.are_valid("rewards", rows)] = np.nan
            with np.errstate(over="ignore"):  # it becomes infinite
                return rewards.astype("<f4")
        if spec.name == "dones":
            dones: npt.NDArray[np.bool_] = arrays.read("terminated", rows)
            dones |= arrays.read("truncated", rows)
            # An episode that was never closed ends where its recording ended.
            lasts = self._starts + self._lengths - 1
            lasts = lasts[(self._lengths > 0) & (lasts >= first) & (lasts < first + len(rows))]
            dones[lasts - first] = True
            return dones
        return arrays.read(spec.name, rows)


def _blocks(rows: npt.NDArray[np.int64], spec: ColumnSpec) -> Iterator[npt.NDArray[np.int64]]:
    """Iterate over parts of rows that need little memory, and each some whole chunks."""
    row_bytes = max(1, int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize)
    chunks = max(1, _BLOCK_BYTES // (row_bytes * spec.chunk_rows))
    size = chunks * spec.chunk_rows
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _rows(spec: ColumnSpec) -> int:
    """Return the rows of a chunk of whole observations."""
    row_bytes = int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
    return chunk_rows(row_bytes)


def _dataset(path: str, values: npt.NDArray[Any]) -> SmallDataset:
    values = values.astype("<i8")
    return path, values.dtype.str, list(values.shape), values.tobytes()
