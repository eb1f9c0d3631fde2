"""Single steps of runs as a source: what training samples."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive import _native
from relive.model.schema import Field
from relive.model.source import Batch, Indices, Source, as_indices, check_out, pick_fields

if TYPE_CHECKING:
    from relive.store.pack.reader import PackReader

__all__ = ["PackSteps"]

_FIELDS: Final = {
    "board": Field(np.uint64),
    "cells": Field(np.uint8, (4, 4)),
    "move": Field(np.uint8),
    "legal": Field(np.uint8),
    "branches": Field(np.float32, (4,)),
    "next_board": Field(np.uint64),
    "reward": Field(np.uint32),
    "last": Field(np.bool_),
    "terminal": Field(np.bool_),
    "steps_left": Field(np.uint32),
    "run": Field(np.uint32),
    "step": Field(np.uint32),
}


class PackSteps(Source):
    """Every step of every run of a pack, in order; made by `PackReader.steps`.

    `run` is the position of the step's run in the reader, so `reader[run]` is the whole of it.
    Packs built with a step table are read at the speed of memory; without one, a step is
    decoded from the nearest of the run's checkpoints.
    """

    def __init__(self, reader: "PackReader") -> None:
        self._reader = reader
        natives = [part.native for part in reader.parts]
        if reader.whole:
            self._table = _native.pack_steps(natives)
        else:
            self._table = _native.pack_steps(natives, *reader.places())
        self._local = all(part.local for part in reader.parts)
        mapped = all(part.native.mapped for part in reader.parts)
        self._threads = reader.parts[0].options.threads if mapped else 1

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every step."""
        return _FIELDS

    def __len__(self) -> int:
        """Count the steps."""
        return len(self._table)

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read steps into one batch; see `Source.gather`."""
        rows = as_indices(indices, len(self._table), check=False)
        if fields is None and out is None:
            return self._table.gather(rows, None, None, self._threads)
        picked = pick_fields(_FIELDS, fields)
        given = check_out(out, picked, rows.shape) if out is not None else None
        columns = [_COLUMNS[name] for name in picked]
        return self._table.gather(rows, columns, given, self._threads)

    def native_table(self) -> "_native.Table | None":
        """Give the steps as a table of the core, where all packs are files."""
        return self._table if self._local else None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the reader."""
        return PackSteps, (self._reader,)


_COLUMNS: Final = {name: number for number, name in enumerate(_FIELDS)}
