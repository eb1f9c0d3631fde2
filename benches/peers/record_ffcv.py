"""ffcv: a `.beton` file, written by its writer and read by its Loader alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.payloads import THREADS, PayloadCase
from benches.peers import Setting, Stream, module
from benches.peers.record_store import FixedCase, RecordPeer, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.data import Bytes
    from benches.peers.record_store import Job, RecordCase

_AHEAD = 3
"""Batches its Loader holds ready by default."""


class RecordFfcv(RecordPeer):
    """`Loader(path, order=RANDOM)`, or `SEQUENTIAL` for a scan; epoch after epoch."""

    name = "ffcv Loader"
    family: ClassVar[str] = "ffcv"
    packages: ClassVar[tuple[str, ...]] = ("ffcv",)
    suffix = "beton"

    def refuses(self, case: RecordCase) -> bool:
        """Its batches hold records of one size, and it has no zstd."""
        return case.codec != "raw" or not isinstance(case, FixedCase)

    def bulk(self, case: RecordCase, path: Path, *, synced: bool) -> Job:
        """`DatasetWriter(path, fields).from_indexed_dataset(rows)`."""
        kind = _library("ffcv.fields").NDArrayField
        field = kind(np.dtype(np.uint8), (case.record_bytes,))
        rows = _Rows(case.rows())

        def write() -> None:
            writer = module("ffcv.writer").DatasetWriter(
                str(path), {"data": field}, num_workers=THREADS
            )
            writer.from_indexed_dataset(rows)

        return whole(write, path, synced=synced)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Start the Loader; fields are decoded to arrays and not to tensors."""
        del setting
        loading = _library("ffcv.loader")
        order = loading.OrderOption.SEQUENTIAL if case.scan else loading.OrderOption.RANDOM
        loader = loading.Loader(
            str(self.place(case)),
            batch_size=case.batch_size,
            num_workers=THREADS,
            order=order,
            seed=case.seed,
            drop_last=True,
            pipelines={"data": [module("ffcv.fields.ndarray").NDArrayDecoder()]},
        )

        def deliver() -> Iterator[Any]:
            while True:
                for (batch,) in loader:
                    yield batch

        return Stream(deliver(), np.asarray, ahead=_AHEAD)


class _Rows:
    """Records as the samples of a dataset: a tuple of one field each."""

    def __init__(self, rows: Sequence[Bytes]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        """Count the records."""
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Bytes]:
        """One record."""
        return (self.rows[row],)


def _library(name: str) -> Any:
    try:
        return module(name)
    except ImportError as error:
        message = (
            "ffcv is not installed: it comes as source alone and needs the headers of OpenCV "
            "and libjpeg-turbo to build"
        )
        raise ImportError(message) from error
