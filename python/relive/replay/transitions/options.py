"""What the transitions of a run are: the arguments of `ReplayRun.transitions`."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict

from relive._arguments import INT64_MAX, as_int, as_text, check_choice
from relive.errors import InvalidError, InvalidTypeError

Pad: TypeAlias = Literal["first", "zero"]

_MAX_STEPS: Final = 1 << 16
"""The most steps that are summed, stacked or read as one sequence."""


class Arguments(TypedDict, total=False):
    """The arguments of `ReplayRun.transitions`."""

    n_step: int
    gamma: float
    stack: int | None
    sequence: int | None
    stride: int | None
    burn_in: int
    last: int | None
    pad: Pad
    cache_bytes: int
    fields: Sequence[str] | None
    min_size: int
    samples_per_insert: float | None
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Sequences:
    """Transitions that are read together."""

    steps: int
    """How many transitions a sequence has."""
    stride: int
    """How many steps after a sequence the next one begins."""
    burn_in: int
    """How many transitions at the front of a sequence are not to learn from."""


@dataclass(frozen=True, slots=True)
class Options:
    """How transitions are made of steps."""

    n_step: int
    gamma: float
    stack: int | None
    sequences: Sequences | None
    last: int | None
    pad: Pad
    cache_bytes: int
    fields: tuple[str, ...] | None

    @classmethod
    def of(
        cls,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: int | None = None,
        sequence: int | None = None,
        stride: int | None = None,
        burn_in: int = 0,
        last: int | None = None,
        pad: Pad = "first",
        cache_bytes: int = 1 << 30,
        fields: Sequence[str] | None = None,
    ) -> Self:
        """Check the arguments of `ReplayRun.transitions`."""
        check_choice("pad", pad, ("first", "zero"))
        return cls(
            as_int("n_step", n_step, at_least=1, at_most=_MAX_STEPS),
            _gamma(gamma),
            None if stack is None else as_int("stack", stack, at_least=1, at_most=_MAX_STEPS),
            _sequences(sequence, stride, burn_in),
            None if last is None else as_int("last", last, at_least=1),
            pad,
            as_int("cache_bytes", cache_bytes, at_least=0, at_most=INT64_MAX),
            None if fields is None else _names(fields),
        )


def _gamma(gamma: Any) -> float:
    if isinstance(gamma, bool) or not isinstance(gamma, Real):
        raise InvalidTypeError(f"`gamma` must be a number, got {gamma!r}")
    number = float(gamma)
    if not 0 <= number <= 1:  # NaN is neither
        raise InvalidError(f"`gamma` must be from 0 to 1, got {gamma!r}")
    return number


def _sequences(sequence: int | None, stride: int | None, burn_in: int) -> Sequences | None:
    burn_in = as_int("burn_in", burn_in, at_least=0)
    if sequence is None:
        if stride is not None or burn_in:
            raise InvalidError("`stride` and `burn_in` require `sequence`")
        return None
    sequence = as_int("sequence", sequence, at_least=1, at_most=_MAX_STEPS)
    if burn_in >= sequence:
        raise InvalidError(
            f"`burn_in` must be less than `sequence`, which is {sequence}, got {burn_in}",
            hint="`sequence` counts the steps of the burn-in, too",
        )
    stride = sequence - burn_in if stride is None else as_int("stride", stride, at_least=1)
    return Sequences(sequence, stride, burn_in)


def _names(fields: Any) -> tuple[str, ...]:
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        raise InvalidTypeError(f"`fields` must be a list of names, got {fields!r}")
    if not fields:
        raise InvalidError("`fields` must have at least one name")
    return tuple(as_text("a name in `fields`", name) for name in fields)
