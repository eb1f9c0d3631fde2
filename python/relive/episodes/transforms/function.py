"""A function that makes the values of a signal: how it is called, and what it gives."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.schema import DType

__all__ = ["Function"]

Batches = tuple[npt.NDArray[Any], ...]

_TYPE_HINT: Final = "dtype= and shape= say what it gives"
_BATCHED_HINT: Final = "batched=False calls it on one value at a time"
# Sums come out a little different in another order; a record here and there may fall otherwise.
_CLOSE: Final = 1e-3
_STRAY: Final = 0.01


class Function:
    """Calls a function on batches of values, and sees to it that it always gives the same type.

    The dtype and the shape of a value are those of the first values made, unless given. The
    first batch of several records is also tried with its first record alone, because a
    function that mixes records would give other values for other batches.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        batched: bool = True,
        dtype: DType | None = None,
        shape: tuple[int, ...] | None = None,
        trusted: bool = False,
    ) -> None:
        if not callable(function):
            raise InvalidTypeError(f"values are made by a function, not by {function!r}")
        self._function = function
        self._batched = batched
        self._dtype = dtype
        self._shape = shape
        self._given = dtype is not None
        self._trusted = trusted or not batched

    @property
    def type(self) -> tuple[DType, tuple[int, ...]] | None:
        """The dtype and the shape of a value, once they are known."""
        if self._dtype is None or self._shape is None:
            return None
        return self._dtype, self._shape

    def __call__(self, batches: Batches) -> npt.NDArray[Any]:
        """Give one value for each record of the batches, which hold at least one."""
        made = self._made(batches)
        if not self._trusted and len(made) > 1:
            self._try_alone(batches, made)
            self._trusted = True
        return made

    def find_type(self, batches: Batches) -> tuple[DType, tuple[int, ...]]:
        """Find out what a value is, from batches that may be empty."""
        if not len(batches[0]) and not self._batched:
            raise InvalidError(
                "what the function gives cannot be found out without records", hint=_TYPE_HINT
            )
        try:
            self._made(batches)
        except Exception as error:
            if len(batches[0]):
                raise
            raise InvalidError(
                "what the function gives cannot be found out: there are no records, "
                f"and it fails without any ({type(error).__name__}: {error})",
                hint=_TYPE_HINT,
            ) from error
        found = self.type
        assert found is not None  # noqa: S101 - values that fit have set both
        return found

    def _made(self, batches: Batches) -> npt.NDArray[Any]:
        count = len(batches[0])
        if self._batched:
            made = _array(self._function(*batches))
            if made.ndim == 0 or len(made) != count:
                given = "a single value" if made.ndim == 0 else f"{len(made)} values"
                raise InvalidError(
                    f"the function gave {given} for {count} records", hint=_BATCHED_HINT
                )
        else:
            made = _stacked([self._function(*values) for values in zip(*batches, strict=True)])
        return self._fitted(made)

    def _fitted(self, made: npt.NDArray[Any]) -> npt.NDArray[Any]:
        dtype: DType = "str" if made.dtype.hasobject else made.dtype
        shape = made.shape[1:]
        if self._dtype is None:
            self._dtype = dtype
        if self._shape is None:
            self._shape = shape
        wanted = self._dtype
        if shape == self._shape:
            if dtype == wanted:
                return made
            if (
                isinstance(dtype, np.dtype)
                and isinstance(wanted, np.dtype)
                and np.can_cast(dtype, wanted, "same_kind" if self._given else "safe")
            ):
                return made.astype(wanted)
        raise InvalidError(
            f"the function gave values of {dtype} {shape}, and others of {wanted} {self._shape}",
            hint=_TYPE_HINT,
        )

    def _try_alone(self, batches: Batches, made: npt.NDArray[Any]) -> None:
        alone = self._made(tuple(batch[:1] for batch in batches))[0]
        if not _alike(np.asarray(alone), np.asarray(made[0])):
            raise InvalidError(
                "the function gave another value for a record alone than among others",
                hint=_BATCHED_HINT,
            )


def _alike(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    if not one.size:
        return True
    if one.dtype.kind != "f":
        same = one == other
    else:
        first, second = one.astype(np.float64), other.astype(np.float64)
        room = _CLOSE * np.abs(first).max(initial=0, where=np.isfinite(first))
        same = np.isclose(first, second, rtol=_CLOSE, atol=room, equal_nan=True)
    return bool(np.mean(~np.asarray(same, dtype=bool)) <= _STRAY)


def _array(made: Any) -> npt.NDArray[Any]:
    if isinstance(made, (list, tuple)):
        return _stacked(made)
    return _checked(np.asarray(made))


def _stacked(values: Any) -> npt.NDArray[Any]:
    if not values:
        raise InvalidError("the function gave no values")
    if all(isinstance(value, str) for value in values):
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        return texts
    try:
        stacked = np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise InvalidError(f"the function gave values that do not fit together: {error}") from error
    return _checked(stacked)


def _checked(made: npt.NDArray[Any]) -> npt.NDArray[Any]:
    kind = made.dtype.kind
    if kind in "UT":
        made = made.astype(object)
    elif kind == "O":
        for value in made.flat:
            if not isinstance(value, str):
                raise InvalidTypeError(f"a signal cannot hold {type_name(type(value))}")
    elif kind not in "biuf":
        raise InvalidTypeError(f"a signal cannot hold values of {made.dtype}")
    elif not made.dtype.isnative:
        made = made.astype(made.dtype.newbyteorder("="))
    return made
