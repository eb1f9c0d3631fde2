"""Rows with keys of their own, numbered for a tree of priorities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive._interrupts import uninterrupted
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError
from relive.model.source import KEYS_PER_RUN, IndexArray, RowKeys

if TYPE_CHECKING:
    from relive import _native

_BLOCK: Final = 256
"""Keys are numbered in blocks of as many that follow each other."""
_FEW_BLOCKS: Final = 16
_NONE: Final = np.zeros(0, np.int64)
STATE: Final = ("blocks", "first_block")
"""The names of what `save` returns."""


@dataclass(slots=True)
class _Run:
    """What is known of the keys of a run."""

    end: int
    """The key after the greatest one that there was."""
    lineage: object = None
    version: int = 0
    first: int = 0
    """No row has a key below it, now or later."""
    settled: int = 0
    unsettled: IndexArray = field(default_factory=_NONE.copy)
    """The keys from `settled` on, and earlier ones that `settled` names."""
    count: int = 0


class KeyedRows:
    """The rows of a tree of priorities that rows with keys have. One thread at a time.

    Each block of keys has as many rows of the tree, after those of the blocks before it. So the
    tree is not much larger than there are keys, wherever each run begins. A row of the tree never
    gets another key: streams that know it by the one it had would return the wrong data.
    """

    def __init__(self, core: "_native.Priorities") -> None:
        self._core = core
        self._runs: dict[int, _Run] = {}
        self._may_drop = False
        self._first_block = 1  # row 0 of the tree has no key
        self._set_blocks(_NONE)
        core.restore(_BLOCK, 1, core.alpha, core.beta, 1.0, 0, np.zeros(0))

    def __len__(self) -> int:
        """Count the keys."""
        return sum(run.count for run in self._runs.values())

    def take(self, keys: Sequence[RowKeys]) -> int:
        """Have these rows of runs, and return how many are new. Older snapshots are ignored."""
        added = sum(self._take(each) for each in keys)
        if self._may_drop:
            uninterrupted(self._drop_blocks)
            self._may_drop = False
        return added

    def rows_of(self, keys: IndexArray) -> IndexArray:
        """Return the row of the tree that each key has; 0 for one without."""
        if not len(self._blocks):
            return np.zeros(keys.shape, np.int64)
        bases = keys & -_BLOCK
        places = np.minimum(np.searchsorted(self._sorted, bases), len(self._sorted) - 1)
        rows = (self._order[places] + self._first_block) * _BLOCK + (keys & (_BLOCK - 1))
        rows[self._sorted[places] != bases] = 0
        return rows

    def keys_of(self, rows: IndexArray) -> IndexArray:
        """Return the keys of rows of the tree."""
        keys: IndexArray = self._blocks[rows // _BLOCK - self._first_block] + rows % _BLOCK
        return keys

    def changed_rows(self, keys: IndexArray) -> IndexArray:
        """Return the rows of the tree of keys that may have left; raise for one that never was."""
        starts = keys & -KEYS_PER_RUN
        for start in np.unique(starts).tolist():
            run = self._runs.get(start)
            end = start if run is None else run.end
            if len(bad := keys[(starts == start) & (keys >= end)]):
                raise OutOfRangeError(
                    f"index {bad[0]} is out of range: the sampler has no such row",
                    hint="call refresh() to include new rows",
                )
        return self.rows_of(keys)

    def save(self) -> dict[str, Any]:
        """Return the key that each block of rows begins with, and the number of the first block."""
        return dict(zip(STATE, (self._blocks.copy(), self._first_block), strict=True))

    def load(self, state: Mapping[str, Any], keys: Sequence[RowKeys]) -> None:
        """Restore the tree and the numbers of a state, without rows that do not exist now."""
        if missing := [name for name in STATE if name not in state]:
            raise InvalidError(
                f"`state` does not have the keys {', '.join(map(repr, missing))}",
                hint="it was saved by a sampler of a source without transitions",
            )
        blocks = np.array(state["blocks"])
        if blocks.dtype != np.int64 or blocks.ndim != 1:
            raise InvalidTypeError(
                "`blocks` of the state must be an int64 array of one dimension, "
                f"got {blocks.dtype} with {blocks.ndim}"
            )
        first_block, first = int(state["first_block"]), int(state["first"])
        count, end_block = len(state["priorities"]), first_block + len(blocks)
        is_valid = (
            0 < first_block * _BLOCK <= first <= first + count <= end_block * _BLOCK
            and (blocks >= 0).all()
            and not (blocks % _BLOCK).any()
            and len(np.unique(blocks)) == len(blocks)
        )
        if not is_valid:
            raise InvalidError("the `blocks` of the state do not fit its `priorities`")
        uninterrupted(lambda: self._restore(state, blocks, keys))

    def _restore(
        self, state: Mapping[str, Any], blocks: IndexArray, keys: Sequence[RowKeys]
    ) -> None:
        first_block, first = int(state["first_block"]), int(state["first"])
        capacity = int(state["capacity"])
        # To rows that never had a key here. Their leaves, and so the draws, are the same.
        unit = max(1, capacity // _BLOCK)
        moved = max(0, self._first_block + len(self._blocks) - first_block)
        moved = -(-moved // unit) * unit
        self._core.restore(
            first + moved * _BLOCK,
            capacity,
            float(state["alpha"]),
            float(state["beta"]),
            float(state["largest"]),
            int(state["ignored"]),
            state["priorities"],
        )
        self._first_block = first_block + moved
        self._set_blocks(blocks)
        self._runs = {}
        for start in np.unique(blocks & -KEYS_PER_RUN).tolist():
            own = self._keys_from(start)
            now = [each.since(start) for each in keys if each.start == start]
            gone = _without(own, now[0] if now else _NONE)
            self._core.remove(self.rows_of(gone))
            last = blocks[blocks & -KEYS_PER_RUN == start].max()
            run = _Run(int(last) + _BLOCK, count=len(own) - len(gone))
            self._runs[start] = run

    def _take(self, keys: RowKeys) -> int:
        """Have these rows of a run, and return how many are new."""
        run = self._runs.setdefault(keys.start, _Run(keys.start))
        if run.lineage is keys.lineage:
            if keys.version < run.version:
                return 0
            # Those that had left the window, and those that were removed for another reason.
            self._remove(np.arange(run.first, min(keys.first, run.settled)))
            now, before = keys.since(run.settled), run.unsettled
        else:
            now, before = keys.since(keys.start), self._keys_from(keys.start)
        self._remove(_without(before, now))
        new, added = _without(now, before), 0
        if len(new):
            self._add_blocks(new)
            added = self._core.insert(np.sort(self.rows_of(new)))
            run.end = max(run.end, int(new[-1]) + 1)
        self._may_drop |= keys.first // _BLOCK != run.first // _BLOCK
        run.lineage, run.version, run.count = keys.lineage, keys.version, len(keys)
        run.first, run.settled = keys.first, keys.settled
        run.unsettled = keys.since(keys.settled)
        return added

    def _remove(self, keys: IndexArray) -> None:
        if len(keys):
            self._core.remove(self.rows_of(keys))

    def _keys_from(self, start: int) -> IndexArray:
        """Return the keys of a run that are in the tree."""
        first, *_, priorities = self._core.save()
        keys = self.keys_of(first + np.flatnonzero(priorities))
        return np.sort(keys[keys & -KEYS_PER_RUN == start])

    def _set_blocks(self, blocks: IndexArray) -> None:
        order = np.argsort(blocks)
        ordered = blocks[order]
        # Without calls in between, so that Ctrl-C does not leave a half of it.
        self._blocks, self._order, self._sorted = blocks, order, ordered

    def _add_blocks(self, keys: IndexArray) -> None:
        """Number the blocks of keys that have no number."""
        new = np.setdiff1d(keys & -_BLOCK, self._sorted)
        if len(new):
            self._set_blocks(np.concatenate((self._blocks, new)))

    def _drop_blocks(self) -> None:
        """Drop blocks all of whose keys have left."""
        starts = self._blocks & -KEYS_PER_RUN
        first = np.zeros(len(starts), np.int64)
        for start, run in self._runs.items():
            first[starts == start] = run.first
        is_used = self._blocks + _BLOCK > first
        dropped = len(is_used) if not is_used.any() else int(np.argmax(is_used))
        if dropped:
            self._first_block += dropped
            self._core.evict(min(self._first_block * _BLOCK, self._core.window[1]))
            is_used = is_used[dropped:]
            self._set_blocks(self._blocks[dropped:])
        unused = len(is_used) - int(is_used.sum())
        if unused > max(_FEW_BLOCKS, len(is_used) // 2):
            self._renumber(is_used)

    def _renumber(self, kept: npt.NDArray[np.bool_]) -> None:
        """Move the blocks that are used to rows that never had a key."""
        first, _, alpha, beta, largest, ignored, priorities = self._core.save()
        every = np.zeros((len(kept), _BLOCK))
        offset = first - self._first_block * _BLOCK
        every.ravel()[offset : offset + len(priorities)] = priorities
        moved = every[kept].ravel()
        self._first_block += len(kept)
        self._set_blocks(self._blocks[kept])
        capacity = 1 << max(0, len(moved) - 1).bit_length()
        first = self._first_block * _BLOCK
        self._core.restore(first, capacity, alpha, beta, largest, ignored, moved)


def _without(keys: IndexArray, others: IndexArray) -> IndexArray:
    """Return the keys that are not among others; both increase."""
    if not len(others):
        return keys
    places = np.minimum(np.searchsorted(others, keys), len(others) - 1)
    left: IndexArray = keys[others[places] != keys]
    return left
