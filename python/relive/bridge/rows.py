"""Formats that are read row by row: decoded on several threads, and put into columns."""

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from relive.bridge.options import ReadOptions
from relive.bridge.stream import BATCH_BYTES, BATCH_ROWS, ColumnBatch, Stream, value_bytes
from relive.errors import CorruptError
from relive.model.columns.cast import cast_rows
from relive.model.columns.infer import infer_fields
from relive.model.schema import Field
from relive.store.prefetch import Prefetch

Item = TypeVar("Item")

_GROUP_BYTES: Final = 1 << 20
_SAMPLE_BYTES: Final = 64 << 20


class RowReader(ABC, Generic[Item]):
    """Reads items in order, which is cheap, and decodes them to rows, which may not be."""

    total: int | None = None
    """The number of items, if it is known before they are read."""
    declared: Mapping[str, Field] | None = None
    """All fields, if they are known without reading rows."""
    parallel: bool = True
    """Whether `row` releases the GIL, so that several threads are faster than one."""
    group: int = 32
    """How many items a thread decodes at once; few if rows are much larger than items."""

    @property
    @abstractmethod
    def fingerprint(self) -> Mapping[str, Any]:
        """See `Stream.fingerprint`."""

    @abstractmethod
    def items(self, start: int) -> Iterator[Item | CorruptError]:
        """Yield the items from `start` on; a damaged item may be yielded as its error."""

    @abstractmethod
    def row(self, item: Item) -> Mapping[str, Any]:
        """Decode an item. Called on any thread."""

    def adjust_fields(self, fields: dict[str, Field]) -> dict[str, Field]:
        """Return the fields to use instead of those inferred from the first rows."""
        return fields


class RowStream(Stream):
    """The rows of a reader as columns.

    Fields that neither the reader nor the options define are inferred from the first rows.
    """

    def __init__(self, reader: RowReader[Any], options: ReadOptions) -> None:
        self._reader = reader
        self._selection = options.fields
        self._skips = options.errors == "skip"
        self._workers = options.workers if reader.parallel else 1
        self._batch = options.batch or BATCH_ROWS
        self.total = reader.total
        types = self._selection.types
        fields = reader.declared
        if fields is None:
            with contextlib.closing(self._rows(0)) as rows:
                first = _at_most(_SAMPLE_BYTES, itertools.islice(rows, options.sample))
            self._selection.check([*(name for row in first for name in row), *types])
            fields = self._infer(first)
        else:
            self._selection.check(fields)
        self.fields = {
            name: types.get(name, field)
            for name, field in fields.items()
            if self._selection.keeps(name)
        }

    def _infer(self, rows: list[Mapping[str, Any]]) -> dict[str, Field]:
        keeps, types = self._selection.keeps, self._selection.types
        unknown = [
            {name: value for name, value in row.items() if keeps(name) and name not in types}
            for row in rows
        ]
        inferred = self._reader.adjust_fields(infer_fields(unknown))
        names = dict.fromkeys(name for row in rows for name in row if keeps(name))
        return {name: types.get(name) or inferred[name] for name in [*names, *types]}

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """That of the reader."""
        return self._reader.fingerprint

    def batches(self, start: int = 0) -> Iterator[ColumnBatch]:
        """Yield the rows from `start` on."""
        self.skipped = 0
        with contextlib.closing(self._rows(start)) as rows:
            while batch := _at_most(BATCH_BYTES, itertools.islice(rows, self._batch)):
                columns = cast_rows(batch, self.fields, start, self._selection.keeps)
                yield ColumnBatch(len(batch), columns)
                start += len(batch)

    def _rows(self, start: int) -> Generator[Mapping[str, Any]]:
        workers = self._workers
        groups = _grouped(self._reader.items(start), self._reader.group)
        decoded: Iterable[list[Mapping[str, Any] | Exception]]
        with contextlib.ExitStack() as stack:
            if workers == 1:
                decoded = map(self._decode, groups)
            else:
                decoded = Prefetch(
                    self._decode, groups, workers=workers, ahead=2 * workers, name="relive-convert"
                )
                stack.callback(decoded.close)
            for row in itertools.chain.from_iterable(decoded):
                if not isinstance(row, Exception):
                    yield row
                elif self._skips and isinstance(row, CorruptError):
                    self.skipped += 1
                else:
                    raise row

    def _decode(self, items: list[Any]) -> list[Mapping[str, Any] | Exception]:
        """Decode some items; an error is returned in the position of its row."""
        rows: list[Mapping[str, Any] | Exception] = []
        for item in items:
            try:
                rows.append(item if isinstance(item, CorruptError) else self._reader.row(item))
            except Exception as error:  # noqa: BLE001 - raised after the rows before it
                rows.append(error)
        return rows


def _grouped(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Yield the items in lists; an error is raised after the items before it."""
    group: list[Item] = []
    size = 0
    try:
        for item in items:
            group.append(item)
            size += value_bytes(item)
            if len(group) >= most or size >= _GROUP_BYTES:
                yield group
                group, size = [], 0
    except Exception:
        if group:
            yield group
        raise
    if group:
        yield group


def _at_most(most_bytes: int, rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found, size = [], 0
    for row in rows:
        found.append(row)
        size += sum(map(value_bytes, row.values()))
        if size >= most_bytes:
            break
    return found
