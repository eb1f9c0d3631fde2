"""When transitions may be drawn: how many there must be, and how often each step is drawn."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Self

from relive._arguments import as_int, type_name
from relive._forks import call_after_fork
from relive.errors import InvalidError, InvalidTypeError, OverloadError

RATE_ARGUMENTS: Final = ("min_size", "samples_per_insert", "timeout")
"""The names of the arguments of `Rate.of`."""

_POLL_S: Final = 0.01
_STATE: Final = ("first", "samples", "has_enough")


@dataclass(frozen=True, slots=True)
class Rate:
    """The arguments that limit draws."""

    min_size: int
    """How many transitions there must be."""
    samples_per_insert: float | None
    """How many transitions are drawn for each step that is recorded; None for any number."""
    timeout: float | None
    """How many seconds a draw waits; None for as long as the run is recorded."""

    @classmethod
    def of(
        cls,
        min_size: int = 0,
        samples_per_insert: float | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Check the arguments."""
        return cls(
            as_int("min_size", min_size, at_least=0),
            None
            if samples_per_insert is None
            else _positive("samples_per_insert", samples_per_insert),
            None if timeout is None else _positive("timeout", timeout, or_zero=True),
        )

    @property
    def is_limited(self) -> bool:
        """Whether a draw may have to wait."""
        return self.min_size > 0 or self.samples_per_insert is not None


@dataclass(frozen=True, slots=True)
class RunSize:
    """What is known of a run at one moment."""

    steps: int
    """The steps of the run."""
    length: int
    """How many transitions there are."""
    is_full: bool
    """Whether the window has as many steps as it can have: some are no transitions."""
    steps_of: Callable[[int], int]
    """Returns how many steps the run had when it had so many transitions."""


class RateLimit:
    """Counts the steps that were recorded and the transitions that were drawn. Thread-safe.

    Steps that are there at the start do not count, nor do those until there are `min_size`
    transitions, or the window is full.

    Args:
        rate: The arguments.
        first: The steps of the run at the start.
    """

    def __init__(self, rate: Rate, first: int) -> None:
        self.rate = rate
        self._first = first
        self._has_enough = False
        self._samples = 0
        self._ahead = 0
        self._lock = threading.Lock()
        call_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock, in a forked process."""
        self._lock = threading.Lock()

    def due(self, size: RunSize) -> int | None:
        """Return how many transitions may be drawn now; None for any number."""
        with self._lock:
            return self._due(size)

    def _due(self, size: RunSize) -> int | None:
        if size.length < self._least(size):
            return 0
        if not self._has_enough:
            if self.rate.min_size:
                self._first = max(self._first, size.steps_of(self.rate.min_size))
            self._has_enough = True
        ratio = self.rate.samples_per_insert
        if ratio is None:
            return None
        return max(0, math.floor(ratio * max(0, size.steps - self._first)) - self._samples)

    def _least(self, size: RunSize) -> int:
        """Return how many transitions are enough; a full window cannot have more than it has."""
        return 1 if size.is_full else max(1, self.rate.min_size)

    def add(self, samples: int, *, ahead: int = 0) -> None:
        """Count transitions as drawn, and as drawn ahead; or, if negative, as not."""
        if self.rate.is_limited:
            with self._lock:
                self._samples += samples
                self._ahead += ahead

    def wait(
        self,
        count: int,
        size_now: Callable[[], RunSize],
        is_live: Callable[[], bool],
        *,
        is_own: Callable[[], bool],
        ahead: bool,
    ) -> None:
        """Wait until `count` transitions may be drawn, and count them.

        Args:
            count: How many are drawn.
            size_now: Returns the size of the run now.
            is_live: Whether the run is still recorded.
            is_own: Whether this process records it: then waiting would never end.
            ahead: Whether they are drawn ahead.
        """
        until = None if self.rate.timeout is None else time.monotonic() + self.rate.timeout
        while True:
            # Asked first: what is recorded last is in the size that is read then.
            live = is_live()
            size = size_now()
            with self._lock:
                due = self._due(size)
                if due is None or due >= count:
                    self._samples += count
                    self._ahead += count if ahead else 0
                    return
            if live and is_own():
                raise self._error(
                    count,
                    size,
                    "and the process that draws is the one that records",
                    hint="record further steps first: `due` is how many may be drawn",
                )
            if not live:
                raise self._error(count, size, "and no process is recording the run")
            if until is not None and time.monotonic() >= until:
                raise self._error(
                    count, size, f"and none were recorded for {self.rate.timeout:g} s"
                )
            time.sleep(_POLL_S)

    def state_dict(self) -> dict[str, int]:
        """Return the counts. What was drawn ahead, and not returned, does not count."""
        with self._lock:
            values = self._first, self._samples - self._ahead, int(self._has_enough)
        return dict(zip(_STATE, values, strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the counts of a state."""
        if not isinstance(state, Mapping):
            raise InvalidTypeError(f"`state` must be a dict, got {type_name(type(state))}")
        if missing := [name for name in _STATE if name not in state]:
            raise InvalidError(f"`state` does not have the keys {', '.join(map(repr, missing))}")
        first, samples, has_enough = (as_int(name, state[name], at_least=0) for name in _STATE)
        with self._lock:
            self._first, self._has_enough = first, bool(has_enough)
            self._samples = samples + self._ahead

    def _error(
        self, count: int, size: RunSize, reason: str, hint: str | None = None
    ) -> OverloadError:
        least = self._least(size)
        if size.length < least:
            what = f"there are {size.length} transitions of at least {least}"
        else:
            what = (
                f"{self.due(size)} transitions may be drawn with "
                f"samples_per_insert={self.rate.samples_per_insert:g}"
            )
        return OverloadError(f"cannot draw {count} transitions: {what}, {reason}", hint=hint)


def _positive(name: str, value: Any, *, or_zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidTypeError(f"`{name}` must be a number, got {value!r}")
    number = float(value)
    if not (number > 0 or (or_zero and number == 0)) or math.isinf(number):
        raise InvalidError(
            f"`{name}` must be finite and {'at least' if or_zero else 'greater than'} 0, "
            f"got {value!r}"
        )
    return number
