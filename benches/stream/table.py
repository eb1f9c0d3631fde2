"""The table: the rows of `benches.publish`, in Parquet files that eight ranks can share evenly."""

from __future__ import annotations

import shutil
from functools import cached_property
from typing import TYPE_CHECKING, Any

from benches.peers import module
from benches.publish.table import Table, rows_between

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 80_000
"""Rows at scale 1, rounded so that row groups have whole batches: about 60 MB of Parquet."""
FILES, GROUPS = 16, 2
"""Files, and row groups of each: 32 row groups, of about 1.9 MB at scale 1."""
BATCH = 256
"""Rows of a batch of one rank."""


class StreamTable(Table):
    """The rows, by a seed; every row group has the same number of whole batches.

    So eight ranks with any usual number of workers get the same rows each, and no loader has to
    drop or repeat any.
    """

    @classmethod
    def scaled(cls, data: Path, scale: float) -> StreamTable:
        """The table of about `ROWS * scale` rows, below the folder `data`."""
        unit = GROUPS * BATCH
        rows = FILES * unit * max(1, round(ROWS * scale / FILES / unit))
        return cls(data / f"stream-table-{rows}", rows)

    @property
    def file_rows(self) -> int:
        """Rows of a file."""
        return self.rows // FILES

    @property
    def group_rows(self) -> int:
        """Rows of a row group."""
        return self.file_rows // GROUPS

    @cached_property
    def files(self) -> list[Path]:
        """Parquet files with the rows in order."""
        if not self.folder.exists():
            parquet = module("pyarrow.parquet")
            partial = self.folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for number, part in enumerate(self.parts()):
                path = partial / f"part-{number:02d}.parquet"
                parquet.write_table(part, path, row_group_size=self.group_rows)
            partial.rename(self.folder)
        return sorted(self.folder.glob("*.parquet"))

    def parts(self) -> Iterator[Any]:
        """The rows of each file as an Arrow table."""
        for number in range(FILES):
            yield rows_between(number * self.file_rows, (number + 1) * self.file_rows)
