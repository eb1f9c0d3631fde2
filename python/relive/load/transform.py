"""The user's function on a batch, with randomness that does not depend on who runs it."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from relive.errors import InvalidTypeError

__all__ = ["Transform"]


class Transform:
    """Calls `function(batch)`, or `function(batch, rng=rng)` where it has that parameter.

    The generator depends on the seed and on the global position of the batch's first sample
    alone: it is the same at any number of workers, and another one on each rank.
    """

    def __init__(self, function: Callable[..., Any], seed: int) -> None:
        if not callable(function):
            raise InvalidTypeError(f"transform must be callable, not {function!r}")
        self.function = function
        self.seed = seed
        self.wants_rng = _rng(function)

    def __call__(self, batch: Any, first: int) -> Any:
        """Transform the batch whose first sample has the global position `first`."""
        if self.wants_rng is None:
            result = self.function(batch)
        else:
            rng = np.random.default_rng((self.seed, first))
            by_place = self.wants_rng is inspect.Parameter.POSITIONAL_ONLY
            result = self.function(batch, rng) if by_place else self.function(batch, rng=rng)
        if result is None:
            raise InvalidTypeError(
                "the transform gave None instead of a batch",
                hint="return the batch, also when it was changed in place",
            )
        return result


def _rng(function: Callable[..., Any]) -> Any:
    """Give how the function takes its `rng`; None if it takes none."""
    try:
        found = inspect.signature(function).parameters.get("rng")
    except (TypeError, ValueError):  # built-in functions without a signature
        return None
    return None if found is None else found.kind
