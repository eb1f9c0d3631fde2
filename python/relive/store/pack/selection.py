"""Which entries of which packs a reader is about."""

from typing import Any

import numpy as np

from relive import _native
from relive.errors import ClosedError, CorruptError
from relive.model.select import compose, members
from relive.model.source import IndexArray, Rows
from relive.store.pack.files import Options, Part
from relive.store.pack.iterate import DecodeFailure
from relive.store.pack.kinds import decode_payload
from relive.store.pack.stats import Columns, read_columns
from relive.store.runs import Run

__all__ = ["Selection"]


class Selection:
    """The entries at `rows`, counted through all parts; every one of them for None."""

    def __init__(self, parts: tuple[Part, ...], options: Options, rows: Rows | None = None) -> None:
        self.options = options
        self.rows = rows
        self._parts = parts
        self._starts: IndexArray = np.cumsum([0, *(len(part.native) for part in parts)])
        self._table: _native.Table | None = None
        self._columns: Columns | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The open packs."""
        if not self._parts:
            raise ClosedError("the pack is closed")
        return self._parts

    @property
    def closed(self) -> bool:
        """Whether the packs were let go."""
        return not self._parts

    def close(self) -> None:
        """Let the packs go."""
        self._parts = ()
        self._table = None

    @property
    def local(self) -> bool:
        """Whether all packs are files of this machine."""
        return all(part.local for part in self.parts)

    @property
    def small(self) -> bool:
        """Whether all packs have small payloads, and no runs."""
        return all(part.small for part in self.parts)

    @property
    def total(self) -> int:
        """How many entries the packs have."""
        return int(self._starts[-1])

    @property
    def all_rows(self) -> Rows:
        """The positions in all packs together."""
        return range(self.total) if self.rows is None else self.rows

    def select(self, rows: Rows) -> "Selection":
        """Give a selection out of this one."""
        roots = rows if self.rows is None else compose(self.rows, rows)
        return Selection(self.parts, self.options, roots)

    def place(self, position: int) -> tuple[Part, int]:
        """Give the pack of an entry, and where in it the entry is."""
        parts = self.parts
        row = int(self.all_rows[position])
        if len(parts) == 1:
            return parts[0], row
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return parts[number], row - int(self._starts[number])

    def places(self) -> tuple[IndexArray, IndexArray]:
        """Give for each entry the number of its pack, and where in it the entry is."""
        return self._locate(np.asarray(self.all_rows, dtype=np.int64))

    def find(self, name: str) -> int | None:
        """Give the position of the entry of that name, if there is one."""
        for part, start in zip(self.parts, self._starts.tolist(), strict=False):
            row = part.native.find(name)
            if row is None:
                continue
            rows = self.all_rows
            if isinstance(rows, range):
                if start + row in rows:
                    return rows.index(start + row)
                continue
            found = np.flatnonzero(rows == start + row)
            if len(found):
                return int(found[0])
        return None

    def decode(self, positions: IndexArray, threads: int) -> list[Any]:
        """Give each entry decoded, or how that failed."""
        parts = self.parts
        numbers, rows = self._locate(members(self.all_rows, positions))
        found: list[Any] = [None] * len(positions)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            items = parts[number].native.decode(np.ascontiguousarray(rows[here]), threads)
            for place, item in zip(here.tolist(), items, strict=True):
                found[place] = _value(parts[number], int(rows[place]), item)
        return found

    def table(self) -> "_native.Table":
        """Give the entries as a table of the core."""
        if self._table is None:
            tables = [part.native.table() for part in self.parts]
            table = tables[0] if len(tables) == 1 else _native.Table.concat(tables)
            if isinstance(self.rows, range):
                table = table.select_range(self.rows.start, self.rows.step, len(self.rows))
            elif self.rows is not None:
                table = table.select(self.rows)
            self._table = table
        return self._table

    def columns(self) -> Columns:
        """Give what is known of each entry without decoding it."""
        if self._columns is None:
            self._columns = read_columns(self.parts, self.rows)
        return self._columns

    def _locate(self, roots: IndexArray) -> tuple[IndexArray, IndexArray]:
        numbers = np.searchsorted(self._starts, roots, side="right") - 1
        return numbers, roots - self._starts[numbers]


def _value(part: Part, row: int, item: Any) -> Any:
    if isinstance(item, Exception):
        return DecodeFailure(item)
    kind, value = item
    if isinstance(value, tuple):
        return Run._from_native(value)  # noqa: SLF001 - its other half
    if kind == 0:
        return value.tobytes()
    name = part.kind_name(kind)
    where = f"entry {row} of `{part.name}`, of the kind {name!r}"
    try:
        return decode_payload(name, memoryview(value))
    except StopIteration as error:
        # Raised by an iterator it would end the loop, and nobody would know.
        failure = CorruptError(f"the decoder raised StopIteration in {where}")
        failure.__cause__ = error
        return DecodeFailure(failure)
    except Exception as error:  # noqa: BLE001 - whatever a user's decoder raises is told
        error.add_note(f"in {where}")
        return DecodeFailure(error)
