"""Signatures of the compiled core, proven against it by stubtest."""

from collections.abc import Callable
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

@final
class Buffer:
    """The memory of a batch. Arrays made over it keep it; when the last is gone the memory
    serves another batch.
    """

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

@final
class Codec:
    """One codec with its level, dictionary and limit, ready to use. Thread-safe."""

    def __new__(
        cls, name: str, level: int | None, dictionary: bytes | None, max_bytes: int
    ) -> Self: ...
    @property
    def id(self) -> int:
        """The number that stands for this codec in files."""
    @property
    def name(self) -> str:
        """The name of this codec, in its one spelling."""
    @property
    def level(self) -> int | None:
        """The level in use; None for codecs without levels."""
    @property
    def dictionary(self) -> bytes | None:
        """The dictionary in use."""
    @property
    def max_bytes(self) -> int:
        """The longest record that is encoded or decoded."""
    def encode(self, data: bytes) -> bytes:
        """The stored form of `data`."""
    def encode_batch(self, records: list[bytes], threads: int | None) -> list[bytes]:
        """The stored form of every record, in order."""
    def decode(self, data: bytes, length: int) -> bytes:
        """The record of `length` bytes that `data` is the stored form of."""
    def decode_batch(
        self, records: list[bytes], lengths: npt.NDArray[np.uint64], threads: int | None
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Every record one behind the other, and the offsets between them."""

def codec_names() -> list[str]:
    """The names of the codecs, each at the position of its id."""

def train_dictionary(samples: list[bytes], size: int) -> bytes:
    """A zstd dictionary of at most `size` bytes, trained from sample records."""

@final
class Prefetch:
    """Batches of one or more tables, gathered ahead; see `relive.DataLoader`."""

    def __new__(
        cls,
        tables: list[Table],
        names: list[tuple[str | None, str]],
        *,
        sampler: Sampler,
        workers: int,
        depth: int,
        make_ragged: Callable[[npt.NDArray[Any], npt.NDArray[np.int64]], object],
        allocate: Callable[[int], npt.NDArray[np.uint8]] | None = None,
    ) -> Self:
        """`names` says where each column of each table goes in a batch: the name of a dict
        inside it, or none, and the name there. `allocate(nbytes)` gives a writable uint8
        array for one batch. The sampler is copied.
        """

    def next(self) -> dict[str, Any] | None:
        """The next batch; none at the end."""

    @property
    def cursor(self) -> tuple[int, int, int]:
        """Position, samples left out and samples repeated after the last batch handed out."""

    @property
    def first(self) -> int:
        """Global position of the first sample of the last batch handed out."""

    def close(self) -> None:
        """Stops the threads and waits for them; batches handed out stay valid."""

@final
class Sampler:
    """Batches of row numbers; see `relive.Sampler`, which wraps it."""

    def __new__(
        cls,
        length: int,
        batch_size: int,
        mode: str,
        *,
        seed: int,
        window: int | None,
        stride: int | None,
        rank: int,
        world_size: int,
        tail: str,
        epochs: int | None,
    ) -> Self: ...
    def draw(self) -> tuple[npt.NDArray[np.int64], int, int] | None:
        """The rows of the next batch, how many of its samples are padding, and the global
        position of its first sample; none at the end.
        """

    def seek(self, steps: int) -> None:
        """Stands where `steps` steps from the beginning lead."""

    @property
    def cursor(self) -> tuple[int, int, int]:
        """Position, samples left out and samples repeated so far."""

    @cursor.setter
    def cursor(self, value: tuple[int, int, int]) -> None: ...
    @property
    def samples_per_epoch(self) -> int:
        """Samples that all ranks together draw in an epoch."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch."""

    @property
    def total_steps(self) -> int | None:
        """Steps from the beginning to the end; none when there is no end."""

    def copy(self) -> Sampler:
        """An independent sampler that stands at the same place."""

@final
class Table:
    """Columns of equal length in memory, or a view of such tables."""

    def __new__(
        cls, columns: list[tuple[str, npt.NDArray[Any], npt.NDArray[np.int64] | None]]
    ) -> Self:
        """Columns as `(name, values, offsets or None)`."""

    def __len__(self) -> int: ...
    def select(self, rows: npt.NDArray[np.int64]) -> Table:
        """The given rows, in that order."""

    def select_range(self, start: int, step: int, length: int) -> Table:
        """The rows `start`, `start + step`, …, `length` of them."""

    @staticmethod
    def concat(tables: list[Table]) -> Table:
        """All rows of all tables, one table after the other."""

    @staticmethod
    def mix(tables: list[Table], slots: list[int], length: int) -> Table:
        """`length` rows that go through the tables in rounds: slot `k` of a round takes the
        next row of table `slots[k]`.
        """

    def gather(
        self,
        indices: npt.NDArray[np.int64],
        columns: list[int] | None = None,
        out: dict[str, npt.NDArray[Any]] | None = None,
        threads: int = 1,
    ) -> dict[str, Any]:
        """The rows at `indices`: an array for each fixed column, `(values, offsets)` for each
        ragged one. `columns` picks some by position, `out` gives arrays for some by name.
        """

def default_threads() -> int:
    """The most threads a gather uses when the user did not say."""

def error_kinds() -> list[str]:
    """Every kind of error the core can raise."""
