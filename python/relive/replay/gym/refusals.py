"""Warnings about what of an environment cannot be recorded, instead of errors."""

import re
import warnings
from typing import Final, Literal, TypeAlias

from relive._arguments import check_choice
from relive.errors import (
    AlreadyExistsError,
    InvalidError,
    InvalidTypeError,
    OverloadError,
    TooLargeError,
    UnsupportedError,
)

OnError: TypeAlias = Literal["raise", "warn"]

_ON_ERRORS: Final[tuple[OnError, ...]] = ("raise", "warn")
_ABOUT_A_STEP: Final = (
    AlreadyExistsError,
    InvalidError,
    InvalidTypeError,
    OverloadError,
    TooLargeError,
    UnsupportedError,
)
"""Others, of the disk for example, are about all steps that follow."""
_VALUES: Final = re.compile(r", got .*|0x[0-9a-f]+|\d+", re.DOTALL)
_MAX_KINDS: Final = 100


class Refusals:
    """Warns of what cannot be recorded, once for each kind of problem.

    Args:
        run_id: The run that is recorded.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._kinds: set[tuple[type[Exception], str]] = set()
        self.steps = 0
        """How many steps there were to record."""
        self.missing_steps = 0
        """How many of them were refused."""

    def take(self, error: Exception) -> bool:
        """Warn of an error, or return False if it has to be raised."""
        if not isinstance(error, _ABOUT_A_STEP):
            return False
        self.warn(error.message, type(error))
        return True

    def warn(self, message: str, kind: type[Exception]) -> None:
        """Warn, unless the same was warned of before; numbers and values do not count."""
        key = kind, _VALUES.sub("", message)
        if key in self._kinds or len(self._kinds) >= _MAX_KINDS:
            return
        self._kinds.add(key)
        warnings.warn(
            f"run {self._run_id!r} is recorded without what cannot be stored: {message}",
            RuntimeWarning,
            stacklevel=2,
        )

    def warn_of_missing_steps(self, *, stacklevel: int) -> None:
        """Warn of how many steps were refused, if any were, unless that was warned of before."""
        missing, self.missing_steps = self.missing_steps, 0
        if missing:
            warnings.warn(
                f"run {self._run_id!r} was recorded without {missing} of {self.steps} steps, which "
                "were refused",
                RuntimeWarning,
                stacklevel=stacklevel + 1,
            )


def check_on_error(on_error: OnError) -> None:
    """Check the argument `on_error` of a wrapper."""
    check_choice("on_error", on_error, _ON_ERRORS)
