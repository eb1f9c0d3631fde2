"""Rows in order, in record batches of exactly the requested size, fetched ahead on threads."""

import time
from collections import deque
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Self

import pyarrow as pa

from relive.errors import TooLargeError
from relive.publish.read.scan import Scan, Step
from relive.store.prefetch import Prefetch

AUTO_STEPS: Final = 12
"""How many steps are fetched and decoded ahead by default."""
_AHEAD_BYTES: Final = 128 << 20


class TableStream(Iterator[pa.Table]):
    """The rows of a scan in order, one table for each step. For one consumer at a time.

    The first step is fetched alone, and of a large row group the first rows are decoded alone.
    After it, up to `ahead` steps and 128 MiB are fetched and decoded on threads, which end with
    the iteration, with `close()`, or when the stream is deleted. With `numbered`, tables have
    their positions in a last column.
    """

    def __init__(self, scan: Scan, first_rows: int, ahead: int, *, numbered: bool = False) -> None:
        self._scan = scan
        self._read = scan.read_numbered if numbered else scan.read
        self._is_numbered = numbered
        self._ahead = ahead
        self._first_rows = first_rows
        self._steps: Iterator[Step] = scan.steps(first_rows)
        self._step: Step | None = None
        self._tables: Prefetch[Step, pa.Table] | None = None
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.Table:
        """Return the rows of the next step. An error ends the iteration, Ctrl-C does not."""
        if self._ended:
            raise StopIteration
        try:
            return self._next()
        except Exception:
            self._end(wait=False)
            raise

    def close(self, *, wait: bool = True) -> None:
        """Stop; with `wait`, return when no thread of the stream runs."""
        self._end(wait=wait)

    def _next(self) -> pa.Table:
        if self._tables is not None:
            return next(self._tables)
        if self._step is None:
            self._step = next(self._steps)
        if self._is_numbered:
            table, rest = self._read(self._step), None
        else:
            table, rest = self._scan.read_first(self._step, self._first_rows)
        self._step = None
        if rest is not None:
            self._steps = chain([rest], self._steps)
        if self._ahead:
            # Only now: the first rows do not share the connection with those after them.
            self._tables = Prefetch(
                self._read,
                self._steps,
                workers=self._ahead,
                ahead=self._ahead,
                name="relive-batches",
                size=attrgetter("nbytes"),
                most=_AHEAD_BYTES,
            )
        return table

    def _end(self, *, wait: bool) -> None:
        self._ended = True
        self._step = None
        tables, self._tables = self._tables, None
        if tables is not None:
            tables.close(wait=wait)


class InOrderBatches:
    """The rows of a scan in order, in record batches of one size. For one consumer at a time.

    Args:
        scan: What to read.
        batch_size: The rows of a batch; only the last may have fewer.
        limit: The number of rows after which to stop.
        ahead: The number of steps that are fetched ahead after the first batch.
        first: The position of the first row of the scan.
    """

    def __init__(
        self, scan: Scan, batch_size: int, limit: int | None, ahead: int, *, first: int = 0
    ) -> None:
        self._schema = scan.schema
        self._size = batch_size
        self._left = limit
        first_rows = batch_size if limit is None else min(batch_size, limit)
        self._tables = TableStream(scan, first_rows, ahead, numbered=scan.is_filtered)
        self._parts: deque[pa.RecordBatch] = deque()
        self._buffered = 0
        self._ended = limit == 0
        self._first = first
        self._has_numbers = scan.is_filtered
        self.position = first
        """The position after the last row that was returned; rows that do not match count, too."""
        self.stalled_s = 0.0
        """For how long the consumer has waited."""

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch, None at the end; only the last may have fewer rows."""
        most = self._size if self._left is None else min(self._size, self._left)
        while self._buffered < most and not self._ended:
            self._receive()
        rows = min(most, self._buffered)
        if not rows:
            self.close()
            return None
        batch = self._take(rows)
        if self._has_numbers:
            *columns, numbers = batch.columns
            batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            self.position = self._first + numbers[-1].as_py() + 1
        else:
            self.position += rows
        if self._left is not None:
            self._left -= rows
            if not self._left:
                self.close()
        return batch

    def close(self, *, wait: bool = True) -> None:
        """Stop; with `wait`, return when no thread runs."""
        self._ended = True
        self._parts.clear()
        self._buffered = 0
        self._tables.close(wait=wait)

    def _receive(self) -> None:
        """Wait for the rows of the next step."""
        started = time.perf_counter()
        try:
            table = next(self._tables, None)
        except Exception:
            self._ended = True
            self._parts.clear()
            self._buffered = 0
            raise
        self.stalled_s += time.perf_counter() - started
        if table is None:
            self._ended = True
            return
        for part in table.to_batches():
            if part.num_rows:
                self._parts.append(part)
                self._buffered += part.num_rows

    def _take(self, rows: int) -> pa.RecordBatch:
        self._buffered -= rows
        parts: list[pa.RecordBatch] = []
        while rows:
            part = self._parts.popleft()
            if part.num_rows > rows:
                self._parts.appendleft(part.slice(rows))
                part = part.slice(0, rows)
            parts.append(part)
            rows -= part.num_rows
        return joined(parts)


def joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return record batches, at least one, as one."""
    if len(parts) == 1:
        return parts[0]
    table: Any = pa.Table.from_batches(parts)
    try:
        (batch,) = table.unify_dictionaries().combine_chunks().to_batches() or parts[:1]
    except ValueError:
        raise TooLargeError(
            f"{table.num_rows} rows do not fit in one record batch: a column of text has more "
            "than 2 GiB",
            hint="use a smaller batch_size",
        ) from None
    found: pa.RecordBatch = batch
    return found
