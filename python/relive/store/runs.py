"""`Run`: one game of 2048."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias

import numpy as np

from relive import _native
from relive._arguments import as_int, as_text, type_name
from relive.errors import CorruptError, InvalidError, InvalidTypeError, UnsupportedError
from relive.store.atomic import open_reader, storage_error, whole_file

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from relive.store.codec import BytesLike

__all__ = ["Run", "RunMeta"]

Fields: TypeAlias = "_native._RunFields"  # noqa: SLF001 - a name that only the stub has
"""A run as the core returns it: the six fields of its meta in order, boards, moves, branches, and
per step which branches exist (bit 4: any; bits 0 to 3: the legal moves)."""

_VERSIONS: Final = (1, 2)
_GIVEN: Final = 1 << 4
_U32: Final = (1 << 32) - 1
_U64: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RunMeta:
    """The facts about a whole run.

    Example:
        >>> import relive
        >>> relive.Run(boards=[0x11, 0x2], moves=[3]).meta.steps
        1
    """

    steps: int
    """The number of moves."""
    start_unix_s: int
    """The start, in seconds since 1970."""
    elapsed_s: float
    """The duration in seconds; stored as a 32-bit float."""
    max_score: int
    """The value of the final board, Σ (e − 1) · 2^e; not the sum of the merge rewards."""
    highest_tile: int
    """The largest tile reached, such as 2048."""
    engine: str | None
    """The name of the player, if it is known."""


class Run:
    """One game of 2048; immutable, picklable, equal to every run with the same content.

    `boards` has one more item than `moves`: the board before each step, and the final one. A
    board is sixteen exponents of four bits, cell i in row order being `(board >> (60 - 4 * i))
    & 15`; a tile is 2^exponent, and 0 is an empty cell. Moves are 0 up, 1 down, 2 left and 3
    right. `branches` has four values per step, one per move: NaN if the move is illegal, four
    NaN if nothing is known of the step. By default, `max_score` and `highest_tile` are derived
    from the boards. Arguments that do not fit together are an `InvalidError`.

    Example:
        >>> import relive
        >>> run = relive.Run(boards=[0x11, 0x2], moves=[3], engine="me")
        >>> run
        Run(1 steps, highest tile 4, score 4, engine 'me')
        >>> relive.Run.from_bytes(run.to_bytes()) == run
        True
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
                f"`boards` has {len(before_and_after)} items, expected {len(chosen) + 1} for "
                f"{len(chosen)} moves",
                hint="pass the board before each move, and the final one",
            )
        values, given = _branches(branches, len(chosen))
        if max_score is None:
            max_score = _worth(int(before_and_after[-1]))
        if highest_tile is None:
            highest_tile = _highest(before_and_after)
        fields: Fields = (
            as_int("steps", len(chosen), at_most=_U32),
            as_int("start_unix_s", start_unix_s, at_most=_U64),
            _seconds(elapsed_s),
            as_int("max_score", max_score, at_most=_U64),
            as_int("highest_tile", highest_tile, at_most=_U32),
            None if engine is None else as_text("`engine`", engine),
            before_and_after,
            chosen,
            values,
            given,
        )
        # Through the core and back, which returns read-only copies of the arrays.
        _fill(self, _native.parse_run(_native.run_to_bytes(fields, 2), 2))

    @classmethod
    def from_bytes(cls, data: BytesLike) -> Self:
        """Read a run of either version; bytes that are not a run are a `CorruptError`."""
        try:
            return cls._from_native(_native.parse_run(data, None))
        except (TypeError, BufferError) as error:
            raise InvalidTypeError(f"`data` must be bytes, got {type_name(type(data))}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the run in the file at `path`."""
        try:
            with open_reader(path) as file:
                data = file.read()
        except OSError as error:
            raise storage_error(error, path, "read") from error
        try:
            return cls.from_bytes(data)
        except CorruptError as error:
            raise CorruptError(f"`{Path(path)}`: {error.message}") from error

    def to_bytes(self, version: int = 2) -> bytes:
        """Return the run as bytes; a run that was read from version 2 has the same bytes.

        Version 1 cannot store branches: for a run with branches it is an `InvalidError`. Integers
        are written in their shortest form.
        """
        if version not in _VERSIONS:
            raise UnsupportedError(f"`version` must be 1 or 2, got {version!r}")
        return _native.run_to_bytes(self._fields, version)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the run to `path` in version 2, completely or not at all.

        It is on the disk when this returns. An existing file is an `AlreadyExistsError` unless
        `overwrite` is True.
        """
        data = self.to_bytes()
        with whole_file(path, overwrite=overwrite) as file:
            file.write(data)

    @property
    def meta(self) -> RunMeta:
        """The facts about the whole run."""
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
        """The player's value of each move, per step; None if nothing is known; read-only.

        Values are min–max normalised within their step: they rank moves, and are not returns.
        NaN is an illegal move; four NaN mean that nothing is known of the step.
        """
        return self._fields[8]

    @property
    def final_board(self) -> int:
        """The board after the last step."""
        return int(self._fields[6][-1])

    def __len__(self) -> int:
        """Return the number of steps."""
        return self._meta.steps

    def __eq__(self, other: object) -> bool:
        """Compare everything; NaN is equal to NaN."""
        if not isinstance(other, Run):
            return NotImplemented
        return _same(self._fields, other._fields)

    def __hash__(self) -> int:
        """Hash the meta and the final board."""
        meta = self._meta
        return hash((meta.steps, meta.start_unix_s, meta.max_score, meta.engine, self.final_board))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the bytes of version 2."""
        return type(self).from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        """Return the steps, the highest tile, the score and the engine, on one line."""
        meta = self._meta
        engine = "" if meta.engine is None else f", engine {meta.engine!r}"
        return (
            f"Run({meta.steps} steps, highest tile {meta.highest_tile}, "
            f"score {meta.max_score}{engine})"
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse, because a run is immutable."""
        raise FrozenInstanceError(f"cannot change `{name}`: a Run is immutable")

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse, because a run is immutable."""
        raise FrozenInstanceError(f"cannot change `{name}`: a Run is immutable")

    @classmethod
    def _from_native(cls, fields: Fields) -> Self:
        run = cls.__new__(cls)
        _fill(run, fields)
        return run


def _fill(run: Run, fields: Fields) -> None:
    object.__setattr__(run, "_fields", fields)
    object.__setattr__(run, "_meta", RunMeta(*fields[:6]))


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
    """Return the score of a board whose tiles were all merged from twos."""
    exponents = [board >> shift & 15 for shift in range(0, 64, 4)]
    return sum((exponent - 1) << exponent for exponent in exponents if exponent)


def _highest(boards: npt.NDArray[np.uint64]) -> int:
    """Return the largest tile of any board; 0 if all are empty."""
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
        raise InvalidTypeError(f"`branches` must be floats, got {array.dtype}")
    if array.shape != (steps, 4):
        raise InvalidError(f"`branches` must have the shape {(steps, 4)}, got {array.shape}")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if np.isinf(values).any():
        step = int(np.isinf(values).any(axis=1).argmax())
        raise InvalidError(f"`branches[{step}]` must be finite or NaN, got {array[step].tolist()}")
    legal = ~np.isnan(values)
    if not legal.any():
        return None, None
    bits = np.packbits(legal, axis=1, bitorder="little")[:, 0]
    return values, np.where(bits, bits | _GIVEN, 0).astype(np.uint8)


def _integers(name: str, value: npt.ArrayLike, most: int) -> npt.NDArray[Any]:
    array = _array(name, value)
    if array.ndim != 1:
        raise InvalidError(f"`{name}` must have one dimension, got the shape {array.shape}")
    if array.size == 0:  # NumPy makes [] an array of floats
        return np.empty(0, np.uint64)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"`{name}` must be integers, got {array.dtype}")
    wrong = (array < 0) | (array > most)
    if wrong.any():
        at = int(wrong.argmax())
        raise InvalidError(f"`{name}[{at}]` must be from 0 to {most}, got {array[at]}")
    return array


def _array(name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
        # NumPy converts a mix of small and very large integers to floats or objects.
        if array.dtype.kind in "fO" and array.ndim == 1 and isinstance(value, Sequence):
            whole = all(isinstance(item, int | np.integer) for item in value)
            array = np.array(value, dtype=np.uint64) if whole else array
    except OverflowError as error:
        raise InvalidError(f"`{name}` must fit in 64 bits: {error}") from error
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"`{name}` cannot be converted to an array: {error}") from error
    return array


def _seconds(value: float) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"`elapsed_s` must be a number, got {value!r}") from error
    if not 0 <= seconds <= float(np.finfo(np.float32).max):
        raise InvalidError(
            f"`elapsed_s` must be at least 0 and fit in a 32-bit float, got {seconds}"
        )
    return seconds
