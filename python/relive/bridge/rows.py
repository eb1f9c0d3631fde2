"""Rows that come one after the other, decoded on several threads and put into columns."""

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from relive.bridge.cast import fit_rows
from relive.bridge.infer import infer_fields
from relive.bridge.options import Choice
from relive.bridge.stream import BATCH_BYTES, BATCH_ROWS, Chunk, Stream, value_bytes
from relive.model.schema import Field

__all__ = ["RowReader", "RowStream", "ordered_map"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_GROUP_BYTES: Final = 1 << 20
_SAMPLE_BYTES: Final = 64 << 20


class RowReader(ABC, Generic[Item]):
    """Reads items one after the other, cheaply, and makes rows of them, maybe at some cost."""

    declared: Mapping[str, Field] | None = None
    """All fields, where they are known without looking at rows."""
    parallel: bool = True
    """Whether `row` lets other threads run; else more of them would only get in the way."""
    group: int = 32
    """How many items a thread takes at once; few where rows are much larger than items."""

    @property
    @abstractmethod
    def total(self) -> int | None:
        """The number of items, where that is known before they are read."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """See `Stream.identity`."""

    @abstractmethod
    def items(self, start: int) -> Iterator[Item]:
        """Give the items from `start` on; only what is given need be read."""

    @abstractmethod
    def row(self, item: Item) -> Mapping[str, Any]:
        """Make a row of an item. Called on any thread."""

    def settle(self, fields: dict[str, Field]) -> dict[str, Field]:
        """Give the fields to use for those that the first rows fit into."""
        return fields


class RowStream(Stream):
    """The rows of a reader as columns.

    Fields that neither the reader nor `choice` knows are those that the first `sample` rows
    fit into.
    """

    def __init__(
        self,
        reader: RowReader[Any],
        choice: Choice,
        *,
        sample: int,
        workers: int,
        batch: int | None,
    ) -> None:
        self._reader = reader
        self._choice = choice
        self._workers = workers if reader.parallel else 1
        self._batch = batch or BATCH_ROWS
        found = reader.declared
        if found is None:
            with contextlib.closing(self._rows(0)) as rows:
                first = _bounded(itertools.islice(rows, sample))
            choice.check([*(name for row in first for name in row), *choice.given])
            found = self._infer(first)
        else:
            choice.check(found)
        self._fields = {
            name: choice.given.get(name, field)
            for name, field in found.items()
            if choice.keeps(name)
        }

    def _infer(self, rows: list[Mapping[str, Any]]) -> dict[str, Field]:
        keeps, given = self._choice.keeps, self._choice.given
        unknown = [
            {name: value for name, value in row.items() if keeps(name) and name not in given}
            for row in rows
        ]
        inferred = self._reader.settle(infer_fields(unknown))
        names = dict.fromkeys(name for row in rows for name in row if keeps(name))
        return {name: given.get(name) or inferred[name] for name in [*names, *given]}

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every row, by name."""
        return self._fields

    @property
    def total(self) -> int | None:
        """The number of rows, where that is known before they are read."""
        return self._reader.total

    @property
    def identity(self) -> Mapping[str, Any]:
        """What tells these rows from others."""
        return self._reader.identity

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Give the rows from `start` on."""
        first = start
        rows: list[Mapping[str, Any]] = []
        size = 0
        with contextlib.closing(self._rows(start)) as every:
            for row in every:
                rows.append(row)
                size += sum(map(value_bytes, row.values()))
                if len(rows) >= self._batch or size >= BATCH_BYTES:
                    yield self._chunk(rows, first)
                    first += len(rows)
                    rows, size = [], 0
        if rows:
            yield self._chunk(rows, first)

    def _rows(self, start: int) -> Generator[Mapping[str, Any]]:
        items = self._reader.items(start)
        return ordered_map(self._reader.row, items, workers=self._workers, group=self._reader.group)

    def _chunk(self, rows: list[Mapping[str, Any]], first: int) -> Chunk:
        return Chunk(len(rows), fit_rows(rows, self._fields, first, self._choice.keeps))


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int,
    group: int = 1,
) -> Generator[Result]:
    """Give `function` of every item in order, worked out ahead by `workers` threads.

    At most a few groups of items are held. What fails is raised in its place, after the
    results before it.
    """
    if workers <= 1:
        yield from map(function, items)
        return

    def work(part: list[Item]) -> list[Result]:
        return [function(item) for item in part]

    pool = ThreadPoolExecutor(workers, thread_name_prefix="relive-convert")
    waiting: deque[Future[list[Result]]] = deque()
    try:
        for part in _groups(items, group):
            if isinstance(part, Exception):
                break
            waiting.append(pool.submit(work, part))
            if len(waiting) > 2 * workers:
                yield from waiting.popleft().result()
        else:
            part = None
        while waiting:
            yield from waiting.popleft().result()
        if part is not None:
            raise part
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _groups(items: Iterable[Item], most: int) -> Iterator[list[Item] | Exception]:
    """Give the items in groups, and at the end the error that stopped them, if one did."""
    part: list[Item] = []
    size = 0
    trouble = None
    try:
        for item in items:
            part.append(item)
            size += value_bytes(item)
            if len(part) >= most or size >= _GROUP_BYTES:
                yield part
                part, size = [], 0
    except Exception as error:  # noqa: BLE001 - whoever takes the groups raises it
        trouble = error
    if part:
        yield part
    if trouble is not None:
        yield trouble


def _bounded(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found, size = [], 0
    for row in rows:
        found.append(row)
        size += sum(map(value_bytes, row.values()))
        if size >= _SAMPLE_BYTES:
            break
    return found
