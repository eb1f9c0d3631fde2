"""`Run`: one game of 2048, as it was played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from math import isnan
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias

import numpy as np

from relive import _native
from relive.errors import CorruptError, InvalidError, InvalidTypeError, UnsupportedError
from relive.store.atomic import storage_error, whole_file

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from relive.store.codec import BytesLike

__all__ = ["Run", "RunMeta"]

Fields: TypeAlias = "_native._RunFields"  # noqa: SLF001 - a name that only the stub has
"""A run as the core has it: the six fields of its meta in order, boards, moves, branches, and
per step which branches are given (bit 4: any; bits 0 to 3: the moves that are legal)."""

_VERSIONS: Final = (1, 2)
_GIVEN: Final = 1 << 4
_U32: Final = (1 << 32) - 1
_U64: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RunMeta:
    """What is known of a run as a whole."""

    steps: int
    """Moves made."""
    start_unix_s: int
    """When the run began, in seconds since 1970."""
    elapsed_s: float
    """How long it took, in seconds; stored in 32 bits."""
    max_score: int
    """What the final board is worth, Σ (e − 1) · 2^e; not the sum of the merge rewards."""
    highest_tile: int
    """The largest tile reached, such as 2048."""
    engine: str | None
    """Who played, where it is known."""


class Run:
    """One game of 2048; immutable, picklable, equal to every run with the same content.

    `boards` has one more item than `moves`: the board before each step, and the final one. A
    board is sixteen exponents of four bits, cell i in row order being `(board >> (60 - 4 * i))
    & 15`; a tile is 2^exponent, and 0 is an empty cell. Moves are 0 up, 1 down, 2 left and 3
    right. `branches` has four values per step, one per move: NaN where the move is illegal,
    four NaN where nothing is known of the step. Unless said, `max_score` and `highest_tile`
    are derived from the boards. What does not fit together is an `InvalidError`.
    """

    __slots__ = ("_fields", "_meta")

    _fields: Fields
    _meta: RunMeta

    def __init__(
        self,
        boards: npt.ArrayLike,
        moves: npt.ArrayLike,
        branches: npt.ArrayLike | None = None,
        *,
        start_unix_s: int = 0,
        elapsed_s: float = 0.0,
        engine: str | None = None,
        max_score: int | None = None,
        highest_tile: int | None = None,
    ) -> None:
        before_and_after = _integers("boards", boards, _U64).astype(np.uint64)
        chosen = _integers("moves", moves, 3).astype(np.uint8)
        if len(before_and_after) != len(chosen) + 1:
            raise InvalidError(
                f"{len(chosen)} moves need {len(chosen) + 1} boards, not {len(before_and_after)}",
                hint="give the board before each move, and the final one",
            )
        values, given = _branches(branches, len(chosen))
        if max_score is None:
            max_score = _worth(int(before_and_after[-1]))
        if highest_tile is None:
            highest_tile = _highest(before_and_after)
        fields: Fields = (
            _integer("steps", len(chosen), _U32),
            _integer("start_unix_s", start_unix_s, _U64),
            _seconds(elapsed_s),
            _integer("max_score", max_score, _U64),
            _integer("highest_tile", highest_tile, _U32),
            _text(engine),
            before_and_after,
            chosen,
            values,
            given,
        )
        # Through the core and back: arrays that no one else holds, and no one can write to.
        _fill(self, _native.parse_run(_native.run_to_bytes(fields, 2), 2))

    @classmethod
    def from_bytes(cls, data: BytesLike) -> Self:
        """Read a run of either version; bytes that are none are a `CorruptError`."""
        try:
            return cls._from_native(_native.parse_run(data, None))
        except (TypeError, BufferError) as error:
            raise InvalidTypeError(f"bytes are needed, not {type(data).__name__}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the run that is the whole file at `path`."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise storage_error(error, path, "read") from error
        try:
            return cls.from_bytes(data)
        except CorruptError as error:
            raise CorruptError(f"`{Path(path)}`: {error.message}") from error

    def to_bytes(self, version: int = 2) -> bytes:
        """Give the run as bytes; what was read from version 2 comes out as it was.

        Version 1 has no branches, so a run that has some is an `InvalidError` there. An integer
        that was read in a longer form than needed is written in the shortest.
        """
        if version not in _VERSIONS:
            raise UnsupportedError(f"runs have no version {version!r}", hint="choose 1 or 2")
        return _native.run_to_bytes(self._fields, version)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the run to `path`, in version 2; the file appears whole or not at all.

        It is on the disk when this returns. An existing file is an `AlreadyExistsError` unless
        `overwrite`.
        """
        data = self.to_bytes()
        with whole_file(path, overwrite=overwrite) as file:
            file.write(data)

    @property
    def meta(self) -> RunMeta:
        """What is known of the run as a whole."""
        return self._meta

    @property
    def boards(self) -> npt.NDArray[np.uint64]:
        """The board before each step, and the final one; read-only."""
        return self._fields[6]

    @property
    def moves(self) -> npt.NDArray[np.uint8]:
        """The move of each step: 0 up, 1 down, 2 left, 3 right; read-only."""
        return self._fields[7]

    @property
    def branches(self) -> npt.NDArray[np.float32] | None:
        """What the player thought of each move, per step; None when nothing is known; read-only.

        Values are min–max normalised within their step: they rank moves, and are not returns.
        NaN is an illegal move; four NaN are a step of which nothing is known.
        """
        return self._fields[8]

    @property
    def final_board(self) -> int:
        """The board after the last step."""
        return int(self._fields[6][-1])

    def __len__(self) -> int:
        """Count the steps."""
        return self._meta.steps

    def __eq__(self, other: object) -> bool:
        """Compare everything, NaN being equal to NaN."""
        if not isinstance(other, Run):
            return NotImplemented
        return _same(self._fields, other._fields)

    def __hash__(self) -> int:
        """Agree with equality, without reading the arrays."""
        meta = self._meta
        return hash((meta.steps, meta.start_unix_s, meta.max_score, meta.engine, self.final_board))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the bytes of version 2."""
        return _restore, (type(self), self.to_bytes())

    def __repr__(self) -> str:
        """Give the steps, the highest tile, the score and who played, on one line."""
        meta = self._meta
        engine = "" if meta.engine is None else f", engine {meta.engine!r}"
        return (
            f"Run({meta.steps} steps, highest tile {meta.highest_tile}, "
            f"score {meta.max_score}{engine})"
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: a run is what was played."""
        raise FrozenInstanceError(f"a run cannot be changed: `{name}`")

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse: a run is what was played."""
        raise FrozenInstanceError(f"a run cannot be changed: `{name}`")

    @classmethod
    def _from_native(cls, fields: Fields) -> Self:
        run = cls.__new__(cls)
        _fill(run, fields)
        return run


def _fill(run: Run, fields: Fields) -> None:
    object.__setattr__(run, "_fields", fields)
    object.__setattr__(run, "_meta", RunMeta(*fields[:6]))


def _restore(cls: type[Run], data: bytes) -> Run:
    return cls._from_native(_native.parse_run(data, 2))


def _same(left: Fields, right: Fields) -> bool:
    both_nan = isnan(left[2]) and isnan(right[2])
    if left[:2] + left[3:6] != right[:2] + right[3:6] or not (both_nan or left[2] == right[2]):
        return False
    if (left[8] is None) != (right[8] is None):
        return False
    return (
        np.array_equal(left[6], right[6])
        and np.array_equal(left[7], right[7])
        and (left[8] is None or np.array_equal(left[8], right[8], equal_nan=True))  # type: ignore[arg-type]
        and (left[9] is None or np.array_equal(left[9], right[9]))  # type: ignore[arg-type]
    )


def _worth(board: int) -> int:
    """Give the score that a board is worth, were every tile merged from twos."""
    exponents = [board >> shift & 15 for shift in range(0, 64, 4)]
    return sum((exponent - 1) << exponent for exponent in exponents if exponent)


def _highest(boards: npt.NDArray[np.uint64]) -> int:
    """Give the largest tile of any board; 0 when all are empty."""
    shifts = np.arange(0, 64, 4, dtype=np.uint64)
    exponent = max(int((boards >> shift & np.uint64(15)).max()) for shift in shifts)
    return 1 << exponent if exponent else 0


def _branches(
    branches: npt.ArrayLike | None, steps: int
) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.uint8] | None]:
    if branches is None:
        return None, None
    array = _array("branches", branches)
    if array.dtype.kind not in "fiu":
        raise InvalidTypeError(f"branches are floats, not {array.dtype}")
    if array.shape != (steps, 4):
        raise InvalidError(f"branches of {steps} steps have shape {(steps, 4)}, not {array.shape}")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if np.isinf(values).any():
        step = int(np.isinf(values).any(axis=1).argmax())
        raise InvalidError(f"step {step}: the branches {array[step].tolist()} are not finite")
    legal = ~np.isnan(values)
    if not legal.any():
        return None, None
    bits = np.packbits(legal, axis=1, bitorder="little")[:, 0]
    return values, np.where(bits, bits | _GIVEN, 0).astype(np.uint8)


def _integers(name: str, value: npt.ArrayLike, most: int) -> npt.NDArray[Any]:
    array = _array(name, value)
    if array.ndim != 1:
        raise InvalidError(f"{name} have one dimension, not shape {array.shape}")
    if array.size == 0:  # an empty list has no dtype of its own
        return np.empty(0, np.uint64)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"{name} are integers, not {array.dtype}")
    wrong = (array < 0) | (array > most)
    if wrong.any():
        at = int(wrong.argmax())
        raise InvalidError(f"{name}[{at}] is {array[at]}, outside of 0 to {most}")
    return array


def _array(name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
        # Of integers that differ in how many bits they need, NumPy makes floats or objects.
        if array.dtype.kind in "fO" and array.ndim == 1 and isinstance(value, Sequence):
            whole = all(isinstance(item, int | np.integer) for item in value)
            array = np.array(value, dtype=np.uint64) if whole else array
    except OverflowError as error:
        raise InvalidError(f"{name} do not fit 64 bits: {error}") from error
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"{name} cannot be read as an array: {error}") from error
    return array


def _integer(name: str, value: int, most: int) -> int:
    try:
        number = index(value)
    except TypeError as error:
        raise InvalidTypeError(f"{name} is an int, not {type(value).__name__}") from error
    if not 0 <= number <= most:
        raise InvalidError(f"{name} is {number}, outside of 0 to {most}")
    return number


def _seconds(value: float) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"elapsed_s is a float, not {value!r}") from error
    if not 0 <= seconds <= float(np.finfo(np.float32).max):
        raise InvalidError(f"elapsed_s is {seconds}, not a time that 32 bits hold")
    return seconds


def _text(engine: str | None) -> str | None:
    if engine is None:
        return None
    if not isinstance(engine, str):
        raise InvalidTypeError(f"engine is a str, not {type(engine).__name__}")
    try:
        engine.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"engine is not text: {error}") from error
    return engine
