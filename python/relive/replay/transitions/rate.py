"""When transitions may be drawn: how many there must be, and how often each step is drawn."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Self

from relive._arguments import as_int, type_name
from relive.errors import InvalidError, InvalidTypeError, OverloadError

RATE_ARGUMENTS: Final = ("min_size", "samples_per_insert", "timeout")
"""The names of the arguments of `Rate.of`."""

_POLL_S: Final = 0.01
_STATE: Final = ("first", "samples")


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


class RateLimit:
    """Counts the steps that were recorded and the transitions that were drawn.

    Steps that are there at the start do not count, nor do those that `min_size` needs.

    Args:
        rate: The arguments.
        first: The steps of the run at the start.
    """

    def __init__(self, rate: Rate, first: int) -> None:
        self.rate = rate
        self.first = first
        """The steps of the run from which on steps count."""
        self.samples = 0
        """How many transitions were drawn."""
        self.ahead = 0
        """How many of them were drawn ahead, and were not returned yet."""

    def due(self, steps: int, length: int) -> int | None:
        """Return how many transitions may be drawn now; None for any number.

        Args:
            steps: The steps of the run.
            length: How many transitions there are.
        """
        if length < max(1, self.rate.min_size):
            return 0
        ratio = self.rate.samples_per_insert
        if ratio is None:
            return None
        inserts = steps - max(self.first, self.rate.min_size)
        return max(0, math.floor(ratio * max(0, inserts)) - self.samples)

    def wait(
        self,
        count: int,
        state: Callable[[], tuple[int, int]],
        is_live: Callable[[], bool],
        *,
        is_own: Callable[[], bool],
    ) -> None:
        """Wait until `count` transitions may be drawn, and count them.

        Args:
            count: How many are drawn.
            state: Returns the steps of the run and the number of transitions now.
            is_live: Whether the run is still recorded.
            is_own: Whether this process records it: then waiting would never end.
        """
        until = None if self.rate.timeout is None else time.monotonic() + self.rate.timeout
        while True:
            # Asked first: what is recorded last is in the state that is read then.
            live = is_live()
            steps, length = state()
            due = self.due(steps, length)
            if due is None or due >= count:
                self.samples += count
                return
            if live and is_own():
                raise self._error(
                    count,
                    (steps, length),
                    "and the process that draws is the one that records",
                    hint="record further steps first: `due` is how many may be drawn",
                )
            if not live:
                raise self._error(count, (steps, length), "and the run is no longer recorded")
            if until is not None and time.monotonic() >= until:
                raise self._error(
                    count, (steps, length), f"and none were recorded for {self.rate.timeout:g} s"
                )
            time.sleep(_POLL_S)

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {"first": self.first, "samples": self.samples - self.ahead}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the counts of a state."""
        if not isinstance(state, Mapping):
            raise InvalidTypeError(f"`state` must be a dict, got {type_name(type(state))}")
        if missing := [name for name in _STATE if name not in state]:
            raise InvalidError(f"`state` does not have the keys {', '.join(map(repr, missing))}")
        first, samples = (as_int(name, state[name], at_least=0) for name in _STATE)
        self.first, self.samples = first, samples + self.ahead

    def _error(
        self, count: int, state: tuple[int, int], reason: str, hint: str | None = None
    ) -> OverloadError:
        steps, length = state
        if length < max(1, self.rate.min_size):
            what = f"there are {length} transitions of at least {max(1, self.rate.min_size)}"
        else:
            what = (
                f"{self.due(steps, length)} transitions may be drawn with "
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
