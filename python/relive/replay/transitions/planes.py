"""Where observations are: the planes of each, which the core reads and joins."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, TooLargeError
from relive.replay.arrays import FINAL, RunArrays
from relive.replay.columns import ColumnSpec, StackAxis
from relive.replay.transitions.options import Options
from relive.replay.transitions.steps import NO_END, Ints, Items, Steps

Entries = npt.NDArray[np.uint32]

NO_PLANE: Final = 0
"""The number of a plane that is zeros."""
FIRST_PLANE: Final = 1
_MAX: Final = np.iinfo(np.uint32).max - 1


@dataclass(frozen=True, slots=True)
class Planes:
    """Planes of the values of a field, by number, as the core takes them."""

    fields: list[tuple[int, int]]
    """The columns that have the planes, and how many rows of each are numbered, from 1 on."""
    ids: npt.NDArray[np.uint32] | None
    """The planes of each entry; None if entry k is plane k + 1."""
    depth: int
    axis: StackAxis


def final_of(arrays: RunArrays, spec: ColumnSpec) -> ColumnSpec | None:
    """Return the column of what was seen last; None if it is not stored like `spec`.

    It is not if stacks were recorded, and what was seen last before any observation. Then what was
    seen last in that run is not used.
    """
    found = arrays.columns.get(FINAL + spec.name)
    if found is None or (found.dtype, found.shape) != (spec.dtype, spec.shape):
        return None
    number = arrays.number_of(spec.name) if spec.stack is not None else None
    return found if (found.stack, found.planes_of) == (spec.stack, number) else None


def observation_planes(
    arrays: RunArrays, spec: ColumnSpec, steps: Steps, items: Items, *, options: Options, ends: int
) -> tuple[Planes, Entries, Entries]:
    """Return the planes of a leaf of observations, and the entries of each transition.

    The first entries are those of what was observed, the others of what was observed next.
    """
    count = len(steps.rows)
    final = final_of(arrays, spec)
    rows, next_rows = steps.rows[items.places], steps.rows[items.next_place]
    base = int(min(rows.min(initial=count), next_rows.min(initial=count)))
    if spec.stack is not None:
        if options.stack is not None:
            raise InvalidError(
                f"`{spec.name}` was recorded as stacks of {_depth(spec)}, so `stack` cannot be "
                f"{options.stack}",
                hint="leave out stack=",
            )
        planes = _recorded_stacks(arrays, spec, final, range(base, count), ends)
    else:
        fields = [(arrays.number_of(spec.name), count)]
        if final is not None:
            fields.append((arrays.number_of(final.name), ends))
        ids = None
        if options.stack is not None:
            ids = _stacks(steps, options, base, ends)
        else:
            base = 0
        planes = Planes(fields, ids, options.stack or 1, "first")
    _check(max(sum(rows for _, rows in planes.fields), count + ends))
    is_end = items.end != NO_END
    nexts = np.where(is_end, count - base + items.end, next_rows - base)
    return planes, (rows - base).astype(np.uint32), nexts.astype(np.uint32)


def row_planes(
    arrays: RunArrays, spec: ColumnSpec, steps: Steps, items: Items
) -> tuple[Planes, Entries]:
    """Return the rows of a column as planes, and the entry of each transition."""
    count = len(steps.rows)
    _check(count)
    fields = [(arrays.number_of(spec.name), count)]
    return Planes(fields, None, 1, "first"), steps.rows[items.places].astype(np.uint32)


def _recorded_stacks(
    arrays: RunArrays, spec: ColumnSpec, final: ColumnSpec | None, rows: range, ends: int
) -> Planes:
    """Return the planes of stacks that were recorded: those of steps, then those of ends."""
    numbers = [arrays.read_numbers(spec.name, np.arange(rows.start, rows.stop))]
    if final is not None:
        numbers.append(arrays.read_numbers(final.name, np.arange(ends)))
    ids = np.concatenate(numbers)
    count = int(ids.max(initial=0))
    _check(count)
    return Planes(
        [(arrays.number_of(spec.name), count)], ids.astype(np.uint32), _depth(spec), spec.stack
    )


def _stacks(steps: Steps, options: Options, base: int, ends: int) -> npt.NDArray[np.uint32]:
    """Return the planes of stacks of single observations: those of steps, then those of ends."""
    depth, count = options.stack or 1, len(steps.rows)
    ids = np.zeros((count - base + ends, depth), np.uint32)
    places = np.flatnonzero(steps.rows >= base)
    first = steps.first[steps.segment[places]]
    entries = steps.rows[places] - base
    for back in range(depth):
        ids[entries, depth - 1 - back] = _planes_at(steps, options, places - back, first)
    segments = np.flatnonzero(steps.end != NO_END)
    entries = count - base + steps.end[segments]
    ids[entries, depth - 1] = count + steps.end[segments] + FIRST_PLANE
    for back in range(1, depth):
        at = steps.after[segments] - back
        ids[entries, depth - 1 - back] = _planes_at(steps, options, at, steps.first[segments])
    return ids


def _planes_at(steps: Steps, options: Options, places: Ints, first: Ints) -> Ints:
    """Return the planes of observations at places, or what is there before the first place."""
    planes = steps.rows[np.maximum(places, first)] + FIRST_PLANE
    return planes if options.pad == "first" else np.where(places < first, NO_PLANE, planes)


def _depth(spec: ColumnSpec) -> int:
    return spec.shape[0 if spec.stack == "first" else -1]


def _check(count: int) -> None:
    if count > _MAX:
        raise TooLargeError(
            f"transitions can be made of at most {_MAX} observations, got {count}",
            hint="pass last= to use the newest steps of the run",
        )
