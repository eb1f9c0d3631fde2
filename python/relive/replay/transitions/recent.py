"""Steps that a recorder of this process has accepted, and that may not be committed yet."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from relive._native import RecentArrays, Step
from relive.replay.arrays import FINAL
from relive.replay.columns import ColumnSpec
from relive.replay.transitions.steps import NO_END, OBSERVATIONS

_MAX_WAITING: Final = 1024
"""Items that nothing has read yet are looked through for committed ones when they are more."""


_MAX_WAITING_BYTES: Final = 64 << 20
"""And when they have more bytes."""


class EpisodeEnd(Protocol):
    """The end of an episode, as a recorder has it."""

    episode: Any
    terminated: bool
    truncated: bool
    arrays: Any
    present: Sequence[str]
    dropped: int


@dataclass(frozen=True, slots=True)
class RecentEnd:
    """The end of an episode that was accepted."""

    end: EpisodeEnd
    arrays_row: int
    """The row of its arrays, or `NO_END`."""
    step_row: int
    """When a step after this row is committed, so is the end."""

    @property
    def row(self) -> int:
        """The row of what was seen last, or `NO_END`."""
        return self.arrays_row if FINAL + OBSERVATIONS in self.end.present else NO_END


class RecentSteps:
    """The steps and ends of episodes that were accepted since it was made. Thread-safe.

    Args:
        next_row: The row of the first step.
        next_end: The row of the first last observation.
        committed: Returns how many steps of the run are committed.
        is_open: Whether the recorder still records.
        is_aborted: Whether its steps were removed.
        flush: Commits everything that was accepted.
        columns: Returns the columns of the recorder.
    """

    def __init__(
        self,
        *,
        next_row: int,
        next_end: int,
        committed: Callable[[], int],
        is_open: Callable[[], bool],
        is_aborted: Callable[[], bool],
        flush: Callable[[], None],
        columns: Callable[[], Sequence[tuple[int, ColumnSpec]]],
    ) -> None:
        # The item that was added last, which is set together with the row of the next end.
        self._newest: tuple[Any, int] = None, next_end
        self._committed = committed
        self._is_open = is_open
        self._is_aborted = is_aborted
        self.flush = flush
        self._columns = columns
        self.reading = threading.RLock()
        """Held while what is in memory is used."""
        self._waiting: deque[tuple[Any, int]] = deque()
        # Two counts, since different threads add and take.
        self._added_bytes = self._taken_bytes = 0
        self.first_row = next_row
        """The row of the first of `steps`."""
        self.steps: list[Step] = []
        self.ends: dict[int, RecentEnd] = {}
        """The ends of episodes by number."""
        self.arrays = RecentArrays()
        self.version = 0
        """Changes with what was accepted."""
        self.must_flush = False
        """Whether steps before `first_row` may not be committed."""
        self.is_forgotten = False
        """Whether steps were forgotten because their recorder removed them."""
        self._specs: list[ColumnSpec] = []
        self._first_end = next_end

    def add(self, item: Any) -> None:
        """Add a step or the end of an episode that the recorder has accepted.

        May be called again for the same, if Ctrl-C interrupted it.
        """
        newest, next_end = self._newest
        if item is newest:
            return
        is_step = isinstance(item, Step)
        end = item.end if is_step else item
        row = NO_END
        if end is not None and end.arrays is not None:
            row, next_end = next_end, next_end + 1
        # If Ctrl-C comes between these two, the item is there twice, with the same row.
        self._waiting.append((item, row))
        self._newest = item, next_end
        self._added_bytes += item.nbytes
        waiting_bytes = self._added_bytes - self._taken_bytes
        is_much = len(self._waiting) > _MAX_WAITING or waiting_bytes > _MAX_WAITING_BYTES
        if is_much and self.reading.acquire(blocking=False):
            try:
                self._drop_committed()
            finally:
                self.reading.release()

    def is_newer(self, steps: int) -> bool:
        """Check whether a run that had so many steps when it was read has other ones now."""
        return not self._is_open() or self._committed() != steps

    @property
    def column_count(self) -> int:
        """How many columns the recorder has."""
        return len(self._columns())

    def read(self) -> int:
        """Take what was accepted, forget what is committed, and return the row after the last."""
        if self._is_aborted():
            self._forget_all()
            return 0
        for number, spec in self._columns()[len(self._specs) :]:
            self._specs.append(spec)
            if spec.stack == "last":
                self.arrays.separate(number, spec.shape[-1], np.dtype(spec.dtype).itemsize)
        # Before anything is taken: what is committed now can be read from the run.
        committed = self._committed()
        if self._waiting:
            self.version += 1
        while self._waiting:
            self._take(*self._waiting[0])
            self._next()  # only now: if Ctrl-C interrupts this, the item is taken again
        if committed > self.first_row:
            self._forget(committed)
        return self.first_row + len(self.steps)

    def _next(self) -> tuple[Any, int]:
        found = self._waiting.popleft()
        self._taken_bytes += found[0].nbytes
        return found

    def _take(self, item: Any, end_row: int) -> None:
        """Take a step or the end of an episode, whose last observation has the row `end_row`."""
        end, row = item, self.first_row + len(self.steps)
        if isinstance(item, Step):
            if item.row < row:  # it is there twice
                return
            if item.row != row:  # Ctrl-C interrupted `_drop_committed`
                self.must_flush = bool(self.steps)
                row = item.row
                self.first_row, self.steps = row, []
            self.arrays.add(row, item.arrays)
            end = item.end
        if end is not None and end.episode.number not in self.ends:
            if end.arrays is not None:
                self.arrays.add(end_row, end.arrays)
            self.ends[end.episode.number] = RecentEnd(end, end_row, row)
        if isinstance(item, Step):
            self.steps.append(item)  # last: then it is there

    def _forget(self, committed: int) -> None:
        """Forget steps that are committed, and the ends of episodes before them."""
        count = min(committed - self.first_row, len(self.steps))
        # No call between these two, so that Ctrl-C does not separate them.
        first_row, steps = self.first_row + count, self.steps[count:]
        self.first_row, self.steps = first_row, steps
        for number, each in list(self.ends.items()):
            if each.step_row < committed:
                del self.ends[number]
                self._first_end = max(self._first_end, each.arrays_row + 1)
        for number, spec in enumerate(self._specs):
            first = self._first_end if spec.rows_of == "ends" else self.first_row
            self.arrays.drop_before(number, first)

    def _forget_all(self) -> None:
        if self.is_forgotten:
            return
        self.is_forgotten = True
        while self._waiting:
            self._next()
        self.steps.clear()
        self.ends.clear()
        self.arrays = RecentArrays()
        self.first_row, self.must_flush = 0, False
        self.version += 1

    def _drop_committed(self) -> None:
        """Forget items that were not read, up to the last step that is committed."""
        committed = self._committed()
        found, row = 0, self.first_row
        for place, (item, _) in enumerate(self._waiting):
            if isinstance(item, Step):
                if item.row >= committed:
                    break
                found, row = place + 1, item.row + 1
        for _ in range(found):
            self._next()
        if found:
            self._forget(row)
            self.first_row = row
