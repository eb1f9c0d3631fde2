"""`BatchStream`: the batches of a table for training; sharded, shuffled, resumable."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, Self

import pyarrow as pa

from relive._arguments import as_int, type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.publish.read.batches import AUTO_STEPS, InOrderBatches
from relive.publish.read.filters.conditions import Filter
from relive.publish.read.scan import STEP_BYTES, Scan
from relive.publish.read.shards import TableShards
from relive.publish.read.stream.blocks import Ranges, TableBlocks, cut_ranges
from relive.publish.read.stream.options import StreamOptions
from relive.publish.read.stream.order import OrderPlan
from relive.publish.read.stream.steps import StepBatches

_LOG: Final = logging.getLogger("relive.publish")
_SAME: Final = ("digest", "table", "split", "filter", "length", "mode", "seed", "tail")
"""What must be the same to continue from a state."""
_ADOPTED: Final = ("window", "partitions")
"""What is taken from a state unless it was passed."""
_KEYS: Final = (*_SAME, *_ADOPTED, "rows_per_step", "position", "omitted", "repeated")


@dataclass(frozen=True)
class Selection:
    """Rows and columns of a published table."""

    digest: str
    table: str
    split: str | None
    shards: TableShards
    columns: Sequence[str]
    ranges: Ranges
    filters: Sequence[Filter]

    def scan(self, ranges: Ranges, limit: int | None = None) -> Scan:
        """Return a read of some of the rows."""
        return Scan(self.shards, self.columns, ranges, self.filters, limit)

    @cached_property
    def rows(self) -> int:
        """The number of rows, before filters."""
        return sum(stop - start for start, stop in self.ranges)

    def rows_until(self, matches: int) -> int:
        """Return how many of the first rows have so many that match the filters."""
        found = 0
        for rows in self.scan(self.ranges).positions():
            if found + len(rows) >= matches:
                last = int(rows[matches - found - 1]) if matches > found else -1
                return sum(max(0, min(stop, last + 1) - start) for start, stop in self.ranges)
            found += len(rows)
        return self.rows


class _Batches(Protocol):
    stalled_s: float

    def next(self) -> pa.RecordBatch | None: ...

    def close(self, *, wait: bool = True) -> None: ...


class BatchStream(Iterator[pa.RecordBatch]):
    """The rows of a table in record batches, one epoch at a time. For one consumer at a time.

    An iteration ends with its epoch; `set_epoch` begins another. The first batch is fetched alone;
    those after it are fetched and decoded ahead on threads, which end with the epoch, with
    `close()`, or when the stream is deleted. A stream is also a context manager.

    `state_dict()` is the position after the last batch that was returned. Another process may
    continue from it with another batch size and another number of ranks: together, all ranks get
    the rows that are left, in the same global order.

    Example:
        >>> import pyarrow as pa, relive
        >>> builder = relive.DatasetBuilder("demo/numbers", root="root")
        >>> builder.add_table("main", pa.table({"x": range(10)}))
        >>> _ = builder.publish()
        >>> table = relive.dataset("demo/numbers", root="root").table()
        >>> [batch.num_rows for batch in table.batches(4)]
        [4, 4, 2]
        >>> stream = table.batches(4, shuffle=True, seed=7)
        >>> first = next(stream)
        >>> state = stream.state_dict()
        >>> rest = table.batches(3, shuffle=True, seed=7)
        >>> rest.load_state_dict(state)
        >>> rows = [*first["x"].to_pylist(), *(x for batch in rest for x in batch["x"].to_pylist())]
        >>> sorted(rows) == list(range(10)), rest.epoch
        (True, 1)
    """

    def __init__(
        self,
        selection: Selection,
        options: StreamOptions,
        *,
        worker: tuple[int, int] | None = None,
    ) -> None:
        self._selection = selection
        self._options = options
        self._worker = worker  # its number, and how many there are
        self.schema: pa.Schema = selection.scan(selection.ranges).schema
        """The schema of every batch."""
        self._window = options.window
        self._partitions = options.partitions or options.world_size
        self._rows_per_step = options.span
        self._epoch = self._offset = self._omitted = self._repeated = 0
        self._batches: _Batches | None = None
        self._is_ended = False
        self._rows = self._count = 0
        self._stalled_s = 0.0
        self._first_stats = selection.shards.blobs.stats
        if not (options.limit and selection.filters):
            self._check_rows()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch of this rank. An error ends the iteration, Ctrl-C does not."""
        if self._is_ended:
            raise StopIteration
        before = self._offset, self._omitted, self._repeated, self._rows, self._count
        try:
            if self._batches is None:
                self._batches = self._begin()
            batch = None if self._batches is None else self._batches.next()
            if batch is not None:
                self._rows += batch.num_rows
                self._count += 1
                self._move()
        except BaseException as error:
            # Ctrl-C may come between any two changes of the reader. The next call makes another,
            # from the position after the last batch that was returned; that of a worker cannot
            # begin in the middle.
            self._offset, self._omitted, self._repeated, self._rows, self._count = before
            self._stop(wait=False)
            self._is_ended = isinstance(error, Exception) or self._worker is not None
            raise
        if batch is None:
            self._end_epoch()
            raise StopIteration
        return batch

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; in the epoch that the stream is in, continue.

        Each epoch has another order of a shuffled stream. So a loop may begin every epoch with
        `set_epoch`, also the one that it resumes in the middle.
        """
        number = as_int("epoch", epoch)
        if number != self._epoch:
            self._stop(wait=True)
            self._epoch, self._offset = number, 0
        self._is_ended = False

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch has, for every rank."""
        whole, rest = divmod(self._length, self._options.span)
        return whole if self._options.tail == "drop" else whole + bool(rest)

    def skip(self, steps: int) -> None:
        """Leave out the next steps, at most to the end of the epoch; nothing is read."""
        self._stop(wait=True)
        self._is_ended = False
        moved = self._offset + as_int("steps", steps) * self._options.span
        if moved > self._length and self._options.tail == "pad":
            self._repeated += (
                self._options.span - (self._length - self._offset) % self._options.span
            )
        self._offset = min(moved, self._length)
        left = self._length - self._offset
        if self._options.tail == "drop" and left < self._options.span:
            self._offset, self._omitted = self._length, self._omitted + left

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch, and what the order depends on.

        It is the same for all ranks that have taken equally many steps, and can be written as
        JSON.
        """
        return {
            **self._identity(),
            "window": self._order_window() if self._options.shuffle else None,
            "partitions": self._partitions,
            "rows_per_step": self._rows_per_step,
            "position": self._epoch * self._length + self._offset,
            "omitted": self._omitted,
            "repeated": self._repeated,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Batch size, ranks and workers may have changed since.

        A state of another version, table, split, filter, order or seed is an `InvalidError`.
        """
        if not isinstance(state, Mapping):
            raise InvalidTypeError(f"`state` must be a dict, got {type_name(type(state))}")
        missing = [name for name in _KEYS if name not in state]
        if missing:
            raise InvalidError(f"`state` does not have the keys {', '.join(map(repr, missing))}")
        passed = {name: getattr(self._options, name) for name in _ADOPTED}
        expected = self._identity() | {
            name: value for name, value in passed.items() if value is not None
        }
        for name, value in expected.items():
            if state[name] != value:
                raise InvalidError(
                    f"the state was saved with {name}={state[name]!r}, "
                    f"but this stream has {name}={value!r}",
                    hint="open the version in `digest`, and pass the same arguments to batches()",
                )
        position = as_int("position", state["position"])
        self._stop(wait=True)
        self._is_ended = False
        if state["window"] is not None:
            self._window = as_int("window", state["window"], at_least=1)
        self._partitions = as_int("partitions", state["partitions"], at_least=1)
        self._rows_per_step = as_int("rows_per_step", state["rows_per_step"], at_least=1)
        self._epoch, self._offset = divmod(position, max(1, self._length))
        self._omitted = as_int("omitted", state["omitted"])
        self._repeated = as_int("repeated", state["repeated"])

    def stats(self) -> dict[str, float]:
        """Return what was read so far, and for how long the consumer has waited.

        `rows` and `batches` are those that were returned. `requests` and `bytes` are all of the
        dataset since the stream was made, `hits` those reads that needed no request because the
        bytes were in the cache, and `stall_s` the seconds in which no batch was ready.
        """
        now, first = self._selection.shards.blobs.stats, self._first_stats
        reader = self._batches
        return {
            "rows": self._rows,
            "batches": self._count,
            "stall_s": self._stalled_s + (0.0 if reader is None else reader.stalled_s),
            "requests": now.requests - first.requests,
            "bytes": now.nbytes - first.nbytes,
            "hits": getattr(now, "hits", 0) - getattr(first, "hits", 0),
        }

    def close(self) -> None:
        """Stop, and wait until no thread of the stream runs."""
        self._stop(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @cached_property
    def _length(self) -> int:
        """The number of rows of an epoch, before filters."""
        rows, limit = self._selection.rows, self._options.limit
        if limit is None:
            return rows
        if not limit:
            return 0
        return self._selection.rows_until(limit) if self._selection.filters else min(rows, limit)

    @cached_property
    def _blocks(self) -> TableBlocks:
        one = self._selection
        ranges = cut_ranges(one.ranges, 0, self._length)
        return TableBlocks(one.shards, one.columns, ranges, one.filters)

    def _identity(self) -> dict[str, Any]:
        one, options = self._selection, self._options
        mode = "block" if options.shuffle else "sequential"
        conditions = [str(each.condition) for each in one.filters] or None
        of_rows = one.digest, one.table, one.split, conditions, self._length
        return dict(zip(_SAME, (*of_rows, mode, options.seed, options.tail), strict=True))

    def _order_window(self) -> int:
        if self._window is None:
            self._window = self._blocks.default_window
        return self._window

    def _check_rows(self) -> None:
        """Check that every rank has rows, and what `tail` requires of the last step."""
        options, span = self._options, self._options.span
        left = self._length - self._offset
        if self._partitions > self._rows_per_step:
            raise InvalidError(
                f"`partitions` must be at most batch_size × world size = {self._rows_per_step}, "
                f"got {self._partitions}"
            )
        if options.tail == "keep" and 0 < self._length < options.world_size:
            raise InvalidError(
                f"the stream has {self._length} rows for {options.world_size} ranks: some would "
                "have none",
                hint='use fewer ranks, or tail="pad"',
            )
        if options.tail == "drop" and 0 < self._length < span:
            raise InvalidError(
                f"the stream has no batches: an epoch has {left} rows, fewer than batch_size × "
                f'world size = {span}, and tail="drop" drops incomplete steps'
            )
        if options.tail == "error" and left % span:
            raise InvalidError(
                f"the last step has {left % span} rows, fewer than batch_size × world size = "
                f"{span}",
                hint='use tail="keep", "drop" or "pad"',
            )

    def _begin(self) -> _Batches | None:
        """Return the batches from the position on; None if there are no rows."""
        options = self._options
        if self._offset or options.world_size > 1:
            self._check_rows()  # the batch size may be another one than that of the state
        is_plain = not options.shuffle and self._partitions == 1 and self._worker is None
        if is_plain and options.world_size == 1 and options.tail != "pad":
            return self._begin_in_order()
        if self._offset >= self._length:
            return None
        cursor = self._epoch * self._length + self._offset, self._omitted, self._repeated
        ahead = None if options.prefetch is None else options.prefetch * STEP_BYTES
        plan = self._plan()
        _LOG.debug(
            "reading %s: %d rows in %d blocks, %d partitions, window of %d rows, rank %d of %d, "
            "from position %d",
            self._selection.shards.name, plan.length, len(self._blocks), plan.partitions,
            plan.window, plan.rank, plan.world_size, cursor[0],
        )  # fmt: skip
        return StepBatches(self._blocks, plan, cursor, self._worker or (0, 1), ahead)

    def _plan(self) -> OrderPlan:
        options, blocks = self._options, self._blocks
        # Rows that are not shuffled are only fetched in windows, of about two blocks.
        unshuffled = 2 * self._length // max(1, len(blocks)) + 1
        return OrderPlan(
            bounds=blocks.bounds,
            shuffle=options.shuffle,
            seed=options.seed,
            window=self._order_window() if options.shuffle else unshuffled,
            partitions=self._partitions,
            rows_per_step=self._rows_per_step,
            tail=options.tail,
            batch_size=options.batch_size,
            rank=options.rank,
            world_size=options.world_size,
        )

    def _begin_in_order(self) -> InOrderBatches:
        one, options = self._selection, self._options
        limit = options.limit
        ranges, offset = one.ranges, self._offset
        if offset or options.tail == "drop" or not one.filters:
            # Without them, a filtered stream with a limit ends when it has found enough.
            stop = self._length
            if options.tail == "drop":
                stop -= (stop - offset) % options.batch_size
            ranges, limit = cut_ranges(ranges, offset, stop), None
        ahead = options.prefetch
        if ahead is None:
            ahead = 0 if one.filters and options.limit is not None else AUTO_STEPS
        scan = one.scan(ranges, limit)
        return InOrderBatches(scan, options.batch_size, limit, ahead, first=offset)

    def _move(self) -> None:
        """Set the position to that after the batch that is returned."""
        reader = self._batches
        if isinstance(reader, InOrderBatches):
            self._offset = reader.position
        elif isinstance(reader, StepBatches):
            position, self._omitted, self._repeated = reader.cursor
            self._offset = position - self._epoch * self._length

    def _end_epoch(self) -> None:
        if self._options.tail == "drop":
            self._omitted += self._length - self._offset
        self._stop(wait=True)
        self._epoch, self._offset = self._epoch + 1, 0
        _LOG.info(
            "end of epoch %d of %s: %s", self._epoch - 1, self._selection.shards.name, self.stats()
        )

    def _stop(self, *, wait: bool) -> None:
        self._is_ended = True
        reader, self._batches = self._batches, None
        if reader is not None:
            self._stalled_s += reader.stalled_s
            reader.close(wait=wait)
