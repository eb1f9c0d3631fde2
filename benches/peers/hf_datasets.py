"""Hugging Face datasets: a memory-mapped Arrow file in NumPy format."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module
from benches.peers.arrow_rows import arrow_batches, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benches.data import Case


def _path(case: Case) -> Path:
    return case.folder / f"{case.stem}.arrow"


class HfDatasets(Peer):
    """`Dataset.from_file(path).with_format("numpy", dtype=uint8)[indices]["data"]`."""

    name = "HF datasets, numpy format"
    family: ClassVar[str] = "datasets"
    packages: ClassVar[tuple[str, ...]] = ("datasets", "pyarrow")

    def files(self, case: Case) -> list[Path]:
        """Its Arrow file."""
        return [_path(case)]

    def prepare(self, case: Case) -> None:
        """Write the Arrow file once."""
        path = _path(case)
        if path.exists():
            return
        partial = path.with_suffix(".partial")
        schema = arrow_schema(case)
        with module("pyarrow").ipc.new_stream(str(partial), schema) as sink:
            for batch in arrow_batches(case):
                sink.write_batch(batch)
        partial.rename(path)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Map the file."""
        del setting
        plain = module("datasets").Dataset.from_file(str(_path(case)))
        dataset = plain.with_format("numpy", dtype=np.uint8)
        batches = [rows.tolist() for rows in case.batches]

        def deliver() -> Iterator[Any]:
            for rows in cycle(batches):
                yield dataset[rows]["data"]

        return Stream(deliver(), np.asarray)
