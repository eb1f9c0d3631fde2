"""Lance: `take` of row positions from a dataset of fixed-size lists."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import Peer, Setting, Stream, module
from benches.peers.arrow_rows import arrow_batches, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from benches.data import Case


def _path(case: Case) -> Path:
    return case.folder / f"{case.stem}.lance"


class LanceTake(Peer):
    """`dataset.take(indices, columns=["data"])`, an Arrow table per batch."""

    name = "lance take"
    family: ClassVar[str] = "lance"
    packages: ClassVar[tuple[str, ...]] = ("pylance", "pyarrow")

    def files(self, case: Case) -> list[Path]:
        """Its dataset."""
        return [_path(case)]

    def prepare(self, case: Case) -> None:
        """Write the dataset once."""
        path = _path(case)
        if path.exists():
            return
        partial = path.with_suffix(".partial")
        lance = module("lance")
        lance.write_dataset(arrow_batches(case), str(partial), schema=arrow_schema(case))
        partial.rename(path)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Open the dataset."""
        del setting
        dataset = module("lance").dataset(str(_path(case)))

        def deliver() -> Iterator[Any]:
            for rows in cycle(case.batches):
                yield dataset.take(rows, columns=["data"])

        def to_array(table: Any) -> NDArray[Any]:
            column = table["data"].combine_chunks()
            values: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
            return values.reshape(len(column), -1)

        return Stream(deliver(), to_array)
