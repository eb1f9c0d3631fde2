"""Where observations are: the planes of each, which the core reads and joins."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._native import MemoryPlanes
from relive.errors import InvalidError, TooLargeError
from relive.replay.arrays import FINAL, RunArrays
from relive.replay.columns import ColumnSpec, StackAxis
from relive.replay.transitions.options import Options
from relive.replay.transitions.recent import RecentSteps
from relive.replay.transitions.steps import NO_END, Ints, Items, Steps, StepTable

Entries = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.uint32]

NO_PLANE: Final = 0
"""The number of a plane that is zeros."""
FIRST_PLANE: Final = 1
# Numbers stay as they are when the run grows: those of last observations follow those that steps
# could have at most, and then those of planes in memory.
_MAX_ROWS: Final = 3 << 30
_MAX_ENDS: Final = 1 << 29
_IN_MEMORY: Final = _MAX_ROWS + _MAX_ENDS
NUMBERS: Final = "planes of "
"""Begins the names of the columns of a table that have the numbers of planes."""
PRESENT: Final = "has "
"""Begins the names of the columns of a table that have which steps have a field."""


@dataclass(frozen=True, slots=True)
class Planes:
    """Planes of the values of a field, by number, as the core takes them."""

    fields: list[tuple[int, int]]
    """The columns that have the planes, and how many rows of each are numbered, from 1 on."""
    ids: Numbers | None
    """The planes of each entry; None if entry k is plane k + 1."""
    depth: int
    axis: StackAxis
    memory: MemoryPlanes | None = None

    def as_argument(self) -> tuple[Any, ...]:
        """Return them as the core takes them."""
        return self.fields, self.ids, self.depth, self.axis or "first", self.memory

    def joined(self, others: Sequence["Planes"]) -> "Planes":
        """Return these and the planes of later parts, none of them in memory."""
        if self.ids is None:
            return others[-1]
        ids = np.concatenate([self.ids, *(each.ids for each in others if each.ids is not None)])
        return replace(others[-1], ids=ids)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the values of steps are that are looked at together."""

    arrays: RunArrays
    steps: Steps
    table: StepTable
    committed: int
    """How many steps of the run are committed; the others are in memory."""
    ends: int
    """How many last observations are committed."""
    recent: RecentSteps | None


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
    at: Place, spec: ColumnSpec, items: Items, options: Options
) -> tuple[Planes, Entries, Entries]:
    """Return the planes of a leaf of observations, and the entries of each transition.

    The first entries are those of what was observed, the others of what was observed next.
    """
    if spec.stack is not None and options.stack is not None:
        raise InvalidError(
            f"`{spec.name}` was recorded as stacks of {depth_of(spec)}, so `stack` cannot be "
            f"{options.stack}",
            hint="leave out stack=",
        )
    is_end = items.end != NO_END
    rows = at.steps.rows
    _check(int(rows.max(initial=0)))
    final = final_of(at.arrays, spec)
    memory = _Memory(at, spec, final, items.end[is_end], depth=depth_of(spec) if spec.stack else 1)
    if spec.stack is None and options.stack is None:
        planes = Planes(_fields(at, spec, final), None, 1, "first", memory.planes)
        of_rows, of_ends = memory.of_rows(), memory.of_ends(items.end)
        nexts = np.where(is_end, of_ends, of_rows[items.next_place]) - FIRST_PLANE
        return planes, _as_entries(of_rows[items.places] - FIRST_PLANE), _as_entries(nexts)
    used = np.zeros(len(rows), np.bool_)
    used[items.places] = True
    used[items.next_place[~is_end]] = True
    entry = np.cumsum(used) - 1
    places, ends = np.flatnonzero(used), np.unique(items.end[is_end])
    if spec.stack is not None:
        fields: list[tuple[int, int]] = [(at.arrays.number_of(spec.name), _IN_MEMORY)]
        ids = _recorded_stacks(memory, spec, final, places=places, ends=ends)
        axis, depth = spec.stack, depth_of(spec)
    else:
        fields, axis, depth = _fields(at, spec, final), "first", options.stack or 1
        ids = _stacks(at.steps, options, memory, places, ends)
    planes = Planes(fields, ids, depth, axis, memory.planes)
    nexts = np.where(
        is_end, len(places) + np.searchsorted(ends, items.end), entry[items.next_place]
    )
    return planes, _as_entries(entry[items.places]), _as_entries(nexts)


def row_planes(at: Place, spec: ColumnSpec, items: Items) -> tuple[Planes, Entries]:
    """Return the rows of a column as planes, and the entry of each transition.

    The value of a step without one is zeros.
    """
    memory = _Memory(at, spec, None, np.zeros(0, np.int64), depth=1)
    fields = [(at.arrays.number_of(spec.name), _IN_MEMORY)]
    is_there = at.table[PRESENT + spec.field][at.steps.order]
    ids = np.where(is_there, memory.of_rows(), NO_PLANE)[items.places]
    planes = Planes(fields, _as_entries(ids)[:, None], 1, "first", memory.planes)
    return planes, _as_entries(np.arange(len(items.places)))


