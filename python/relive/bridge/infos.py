"""Columns of infos, whose keys may differ from step to step."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MASK: Final = "_"
"""Begins the name of the array that tells which steps have a key, as in vectors of Gymnasium."""

_MAX_INT: Final = (1 << 63) - 1
_NUMBERS: Final = "biuf"


@dataclass(slots=True)
class InfoColumns:
    """The columns of the infos of an episode: all infos are passed to `add` first.

    A column is an array if all values of its key are numbers, or arrays of numbers of one shape; a
    list of texts if all are texts; a dict of columns if all are dicts; otherwise a list of JSON.
    Where an info lacks a key, the column has NaN, 0, an empty text or `null`. If a step lacks it, a
    second column, with the name of the key after an underscore, tells which infos have it.
    """

    keys: dict[str, "_Key"] = field(default_factory=dict)
    _steps: int = 0

    def add(self, infos: Sequence[Mapping[str, Any]], *, steps: bool = True) -> None:
        """Add infos: of steps, or that of a reset, which may have other keys."""
        self._steps += len(infos) if steps else 0
        for info in infos:
            for name, value in info.items():
                key = self.keys.get(name)
                if key is None:
                    key = self.keys[name] = _Key()
                key.add(value, is_step=steps)

    def columns(self, infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the columns of some of the infos."""
        made: dict[str, Any] = {}
        for name, key in self.keys.items():
            values = [info.get(name, _MISSING) for info in infos]
            column = key.column(values)
            if column is None:  # dicts that are always empty
                continue
            made[name] = column
            if key.steps < self._steps and MASK + name not in self.keys:
                made[MASK + name] = np.array([value is not _MISSING for value in values])
        return made


_MISSING: Final = object()


@dataclass(slots=True)
class _Key:
    """The values of one key."""

    steps: int = 0
    """How many steps have it."""
    kinds: set[str] = field(default_factory=set)
    dtype: np.dtype[Any] | None = None
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    inner: InfoColumns = field(default_factory=InfoColumns)

    def add(self, value: Any, *, is_step: bool) -> None:
        self.steps += is_step
        if isinstance(value, str):
            self.kinds.add("text")
        elif isinstance(value, Mapping):
            self.kinds.add("dict")
            self.inner.add([value], steps=is_step)
        elif (array := _as_numbers(value)) is None:
            self.kinds.add("json")
        else:
            self.kinds.add("array")
            self.shapes.add(array.shape)
            found = array.dtype
            self.dtype = found if self.dtype is None else np.result_type(self.dtype, found)

    def column(self, values: Sequence[Any]) -> Any:
        """Return the column of values, some of which may be missing; None if it has nothing."""
        if self.kinds == {"text"}:
            return ["" if value is _MISSING else _text(value) for value in values]
        if self.kinds == {"dict"}:
            if not self.inner.keys:
                return None
            return self.inner.columns([{} if value is _MISSING else value for value in values])
        if self.kinds == {"array"} and len(self.shapes) == 1 and self.dtype is not None:
            (shape,) = self.shapes
            fill: Any = np.nan if self.dtype.kind == "f" else 0
            made = np.full((len(values), *shape), fill, self.dtype)
            for place, value in enumerate(values):
                if value is not _MISSING:
                    made[place] = value
            return made
        return ["null" if value is _MISSING else _json(value) for value in values]


def _as_numbers(value: Any) -> npt.NDArray[Any] | None:
    """Return a number or a list of numbers as an array; None if it is something else."""
    if isinstance(value, bool | float):
        return np.asarray(value)
    if isinstance(value, int):
        return np.asarray(value, np.int64) if -_MAX_INT <= value <= _MAX_INT else None
    if not isinstance(value, list | tuple | np.ndarray):
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of different lengths
        return None
    return array if array.dtype.kind in _NUMBERS and array.size else None


def _text(value: str) -> str:
    """Return a text that HDF5 can have: UTF-8 without zero bytes. Another one becomes JSON."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return json.dumps(value) if "\0" in value else value


def _json(value: Any) -> str:
    return json.dumps(value, default=_as_json)


def _as_json(value: Any) -> Any:
    """Return a value that JSON does not have: an array, or one of a run that was migrated."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    from relive.replay.migrate.blobs import encoded  # only of runs that were migrated

    return encoded(value)
