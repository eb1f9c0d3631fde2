"""The steps of runs as a source."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive import _native
from relive.model.schema import Field
from relive.model.source import Batch, Indices, Source, as_indices, check_out, pick_fields

if TYPE_CHECKING:
    from relive.store.pack.reader import PackReader

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

    `run` is the position of the step's run in the reader: `reader[run]` is the whole run.
    A pack written with `steps=True` has a table of its steps, which is read without decoding
    runs; otherwise a step is decoded from the nearest checkpoint of its run.

    Example:
        >>> import relive
        >>> with relive.PackWriter("a.pack", steps=True) as writer:
        ...     position = writer.append(relive.Run(boards=[0x11, 0x2], moves=[3]), "v2")
        >>> steps = relive.PackReader.open("a.pack").steps()
        >>> len(steps), steps.gather([0], ["move", "run"])["move"].tolist()
        (1, [3])
    """

    def __init__(self, reader: "PackReader") -> None:
        self._reader = reader
        natives = [file.native for file in reader.files]
        locations = () if reader.is_whole else reader.locate_all()
        self._table = _native.pack_steps(natives, *locations)
        self._is_local = reader.is_local
        self._workers = reader.gather_workers

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every step."""
        return _FIELDS

    def __len__(self) -> int:
        """Return the number of steps."""
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
            return self._table.gather(rows, None, None, self._workers)
        picked = pick_fields(_FIELDS, fields)
        given = check_out(out, picked, rows.shape) if out is not None else None
        columns = [_COLUMNS[name] for name in picked]
        return self._table.gather(rows, columns, given, self._workers)

    def native_table(self) -> "_native.Table | None":
        """Return the steps as a table of the core if all packs are local files."""
        return self._table if self._is_local else None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the reader."""
        return PackSteps, (self._reader,)


_COLUMNS: Final = {name: number for number, name in enumerate(_FIELDS)}
