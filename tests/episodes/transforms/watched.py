"""A signal in memory that counts which records were read."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.model.clock import Times
from relive.model.signal import ArraySignal
from relive.model.source import Rows


class WatchedSignal(ArraySignal):
    """Notes every read of values, of one value, and of times."""

    def __init__(self, values: npt.ArrayLike, timestamps: npt.ArrayLike, **about: Any) -> None:
        super().__init__(values, timestamps, **about)
        self.batches: list[list[int]] = []
        self.passes = 0
        self.times_read = 0

    @property
    def timestamps(self) -> Times:
        self.times_read += 1
        return super().timestamps

    @property
    def read(self) -> set[int]:
        """The records that were read so far."""
        return {row for batch in self.batches for row in batch}

    def value_at(self, row: int) -> Any:
        self.batches.append([row])
        return super().value_at(row)

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        self.batches.append(np.asarray(rows).tolist())
        return super().values_at(rows, out)

    def iterate(self, rows: Rows) -> Iterator[Any]:
        self.passes += 1
        for row in rows:
            yield super().value_at(row)


def frames(count: int, *, height: int = 4, width: int = 6) -> WatchedSignal:
    """Return images that contain their number, 100 ns apart."""
    values = np.empty((count, height, width, 3), dtype=np.uint8)
    values[...] = np.arange(count)[:, None, None, None]
    return WatchedSignal(values, np.arange(count) * 100, name="cam", kind="image")


def joints(count: int = 20) -> WatchedSignal:
    """Return vectors of three joints, 10 ns apart."""
    values = np.arange(count * 3, dtype=np.float64).reshape(count, 3)
    return WatchedSignal(
        values, np.arange(count) * 10, name="arm.q", attrs={"names": ["x", "y", "z"], "unit": "rad"}
    )
