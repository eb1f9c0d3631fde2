"""Anything that is a `Source`: `.npy` files, packs, record stores, and sources in memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.bridge.fingerprint import columns_fingerprint, file_fingerprint
from relive.bridge.options import ReadOptions, single_path
from relive.bridge.stream import BatchSize, ColumnBatch, Stream
from relive.errors import CorruptError, InvalidError
from relive.load.compose import Concat
from relive.model.columns.cast import Column
from relive.model.ragged import Ragged
from relive.model.select import Subset, members
from relive.model.source import Source
from relive.store.arrays import ArraySource
from relive.store.pack import PackReader
from relive.store.records import RecordStore


def open_source(source: Source, options: ReadOptions) -> Stream:
    """Return the rows of a source; with `steps`, those of the runs of a pack."""
    if options.steps:
        if not isinstance(source, PackReader):
            raise InvalidError(
                f"`steps` can be used only with packs, but the source is {type_name(type(source))}"
            )
        source = source.steps()
    return SourceStream(source, options)


def open_npy(paths: list[str], options: ReadOptions) -> Stream:
    """Return the rows of `.npy` files."""
    sources = [ArraySource(path) for path in paths]
    source = Concat(*sources) if len(sources) > 1 else sources[0]
    return SourceStream(source, options, file_fingerprint(paths))


def open_pack(paths: list[str], options: ReadOptions) -> Stream:
    """Return the entries of packs, or with `steps` the steps of their runs."""
    reader = PackReader.open(paths)
    # Remote files have no modification time; their values are compared instead.
    files = file_fingerprint(paths) if reader.is_local else None
    return SourceStream(reader.steps() if options.steps else reader, options, files)


def open_records(paths: list[str], options: ReadOptions) -> Stream:
    """Return the records of a record store."""
    path = Path(single_path(paths, "record stores"))
    files = file_fingerprint(sorted(file for file in path.rglob("*") if file.is_file()))
    return SourceStream(RecordStore.open(path), options, files)


class SourceStream(Stream):
    """The rows of a source, in order.

    The fingerprint is that of `files`, or without them that of all values.
    """

    def __init__(
        self, source: Source, options: ReadOptions, files: list[Any] | None = None
    ) -> None:
        self._source = source
        self._batch = options.batch
        self._skips = options.errors == "skip"
        self._files = files
        self.fields = source.fields
        self.total: int = len(source)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Length, fields, and the files or a digest of all values."""
        fields = {name: repr(field) for name, field in self.fields.items()}
        # The digest depends on the batches, so their size must not depend on `batch`.
        values = self._files or columns_fingerprint(b.columns for b in self._read(0, BatchSize()))
        return {"rows": self.total, "source": fields, "values": values}

    def batches(self, start: int = 0) -> Iterator[ColumnBatch]:
        """Yield the rows from `start` on, with one gather per batch."""
        return self._read(start, BatchSize(self._batch))

    def _read(self, start: int, size: BatchSize) -> Iterator[ColumnBatch]:
        self.skipped = 0
        while start < self.total:
            rows = np.arange(start, min(start + size.rows, self.total), dtype=np.int64)
            start += len(rows)
            rows, values = self._gather(rows)
            batch = ColumnBatch(
                len(rows), {name: self._column(name, values[name], rows) for name in values}
            )
            size.adapt(batch)
            yield batch

    def _gather(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Any]:
        """Return the values of rows, without those that are damaged if these are skipped."""
        try:
            return rows, self._source.gather(rows)
        except CorruptError:
            if not self._skips:
                raise
        good = rows[[self._is_readable(row) for row in rows]]
        self.skipped += len(rows) - len(good)
        return good, self._source.gather(good)

    def _is_readable(self, row: np.int64) -> bool:
        try:
            self._source.gather([row])
        except CorruptError:
            return False
        return True

    def _column(
        self, name: str, values: npt.NDArray[Any] | Ragged, rows: npt.NDArray[np.int64]
    ) -> Column:
        variable = isinstance(values, np.ndarray) and values.dtype.hasobject
        missing = _missing(self._source, name, rows)
        if missing is None or not missing.any():
            return list(values) if variable else values
        return [None if gone else value for gone, value in zip(missing, values, strict=True)]


def _missing(source: Source, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:
    """Return which rows have no value in a field, or None if the source does not record it."""
    if isinstance(source, Subset):
        return _missing(source.source, name, members(source.rows, rows))
    missing = getattr(source, "missing", None)
    return None if missing is None else np.asarray(missing(name, rows))
