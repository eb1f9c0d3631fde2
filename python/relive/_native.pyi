"""Signatures of the compiled core, proven against it by stubtest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer as _Bytes

from relive._native_records import *  # noqa: F403 - all of it
from relive._native_tape import *  # noqa: F403 - all of it

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
class Pack:
    """One packfile, open for reading. Thread-safe."""

    @staticmethod
    def open(path: str, verify: str, mapped: bool, max_payload_bytes: int) -> Pack:
        """Opens a file of this machine: mapped, or read as it is needed."""

    @staticmethod
    def open_ranged(
        name: str,
        size: int,
        read_ranges: Callable[[list[tuple[int, int]]], list[bytes]],
        verify: str,
        max_payload_bytes: int,
    ) -> Pack:
        """Opens `size` bytes that `read_ranges(ranges)` gives pieces of: a list of bytes, one for
        each `(start, stop)`.
        """

    def __len__(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes of the whole file."""

    @property
    def mapped(self) -> bool:
        """Whether the file is memory that entries can be seen in without a copy."""

    def entry(self, index: int) -> tuple[int, int, int, int, int, int]:
        """Offset, stored length, kind, flags, CRC and payload length of an entry."""

    def kind_ids(self) -> npt.NDArray[np.uint16]:
        """The number of every entry's kind."""

    def kind_names(self) -> dict[int, str]:
        """The names of the user's kinds, by number."""
    def kind(self, index: int) -> str:
        """What the entry is: "bytes", "v1", "v2" or the name of a user's kind."""
    def name(self, index: int) -> str | None:
        """The name of an entry, if it has one."""
    def find(self, name: str) -> int | None:
        """The entry of that name, if there is one."""

    def payload(self, index: int) -> npt.NDArray[np.uint8]:
        """The payload of an entry, not writable; the file's own memory where it is stored raw and
        mapped.
        """

    def decode(
        self, rows: npt.NDArray[np.int64], threads: int
    ) -> list[tuple[int, _RunFields | npt.NDArray[np.uint8]] | Exception]:
        """What the entries at `rows` are: for each its kind and its run as a tuple, or its payload
        as an array; or the error that reading it gave.
        """

    def run_columns(self) -> dict[str, Any]:
        """The columns of all entries that are runs: steps, highest_tile, max_score, engine; and
        the engines, which `engine` counts from 0, the largest number being none.
        """

    def summary(self) -> dict[str, Any] | None:
        """The lengths of runs as the stats block sums them up; none without one."""

    def layout(self) -> dict[str, Any]:
        """How many entries of which kinds there are, and how many bytes they take."""

    def describe(self) -> dict[str, Any]:
        """Header flags, end of the data, and tag, offset and length of every section."""

    def table(self) -> Table:
        """The entries as rows: `payload`, ragged bytes, and `kind`."""

def pack_steps(
    packs: list[Pack],
    parts: npt.NDArray[np.int64] | None = None,
    rows: npt.NDArray[np.int64] | None = None,
) -> Table:
    """The steps of runs as rows: of all entries, or of entry `rows[k]` of pack `parts[k]`."""

def pack_stats(
    packs: list[Pack],
    parts: npt.NDArray[np.int64] | None = None,
    rows: npt.NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """The numbers of all entries, or of entry `rows[k]` of pack `parts[k]`."""

def write_jsonl(
    packs: list[Pack],
    parts: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    write: Callable[[bytes], object],
    *,
    steps: bool,
    lists: bool,
    hex_boards: bool,
    skip: bool,
    threads: int,
    progress: Callable[[int], object] | None,
) -> int:
    """Writes entry `rows[k]` of pack `parts[k]` as lines of JSON with calls of `write(bytes)`;
    `progress(done)` is told how many entries are done. Gives how many were skipped.
    """

def validate_pack(
    path: str,
    level: str,
    max_payload_bytes: int,
    threads: int,
    progress: Callable[[int, int], object] | None,
) -> tuple[int, list[tuple[int | None, int | None, str, str]]]:
    """Looks at the pack at `path`: how many entries were read, and for each problem the entry, the
    offset, the kind of error and the message.
    """

def validate_ranged(
    name: str,
    size: int,
    read_ranges: Callable[[list[tuple[int, int]]], list[bytes]],
    level: str,
    max_payload_bytes: int,
    progress: Callable[[int, int], object] | None,
) -> tuple[int, list[tuple[int | None, int | None, str, str]]]:
    """Looks at a pack that `read_ranges` gives pieces of; otherwise as `validate_pack`."""

@final
class PackWriter:
    """One packfile being written; see `relive.PackWriter`, which wraps it. Thread-safe."""
    def __new__(
        cls,
        path: str,
        *,
        align: int,
        codec: str,
        level: int | None,
        dictionary: bytes | None,
        checksum: bool,
        capacity: int | None,
        steps: bool,
        overwrite: bool,
        max_payload_bytes: int,
        threads: int,
    ) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def is_open(self) -> bool:
        """Whether entries can be appended."""
    def append(self, payload: bytes, kind: str, name: str | None, codec: str | None) -> int:
        """Appends a payload and gives its position. The kind "auto" is that of the run it is."""
    def extend(
        self,
        payloads: list[bytes],
        kind: str,
        names: list[str | None] | None,
        codec: str | None,
    ) -> tuple[int, int]:
        """Appends payloads, all or none; the positions of the first and behind the last."""
    def copy(
        self,
        packs: list[Pack],
        parts: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        keep_names: bool,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        """Appends entry `rows[k]` of pack `parts[k]` as it is stored; tells how many are done."""
    def flush(self) -> None:
        """Makes every entry so far survive the end of this process."""
    def sync(self) -> None:
        """Makes every entry so far survive a power cut."""
    def finish(self) -> tuple[int, int, int]:
        """Finishes the pack; its entries, its bytes, and how many of them align entries."""
    def abort(self) -> None:
        """Removes everything that was written."""
    def leave(self) -> None:
        """Leaves the pack unfinished."""

def common_dictionary(packs: list[Pack]) -> bytes | None:
    """The dictionary that entries of these packs need, if any does."""

def check_kind_name(name: str) -> None:
    """Refuses a name that no kind of a user can have."""

def unfinished_packs(path: str) -> list[Path]:
    """The unfinished packs that were to become the one at `path`."""

def unfinished_target(path: str) -> Path | None:
    """What the unfinished pack at `path` was to become; none if the name is not of one."""

def recover_pack(unfinished: str, output: str, overwrite: bool) -> tuple[int, int, int, str | None]:
    """Makes a pack of the whole entries: how many, how many lost, bytes of the file, and why."""

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

def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of bytes."""

def default_threads() -> int:
    """The most threads a gather uses when the user did not say."""

def error_kinds() -> list[str]:
    """Every kind of error the core can raise."""

_RunFields: TypeAlias = tuple[
    int,
    int,
    float,
    int,
    int,
    str | None,
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint8],
    npt.NDArray[np.float32] | None,
    npt.NDArray[np.uint8] | None,
]

def parse_run(data: _Bytes | npt.NDArray[Any], version: int | None) -> _RunFields:
    """The fields of the run in `data`, of the given version or else of the one that it says."""

def run_to_bytes(fields: _RunFields, version: int) -> bytes:
    """The bytes of the run with these fields."""