class _Memory:
    """The numbers of the planes of steps and of last observations, committed or in memory."""

    def __init__(
        self, at: Place, spec: ColumnSpec, final: ColumnSpec | None, ends: Ints, *, depth: int
    ) -> None:
        self.at = at
        self._depth = depth
        self.in_memory = at.steps.rows >= at.committed
        self._ends = np.unique(ends[ends >= at.ends])
        self.planes: MemoryPlanes | None = None
        recent = at.recent
        if recent is None or not (self.in_memory.any() or len(self._ends)):
            self.in_memory = np.zeros(len(at.steps.rows), np.bool_)
            return
        number = at.arrays.number_of(spec.name)
        self.in_memory &= recent.arrays.have(number, at.steps.rows)
        wanted = [(number, at.steps.rows[self.in_memory])]
        if final is not None:
            wanted.append((at.arrays.number_of(final.name), self._ends))
        self.planes = recent.arrays.planes(wanted, depth)

    def of_rows(self) -> Ints:
        """Return the first plane of the step at each place."""
        numbers: Ints = self.at.steps.rows + FIRST_PLANE
        if self.planes is None:
            return numbers
        before = np.cumsum(self.in_memory) - 1
        in_memory = _IN_MEMORY + FIRST_PLANE + before * self._depth
        return np.where(self.in_memory, in_memory, numbers)

    def of_ends(self, ends: Ints) -> Ints:
        """Return the first plane of last observations."""
        before = int(self.in_memory.sum()) + np.searchsorted(self._ends, ends)
        in_memory = _IN_MEMORY + FIRST_PLANE + before * self._depth
        return np.where(ends >= self.at.ends, in_memory, _MAX_ROWS + FIRST_PLANE + ends)


def _fields(at: Place, spec: ColumnSpec, final: ColumnSpec | None) -> list[tuple[int, int]]:
    number = at.arrays.number_of(spec.name)
    if final is None:
        return [(number, _IN_MEMORY)]
    return [(number, _MAX_ROWS), (at.arrays.number_of(final.name), _MAX_ENDS)]


def _recorded_stacks(
    memory: _Memory, spec: ColumnSpec, final: ColumnSpec | None, *, places: Ints, ends: Ints
) -> Numbers:
    """Return the planes of stacks that were recorded: those of steps, then those of ends."""
    at, depth = memory.at, depth_of(spec)
    order = np.arange(depth)
    ids = np.zeros((len(places) + len(ends), depth), np.uint32)
    ids[: len(places)] = at.table[NUMBERS + spec.name][at.steps.order[places]]
    if memory.planes is not None:
        which = memory.in_memory[places]
        ids[: len(places)][which] = memory.of_rows()[places[which]][:, None] + order
    if final is not None and len(ends):
        is_committed = ends < at.ends
        of_ends = ids[len(places) :]
        if is_committed.any():
            of_ends[is_committed] = at.arrays.read_numbers(final.name, ends[is_committed])
        if not is_committed.all():
            of_ends[~is_committed] = memory.of_ends(ends[~is_committed])[:, None] + order
    _check(int(ids.max(initial=0)) if memory.planes is None else 0)
    return ids


def _stacks(steps: Steps, options: Options, memory: _Memory, places: Ints, ends: Ints) -> Numbers:
    """Return the planes of stacks of single observations: those of steps, then those of ends."""
    depth = options.stack or 1
    ids = np.zeros((len(places) + len(ends), depth), np.uint32)
    planes = memory.of_rows()

    def fill(entries: Ints | slice, back: int, at: Ints, segment: Ints) -> None:
        """Set the planes of observations at places, or of what is before the first place."""
        first = steps.first[segment]
        found = planes[np.maximum(at, first)]
        if options.pad == "zero":
            found = np.where(at < first, NO_PLANE, found)
        ids[entries, depth - 1 - back] = found

    of_steps = slice(0, len(places))
    for back in range(depth):
        fill(of_steps, back, places - back, steps.segment[places])
    segments = np.flatnonzero(np.isin(steps.end, ends)) if len(ends) else np.zeros(0, np.int64)
    entries = len(places) + np.searchsorted(ends, steps.end[segments])
    ids[entries, depth - 1] = memory.of_ends(steps.end[segments])
    for back in range(1, depth):
        fill(entries, back, steps.after[segments] - back, segments)
    return ids


def depth_of(spec: ColumnSpec) -> int:
    """Return how many planes a recorded stack has."""
    return spec.shape[0 if spec.stack == "first" else -1]


def _as_entries(entries: npt.NDArray[Any]) -> Entries:
    return np.ascontiguousarray(entries, np.uint32)


def _check(count: int) -> None:
    if count >= _MAX_ROWS:
        raise TooLargeError(
            f"transitions can be made of at most {_MAX_ROWS} observations, got {count}",
            hint="record into another run",
        )
