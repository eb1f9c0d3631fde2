"""Signatures of the compiled core, checked against it by stubtest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Self, SupportsIndex, TypeAlias, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer as _Bytes

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

_Spec: TypeAlias = tuple[str, str, tuple[int, ...], str, int, str, int | None, int]
_Taken: TypeAlias = tuple[
    str, str, np.dtype[Any] | None, tuple[int, ...], int, Callable[[Any], object]
]
_Column: TypeAlias = (
    npt.NDArray[Any]
    | tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64] | None]
    | list[Any]
    | None
)

@final
class Buffer:
    """The memory of a batch. Arrays over it keep it alive; when the last is gone, the memory is
    used for another batch.
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
        """The id of this codec in files."""
    @property
    def name(self) -> str:
        """The name of this codec."""
    @property
    def level(self) -> int | None:
        """The compression level; None for codecs without levels."""
    @property
    def dictionary(self) -> bytes | None:
        """The dictionary, if there is one."""
    @property
    def max_bytes(self) -> int:
        """The limit for the length of a record."""
    def encode(self, data: bytes) -> bytes:
        """Encode one record."""
    def encode_batch(self, records: list[bytes], workers: int | None) -> list[bytes]:
        """Encode all records, in order."""
    def decode(self, data: bytes, length: int) -> bytes:
        """Decode one record, which has `length` bytes."""
    def decode_batch(
        self, records: list[bytes], lengths: npt.NDArray[np.uint64], workers: int | None
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Decode all records into one array, and return it with their offsets."""

def codec_names() -> list[str]:
    """Return the names of the codecs, each at the position of its id."""

def train_dictionary(samples: list[bytes], size: int) -> bytes:
    """Train a zstd dictionary of at most `size` bytes from sample records."""

@final
class Pack:
    """One packfile, open for reading. Thread-safe."""

    @staticmethod
    def open(path: str, verify: str, mapped: bool, max_payload_bytes: int) -> Pack:
        """Open a local file: memory-mapped, or read on demand."""

    @staticmethod
    def open_ranged(
        name: str,
        size: int,
        read_ranges: Callable[[list[tuple[int, int]]], list[bytes]],
        verify: str,
        max_payload_bytes: int,
    ) -> Pack:
        """Open a pack of `size` bytes. `read_ranges(ranges)` returns a list of bytes, one for each
        `(start, stop)`.
        """

    def __len__(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes of the whole file."""

    @property
    def mapped(self) -> bool:
        """Whether the file is memory-mapped, so that entries can be read without a copy."""

    def entry(self, index: int) -> tuple[int, int, int, int, int, int]:
        """Return offset, stored length, kind, flags, CRC and payload length of an entry."""

    def kind_ids(self) -> npt.NDArray[np.uint16]:
        """Return the kind id of every entry."""

    def kind_names(self) -> dict[int, str]:
        """Return the names of user-defined kinds, by id."""
    def kind(self, index: int) -> str:
        """Return the kind of an entry: "bytes", "v1", "v2" or a user-defined kind."""
    def name(self, index: int) -> str | None:
        """Return the name of an entry, if it has one."""
    def find(self, name: str) -> int | None:
        """Return the position of the entry with that name, if there is one."""

    def payload(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the payload of an entry, read-only; without a copy if it is stored raw in a mapped
        file.
        """

    def decode(
        self, rows: npt.NDArray[np.int64], workers: int
    ) -> list[tuple[int, _RunFields | npt.NDArray[np.uint8]] | Exception]:
        """Decode the entries at `rows`: for each its kind and its run as a tuple, or its payload as
        an array; or the error that reading it raised.
        """

    def run_columns(self) -> dict[str, Any]:
        """Return columns for all entries that are runs: steps, highest_tile, max_score, engine; and
        the engine names that `engine` is an index into. The largest index means none.
        """

    def summary(self) -> dict[str, Any] | None:
        """Return the run lengths of the stats block; None without one."""

    def layout(self) -> dict[str, Any]:
        """Return how many entries of which kinds there are, and their sizes in bytes."""

    def describe(self) -> dict[str, Any]:
        """Return header flags, end of the data, and tag, offset and length of every section."""

    def table(self) -> Table:
        """Return the entries as rows: `payload`, ragged bytes, and `kind`."""

def pack_steps(
    packs: list[Pack],
    parts: npt.NDArray[np.int64] | None = None,
    rows: npt.NDArray[np.int64] | None = None,
) -> Table:
    """Return steps of runs as rows: of all entries, or of entry `rows[k]` of pack `parts[k]`."""

def pack_stats(
    packs: list[Pack],
    parts: npt.NDArray[np.int64] | None = None,
    rows: npt.NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Return statistics of all entries, or of entry `rows[k]` of pack `parts[k]`."""

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
    workers: int,
    progress: Callable[[int], object] | None,
) -> int:
    """Write entry `rows[k]` of pack `parts[k]` as lines of JSON by calling `write(bytes)`.

    Calls `progress(done)` with the number of entries done. Returns how many were skipped.
    """

def validate_pack(
    path: str,
    level: str,
    max_payload_bytes: int,
    workers: int,
    progress: Callable[[int, int], object] | None,
    size: int = 0,
    read_ranges: Callable[[list[tuple[int, int]]], list[bytes]] | None = None,
) -> tuple[int, bool, list[tuple[int | None, int | None, str, str]]]:
    """Validate the pack at `path`, or with `size` and `read_ranges` the pack with that name.

    Return how many entries were read, whether some bytes of entries have no checksum, and for each
    problem the entry, the offset, the kind of error and the message.
    """

@final
class PackWriter:
    """Writes one packfile; `relive.PackWriter` wraps it. Thread-safe."""
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
        workers: int,
    ) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def is_open(self) -> bool:
        """Whether entries can be appended."""
    def append(self, payload: bytes, kind: str, name: str | None, codec: str | None) -> int:
        """Append a payload and return its position. The kind "auto" detects the run version."""
    def extend(
        self,
        payloads: list[bytes],
        kind: str,
        names: list[str | None] | None,
        codec: str | None,
    ) -> tuple[int, int]:
        """Append all payloads or none. Return the positions of the first and after the last."""
    def copy(
        self,
        packs: list[Pack],
        parts: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        keep_names: bool,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        """Append entry `rows[k]` of pack `parts[k]` as it is stored; calls `progress(done)`."""
    def flush(self) -> None:
        """Make every entry so far survive the end of this process."""
    def sync(self) -> None:
        """Make every entry so far survive a power cut."""
    def finish(self) -> tuple[int, int, int]:
        """Finish the pack. Return its entries, its bytes, and how many of them are padding."""
    def abort(self) -> None:
        """Remove everything that was written."""
    def leave(self) -> None:
        """Stop writing and leave the pack unfinished."""

def common_dictionary(packs: list[Pack]) -> bytes | None:
    """Return the dictionary that entries of these packs need, if any does."""

def check_kind_name(name: str) -> None:
    """Raise an error if no user-defined kind can have this name."""

def unfinished_packs(path: str) -> list[Path]:
    """Return the unfinished packs whose target is `path`."""

def unfinished_target(path: str) -> Path | None:
    """Return the target of the unfinished pack at `path`; None if it is not named like one."""

def recover_pack(
    unfinished: str, output: str, overwrite: bool
) -> tuple[int, int, int, str | None, Path | None]:
    """Recover the complete entries.

    Return their number, the number of lost ones, the size of the file, why something was lost, and
    the path of the bytes that were not used.
    """

@final
class Prefetch:
    """Gathers batches of one or more tables ahead of time; `relive.DataLoader` wraps it."""

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
        priorities: Priorities | None = None,
        window: tuple[int, int] | None = None,
        keys: npt.NDArray[np.int64] | None = None,
        index: str | None = None,
    ) -> Self:
        """`names` has, for each column of each table, its place in a batch: the name of a nested
        dict, or None, and the name in it. `allocate(nbytes)` returns a writable uint8 array
        for one batch. The sampler is copied.

        With `priorities`, these choose the rows as long as they have those of `window`, by default
        as many as the sampler; then the stream ends. The sampler counts positions. Batches have a
        `weight`, and the rows under the name `index`.
        """

    def next(self) -> dict[str, Any] | None:
        """Return the next batch; None at the end."""

    @property
    def cursor(self) -> tuple[int, int, int]:
        """Position, samples dropped and samples repeated after the last batch returned."""

    @property
    def first(self) -> int:
        """Global position of the first sample of the last batch returned."""

    def close(self) -> None:
        """Stop the threads and wait for them; returned batches stay valid."""

@final
class Priorities:
    """The priorities of rows; `relive.PrioritizedSampler` wraps it. Thread-safe."""

    def __new__(cls, length: int, *, alpha: float, beta: float) -> Self: ...
    @property
    def window(self) -> tuple[int, int]:
        """The first row, and the row after the last."""

    @property
    def alpha(self) -> float:
        """The exponent of priorities."""

    @alpha.setter
    def alpha(self, value: float) -> None: ...
    @property
    def beta(self) -> float:
        """The exponent of importance weights."""

    @beta.setter
    def beta(self, value: float) -> None: ...
    @property
    def ignored(self) -> int:
        """How many changes were ignored because their row had left the window."""

    def extend(self, length: int) -> None:
        """Add rows up to `length`, with the largest priority so far."""

    def insert(self, rows: npt.NDArray[np.int64]) -> int:
        """Add those of some rows, in increasing order, that are not there; return how many.

        They get the largest priority so far.
        """

    def evict(self, below: int) -> None:
        """Remove the rows before `below`."""

    def remove(self, rows: npt.NDArray[np.int64]) -> None:
        """Remove rows, wherever they are. Others that are not there are skipped."""

    def update(self, rows: npt.NDArray[np.int64], priorities: npt.NDArray[np.float64]) -> None:
        """Set the priorities of rows. Rows that have left the window are ignored and counted."""

    def draw(
        self, seed: int, position: int, samples: int, window: tuple[int, int] | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]] | None:
        """Return the rows and importance weights of the batch at a position of the stream of
        `seed`; None if the rows to draw from are not those of `window`.
        """

    def save(self) -> tuple[int, int, float, float, float, int, npt.NDArray[np.float64]]:
        """Return all that later draws depend on: first row, number of leaves, alpha, beta, largest
        priority so far, ignored changes, and the priority of each row.
        """

    def restore(
        self,
        first: int,
        capacity: int,
        alpha: float,
        beta: float,
        largest: float,
        ignored: int,
        priorities: npt.NDArray[np.float64],
    ) -> None:
        """Continue from what `save` returned."""

@final
class StepArrays:
    """Copies of the arrays of one step."""

    def __new__(cls, stream: int, arrays: Sequence[tuple[int, npt.NDArray[Any]]]) -> Self:
        """Copy the C-contiguous arrays of a step of a stream, by the number of their column.

        Arrays that `constant_copy` made, and parts of them, are shared instead.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""

@final
class PlainColumns:
    """The columns of fields that are not nested, by field: copies their values."""

    def __new__(cls, presents: dict[tuple[str, ...], tuple[str, ...]]) -> Self:
        """Create it without columns; `presents` is where tuples of names are kept."""

    def add(self, field: str, number: int, dtype: np.dtype[Any], shape: list[int]) -> None:
        """Add the column of a field."""

    def copy(
        self, stream: int, values: dict[str, Any]
    ) -> tuple[StepArrays, tuple[str, ...]] | None:
        """Return copies of the values of a step of a stream, and the names of those not None.

        Returns None unless every value is stored as it is.
        """

def json_crc(name: str, values: Iterable[Any]) -> int:
    """Return the CRC-32C of a name and values as JSON; a value of another type is its `repr`."""

def plain_json(values: dict[Any, Any]) -> str | None:
    """Return a dict as `json.dumps` does, or None unless all of it is plain.

    Plain are strings of ASCII that need no escapes, numbers, booleans and None.
    """

@final
class Step:
    """A step that was accepted."""

    def __new__(
        cls,
        row: int,
        episode: Any,
        step_index: int,
        arrays: StepArrays,
        present: tuple[str, ...],
        action: float | str | None,
        has_action_ref: bool,
        reward: float | None,
        terminated: bool,
        truncated: bool,
        info: str | None,
        ts_ns: int,
        end: Any,
        dropped: int,
        total_reward: float,
        nbytes: int,
    ) -> Self:
        """Make it of its values."""

    @property
    def row(self) -> int:
        """Its number in the run."""

    @property
    def episode(self) -> Any:
        """The row of its episode in the database."""

    @property
    def step_index(self) -> int:
        """Its number in the episode."""

    @property
    def arrays(self) -> StepArrays:
        """Its arrays."""

    @property
    def present(self) -> tuple[str, ...]:
        """The names of the fields that it has."""

    @property
    def action(self) -> float | str | None:
        """The action as the database has it."""

    @property
    def has_action_ref(self) -> bool:
        """Whether the database has a reference to the action."""

    @property
    def reward(self) -> float | None:
        """The reward."""

    @property
    def terminated(self) -> bool:
        """Whether the environment reached an end."""

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut off."""

    @property
    def info(self) -> str | None:
        """The info as JSON."""

    @property
    def ts_ns(self) -> int:
        """The time in nanoseconds since 1970."""

    @property
    def end(self) -> Any:
        """The end of the episode, if it ends with this step."""

    @property
    def dropped(self) -> int:
        """How many steps of the episode were dropped so far."""

    @property
    def total_reward(self) -> float:
        """The return of the episode so far, with this step."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""

@final
class StepRows:
    """The rows of `steps` that are committed together, and their checksum.

    Passing a value to SQLite needs the GIL, and an environment waits for that. So most values of a
    row are passed as one JSON text. Those that users choose are passed as they are: SQLite does not
    read every float and every character of JSON exactly.
    """

    def __new__(cls, run_id: str) -> Self:
        """All steps are of the run `run_id`."""

    def __len__(self) -> int: ...
    @property
    def values(self) -> list[Any]:
        """Six values of each row: the id of its episode, its agent, its action, reward and info,
        and all others as JSON.
        """

    @property
    def checksum(self) -> tuple[int, int, int]:
        """The first row, the number of rows and the CRC-32C of the rows."""

    def add(self, items: Sequence[Any]) -> AddedSteps:
        """Add the steps among items, which are steps and ends of episodes."""

@final
class AddedSteps:
    """What was added to rows of steps."""

    @property
    def steps(self) -> int:
        """How many steps."""

    @property
    def first_row(self) -> int:
        """The row of the first of them."""

    @property
    def scalars(self) -> dict[str, npt.NDArray[Any]]:
        """Their numbers as arrays, by the name of the column."""

    @property
    def present(self) -> tuple[str, ...] | None:
        """The names of the fields that every one of them has; None if they differ."""

    @property
    def groups(self) -> list[int]:
        """Where the groups of consecutive items of the same episode end."""

def timestamp(ts_ns: int) -> str:
    """Return a time in nanoseconds since 1970 as ISO-8601 in UTC, with microseconds."""

def constant_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of an array.

    Nothing can change a copy of numbers that are C-contiguous, and steps share it, without another
    copy.
    """

@final
class RunArraysWriter:
    """Appends the arrays of a run to its file. One thread at a time calls it."""

    def __new__(
        cls, path: str | PathLike[str], *, end: int | None = None, threads: int = 1
    ) -> Self:
        """Create the file of a run, or continue it after `end`."""

    def add_column(self, spec: Mapping[str, Any], *, planes: int = 0) -> list[str]:
        """Add a column and return the paths of its fields.

        `planes` is how many planes its stacks have already.
        """

    def restore(
        self,
        field: int,
        chunks: Sequence[tuple[int, int, int, int, int]],
        rows: int,
        open: bytes,  # noqa: A002 - it is open
    ) -> None:
        """Continue a field after its committed rows.

        `open` has those of its last chunk, if it is not full.
        """

    def append(
        self,
        rows: Sequence[tuple[int, StepArrays]],
        columns: Sequence[tuple[int, int, npt.NDArray[Any]]] = ...,
    ) -> None:
        """Append the arrays of steps and ends of episodes, each with its row.

        `columns` are consecutive rows of further columns: the number, the first row and a
        C-contiguous array.
        """

    def append_items(
        self,
        items: Sequence[Any],
        first_end: int,
        columns: Sequence[tuple[int, int, npt.NDArray[Any]]],
    ) -> None:
        """Append the arrays of items, which are steps and ends of episodes.

        `first_end` is the row of the first end that has arrays. `columns` are as `append` takes
        them.
        """

    def append_rows(self, column: int, first_row: int, rows: npt.NDArray[Any]) -> None:
        """Append consecutive rows of a column: a C-contiguous array."""

    def commit(
        self,
    ) -> tuple[list[tuple[int, int, int, int, int, int]], list[tuple[int, int, int, bytes, int]]]:
        """Write every full chunk; return the chunks and rows to commit with the steps so far."""

    def finish(
        self,
        steps: int,
        ends: int,
        attributes: dict[str, str | int],
        datasets: Sequence[tuple[str, str, list[int], bytes]],
        *,
        chunk_table: bool = True,
    ) -> tuple[list[tuple[int, int, int, int, int, int]], list[tuple[int, int, int, bytes, int]]]:
        """Write the chunks that are not full, and the metadata of HDF5; return what to commit.

        Without `chunk_table`, the file cannot be read as a run.
        """

    def write_snapshot(
        self,
        attributes: dict[str, str | int],
        datasets: Sequence[tuple[str, str, list[int], bytes]],
    ) -> None:
        """Write metadata of HDF5 for the full chunks so far, for other programs."""

    def sync(self) -> None:
        """Make everything that was written survive a power cut."""

    @property
    def metadata(self) -> tuple[int, int, int] | None:
        """Offset, bytes and CRC-32C of the metadata that was written last."""

    @property
    def end(self) -> int:
        """Where the next bytes go."""

@final
class RunArraysReader:
    """Reads rows of the arrays of a run, as they were committed when it was made. Thread-safe."""

    def __new__(
        cls,
        path: str | PathLike[str],
        columns: Sequence[tuple[Mapping[str, Any], Sequence[tuple[Sequence[Any], Sequence[Any]]]]],
    ) -> Self:
        """Open the file of a run.

        Each column has its description, and the chunks and further rows of its fields.
        """

    def open_rows(self, field: int) -> tuple[int, bytes]:
        """Return how many rows a field has, and the bytes of a last chunk that is not full."""

    def read(
        self,
        column: int,
        rows: npt.NDArray[np.uint64],
        out: npt.NDArray[Any],
        *,
        threads: int = 1,
    ) -> None:
        """Fill a C-contiguous array with rows of a column, in any order; missing rows are zeros."""

    def read_numbers(self, column: int, rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the numbers of the planes of each stack, from 1 on; a missing row has zeros."""

    def extended(self, added: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> RunArraysReader:
        """Return a reader of the same columns with what was committed since.

        `added` has, for each field, the chunks and further rows that are new.
        """

    @property
    def decoded(self) -> int:
        """How many chunks were decoded so far."""

@final
class RunPlanes:
    """Planes of the columns of a run, some of them kept in memory. Thread-safe."""

    def __new__(
        cls,
        reader: RunArraysReader,
        *,
        cache_bytes: int,
        mapped: bool,
        before: RunPlanes | None = None,
    ) -> Self:
        """Keep at most `cache_bytes` of what was decoded.

        `mapped` reads from a map of the file, which must not be truncated meanwhile. What `before`
        has, which was made of a reader that this one was extended from, is kept.
        """

    def drop_before(self, column: int, row: int) -> None:
        """Drop what was decoded of a column before a row, or a plane if it has stacks."""

    @property
    def kept_bytes(self) -> int:
        """How many bytes were decoded and are kept."""

    @property
    def decoded_bytes(self) -> int:
        """How many bytes were decoded so far, those that were not kept included."""

@final
class RunTransitions:
    """Transitions of a run, or windows of them. Thread-safe."""

    def __new__(
        cls,
        store: RunPlanes,
        columns: Sequence[
            tuple[str, np.dtype[Any], Sequence[int], npt.NDArray[Any] | None, int | None]
        ],
        planes: Sequence[
            tuple[
                Sequence[tuple[int, int]],
                npt.NDArray[np.uint32] | None,
                int,
                str,
                MemoryPlanes | None,
            ]
        ],
        length: int,
        *,
        windows: tuple[int, npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.uint32]]
        | None,
    ) -> Self:
        """Make a row for each of `length` transitions, or for each window of them.

        The arrays must stay as they are. Each column has its name, dtype and shape, then an array
        with a row for each transition; or the number of an entry of `planes` for each, and which of
        `planes` that is; or neither, for the mask of windows. Each of `planes` has the columns of
        the run that the planes are rows of, and how many rows of each are numbered, from 1 on; the
        numbers of the planes of each entry, or None if each plane is one; how many planes an entry
        has, and their axis; and further planes in memory. `windows` are their number of
        transitions, and for each window the first, how many it has, and how many are not to learn
        from.
        """

    def table(self, store: RunPlanes) -> Table:
        """Return them as a table; `store` may have more than the one they were made with."""

@final
class MemoryPlanes:
    """Planes of steps that were not written yet."""

@final
class RecentArrays:
    """Arrays of steps and ends of episodes that were accepted, and may not be written yet."""

    def __new__(cls) -> Self:
        """Start without any."""

    def separate(self, column: int, depth: int, item_bytes: int) -> None:
        """Store the planes of a column one after the other, which are side by side in arrays."""

    def add(self, row: int, arrays: StepArrays) -> None:
        """Add the arrays of a step, or of an end, with its row; rows increase."""

    def drop_before(self, column: int, row: int) -> None:
        """Forget the rows of a column before one."""

    def have(self, column: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of some rows of a column are there."""

    def read(self, column: int, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Fill a C-contiguous array with rows of a column; those that are missing are zeros."""

    def planes(
        self, columns: Sequence[tuple[int, npt.NDArray[np.int64]]], depth: int
    ) -> MemoryPlanes:
        """Return the planes of rows of some columns, `depth` of each."""

@final
class RingReader:
    """Reads the newest frame from shared memory; `relive.LiveLane` wraps it. Thread-safe."""

    def __new__(cls, path: str | PathLike[str]) -> Self:
        """Map the segment in a file."""

    @property
    def description(self) -> bytes:
        """What the writer said about its frames."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame."""

    @property
    def slots(self) -> int:
        """Number of slots."""

    @property
    def published(self) -> int:
        """Number of frames published."""

    @property
    def has_ended(self) -> bool:
        """Whether the writer has closed the segment or replaced it."""

    def latest(
        self, dtype: np.dtype[Any], shape: Sequence[int]
    ) -> tuple[npt.NDArray[Any], dict[str, bool | int | float], int] | None:
        """Return the newest frame as a new array, its scalars and its number; None if there is
        none.
        """

@final
class RingWriter:
    """Publishes frames in shared memory. One thread at a time calls it."""

    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        slots: int,
        frame_bytes: int,
        scalar_bytes: int,
        description: bytes,
    ) -> Self:
        """Make a segment in an existing, empty file."""

    def publish(self, frame: npt.NDArray[Any], scalars: dict[str, Any]) -> int:
        """Publish a C-contiguous array with its scalars; return the number of the frame."""

    @property
    def published(self) -> int:
        """Number of frames published."""

    def end(self) -> None:
        """Tell readers that no more frames come."""

@final
class Sampler:
    """Draws batches of row numbers; `relive.Sampler` wraps it."""

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
        blocks: npt.NDArray[np.int64] | None = None,
        partitions: int = 1,
        rows_per_step: int | None = None,
    ) -> Self:
        """In mode "block", `blocks` has the first row of each block and the number of rows; None
        for blocks of `stride` rows. `rows_per_step` is batch size × world size when the stream
        began, if they have changed since.
        """

    def draw(self) -> tuple[npt.NDArray[np.int64], int, int] | None:
        """Return the rows of the next batch, how many of its samples are padding, and the global
        position of its first sample; None at the end.
        """

    def seek(self, steps: int) -> None:
        """Move to the position after `steps` steps from the start."""

    @property
    def cursor(self) -> tuple[int, int, int]:
        """Position, samples dropped and samples repeated so far."""

    @cursor.setter
    def cursor(self, value: tuple[int, int, int]) -> None: ...
    def blocks_ahead(
        self, steps: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the blocks that this rank needs in the next `steps` steps, in the order of first
        use, and two positions for each: the start of the first step that may need it, and the one
        from which on steps do not need it until it is listed again.
        """

    def skip(self) -> bool:
        """Advance by one step without computing its rows; False at the end."""

    def windows(self) -> list[tuple[int, int, int, int]]:
        """Return the windows of the samples of the next step, in their order, as epoch, partition,
        number of the window in the partition and number of samples; none at the end.
        """

    def window_blocks(self, epoch: int, partition: int, window: int) -> npt.NDArray[np.int64]:
        """Return the blocks that have rows of a window, in their shuffled order."""

    @property
    def rows_per_step(self) -> int:
        """Rows of a step of all ranks when the stream began."""

    @property
    def window(self) -> int:
        """Rows that are shuffled together in mode "block", in each partition."""

    @property
    def samples_per_epoch(self) -> int:
        """Samples that all ranks together draw in an epoch."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch."""

    @property
    def total_steps(self) -> int | None:
        """Steps from start to end; None if there is no end."""

    def copy(self) -> Sampler:
        """Return an independent sampler at the same position."""

@final
class Table:
    """Columns of equal length in memory, or a view of such tables."""

    def __new__(
        cls, columns: list[tuple[str, npt.NDArray[Any], npt.NDArray[np.int64] | None]]
    ) -> Self:
        """Columns as `(name, values, offsets or None)`."""

    def __len__(self) -> int: ...
    def select(self, rows: npt.NDArray[np.int64]) -> Table:
        """Return a view of the given rows, in that order."""

    def select_range(self, start: int, step: int, length: int) -> Table:
        """Return a view of the rows `start`, `start + step`, …, `length` of them."""

    @staticmethod
    def concat(tables: list[Table]) -> Table:
        """Return all rows of all tables, one table after the other."""

    @staticmethod
    def mix(tables: list[Table], slots: list[int], length: int) -> Table:
        """Return `length` rows that alternate between the tables: slot `k` of a round takes the
        next row of table `slots[k]`.
        """

    def gather(
        self,
        indices: npt.NDArray[np.int64],
        columns: list[int] | None = None,
        out: dict[str, npt.NDArray[Any]] | None = None,
        workers: int = 1,
    ) -> dict[str, Any]:
        """Return the rows at `indices`: an array for each fixed column, `(values, offsets)` for
        each ragged one. `columns` selects columns by position, `out` has arrays to write to.
        """

def crc32c(data: _Bytes) -> int:
    """Return the CRC-32C (Castagnoli) of bytes, or of another contiguous buffer."""

def default_threads() -> int:
    """Return how many threads a gather uses by default, at most."""

def error_kinds() -> list[str]:
    """Return every kind of error that the core can raise."""

def wait_through_signals(
    start: Callable[[], object],
    run: Callable[[], object],
    end: Lock,
    on_interrupt: Callable[[BaseException], object] | None,
) -> BaseException | None:
    """Call `start`, or `run` if there are no more threads, and wait until `end` is released.

    Returns the first exception that a signal handler raised meanwhile, after a call of
    `on_interrupt` with it.
    """

def parse_run(data: _Bytes | npt.NDArray[Any], version: int | None) -> _RunFields:
    """Parse the run in `data`, of the given version, or of the one in its header."""

def run_to_bytes(fields: _RunFields, version: int) -> bytes:
    """Return the bytes of the run with these fields."""

@final
class Mapped:
    """Memory of a record store. Arrays over it keep it alive."""

@final
class Records:
    """A record store, open for reading. Thread-safe."""

    @staticmethod
    def open(
        path: str, verify: str, io: str, max_value_bytes: int, at: int | None = None
    ) -> Records:
        """Open the store at `path`; with `at`, its state after that call, if it still exists."""
    def snapshot(self) -> RecordSnapshot:
        """Return the state of the store when it was opened or last refreshed."""
    def refresh(self) -> bool:
        """Read what was committed since; return whether there was anything."""

@final
class RecordSnapshot:
    """A record store at one moment. Never changes; thread-safe."""

    def __len__(self) -> int: ...
    @property
    def generation(self) -> int:
        """The number of checkpoints so far."""
    @property
    def sequence(self) -> int:
        """The number of the last call that it includes."""
    def specs(self) -> list[_Spec]:
        """Return the fields, in order: name, dtype as JSON, shape, kind, varying dimensions, codec,
        level, bytes of an item.
        """
    def utilization(self) -> tuple[float, float]:
        """Return the fraction of stored values that are in use, and the fraction of bytes."""
    def table(self, columns: list[tuple[str, np.dtype[Any], tuple[int, ...], bool]]) -> Table:
        """Return the records as rows; `columns` has each field's name, dtype, shape, raggedness."""
    def missing(self, column: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return whether a field has no value, for each of the rows."""
    def dims(self, column: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the varying dimensions of each of the rows, in a field with several of them."""
    def view(
        self, column: int, row: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | None:
        """Return a value without a copy, read-only; None if it is not stored as plain bytes in
        mapped memory. `shape` is that of an item.
        """
    def span(
        self, column: int, start: int, stop: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | None:
        """Return the rows from `start` to `stop` of a field without a copy, read-only; None if they
        are not stored one after the other in mapped memory.
        """

@final
class RecordWriter:
    """Writes a record store; `relive.RecordStore` wraps it. Thread-safe."""

    @staticmethod
    def create(
        path: str,
        fields: list[_Spec],
        *,
        chunk_records: int | None,
        chunk_bytes: int | None,
        workers: int,
        verify: str,
        io: str,
        max_value_bytes: int,
    ) -> RecordWriter:
        """Create a store."""
    @staticmethod
    def open(
        path: str, *, workers: int, verify: str, io: str, max_value_bytes: int
    ) -> RecordWriter:
        """Open a store for writing."""
    def plan(
        self, fields: list[_Taken], refuse: Callable[[dict[str, Any]], object], described: object
    ) -> None:
        """Set how values are converted.

        `fields` has, for every field, its name, kind, dtype, shape, number of varying dimensions,
        and a function that converts values to its dtype. `refuse` is called with a record that
        has an unknown field, and raises. `snapshot` returns `described` for these fields.
        """
    def __len__(self) -> int: ...
    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
    def snapshot(self) -> tuple[RecordSnapshot, Any]:
        """Return the current state of the store, including what is not flushed yet; and the
        `described` of `plan`.
        """
    def append(self, record: dict[str, Any]) -> int:
        """Append a record and return its row."""
    def extend(self, rows: int, columns: list[_Column], described: object) -> tuple[int, int]:
        """Append `rows` records as one call, with a column for each field: None, an array of all
        values, `(values, offsets, dims or None)` of a ragged one, or a list of values. Raises if
        the fields changed since `plan` was called with `described`.
        """
    def modify(self, row: int, record: dict[str, Any], *, some: bool) -> None:
        """Replace a record. Fields not in it lose their value, or with `some` keep it."""
    def modify_many(
        self, column: int, rows: npt.NDArray[np.int64], values: _Column, described: object
    ) -> None:
        """Replace the values of one field of several records, as one call. Raises if the fields
        changed since `plan` was called with `described`.
        """
    def delete(self, rows: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """Delete records, as one call, and return which rows moved: from and to."""
    def flush(self) -> None:
        """Make everything so far survive the end of this process."""
    def sync(self) -> None:
        """Make everything so far survive a power cut."""
    def checkpoint(self) -> None:
        """Write a checkpoint: fold the journal into tables."""
    def close(self) -> None:
        """Sync, write a checkpoint and release the store."""
    def abort(self) -> None:
        """Discard everything since the last flush, and release the store."""
    def rebalance(
        self, recompress: bool, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Copy the records to new chunks, in order; with `recompress`, encode values again. Calls
        `progress(done, total)` with numbers of records.
        """
    def add_field(
        self,
        spec: _Spec,
        given: _Column,
        fields: list[_Taken],
        refuse: Callable[[dict[str, Any]], object],
        described: object,
    ) -> None:
        """Add a field after the others; `given` is a column of values for the existing records, or
        None. The rest is as for `plan`, including that field.
        """
    def drop_field(
        self,
        name: str,
        fields: list[_Taken],
        refuse: Callable[[dict[str, Any]], object],
        described: object,
    ) -> None:
        """Remove a field. The rest is as for `plan`, without that field."""
    def set_dictionary(self, column: int, dictionary: bytes) -> None:
        """Compress later values of a field with a zstd dictionary."""

def validate_records(
    path: str, level: str, workers: int, progress: Callable[[int, int], object] | None
) -> tuple[int, list[tuple[str | None, int | None, str, str]]]:
    """Validate the store at `path`. Return how many records were read, and for each problem the
    field, the row, the kind of error and the message.
    """

@final
class TapeWriter:
    """Writes the records of a signal to a tape. Thread-safe.

    Records are written within about 50 ms and synced within about a second, if the disk keeps
    up. After a write failed, every further call raises that error; what was written stays.
    """

    def __new__(
        cls, path: str, name: str, head: bytes, row_bytes: int | None, clocks: int = 0
    ) -> Self:
        """Create a tape at a path that does not exist; its head is flushed. `row_bytes` is the
        length of every payload, or None if lengths differ.
        """
    def append(
        self,
        ts_ns: SupportsIndex,
        payload: _Bytes | npt.NDArray[Any],
        clocks: Sequence[SupportsIndex] | None = None,
    ) -> None:
        """Append a copy of a record, which must be later than all before. Waits only while 64 MiB
        are pending.
        """
    def note(self, data: bytes) -> None:
        """Append a note after all records so far."""
    def flush(self) -> None:
        """Make everything so far survive the end of this process."""
    def sync(self) -> None:
        """Make everything so far survive a power cut."""
    def close(self) -> None:
        """Sync and close the tape; does nothing if it is closed."""
    def abort(self) -> None:
        """Remove the tape; does nothing if it is closed or aborted."""
    @property
    def rows(self) -> int:
        """Number of records appended."""
    @property
    def last_ts(self) -> int | None:
        """The timestamp of the last record."""
    @property
    def pending_bytes(self) -> int:
        """Bytes that are not written yet."""
    @property
    def bytes(self) -> int:
        """Bytes of all records and notes so far."""

@final
class TapeReader:
    """Reads the complete records of a tape, as of when it was opened. Thread-safe."""

    def __new__(cls, path: str) -> Self:
        """Open a tape. A tape that ends before its head is complete has no head and no records."""
    @property
    def head(self) -> bytes | None:
        """The head that the tape was created with."""
    @property
    def row_bytes(self) -> int | None:
        """Bytes of every payload; None if lengths differ."""
    @property
    def clocks(self) -> int:
        """Number of clocks beside the timestamp."""
    @property
    def rows(self) -> int:
        """Number of complete records; the first call reads all of them."""
    def notes(self) -> list[bytes]:
        """Return all notes, in order."""
    def next(
        self, max_rows: int, max_bytes: int
    ) -> (
        tuple[
            npt.NDArray[np.int64],
            npt.NDArray[np.int64],
            npt.NDArray[np.uint8],
            npt.NDArray[np.int64],
        ]
        | None
    ):
        """Return the next records, at most so many with at most so many bytes, but at least one:
        timestamps, clocks, concatenated payloads, and the offsets of the payloads; None at the
        end.
        """
    def rewind(self) -> None:
        """Go back to the first record."""

def find_time(timestamps: npt.NDArray[np.int64], ts: SupportsIndex, low: int, high: int) -> int:
    """Return the position of the first of the records `low` to `high` that is later than `ts`;
    `high` if there is none. `timestamps` are increasing, `ts` is any integer.
    """

def tape_damage(path: str | PathLike[str]) -> int | None:
    """Return the offset at which a tape is damaged; None if it is whole or only ends early.

    A killed process leaves the first bytes of a record, a power cut leaves zeros. Any other bytes
    after the last valid record are damage, and so is a gap between valid records.
    """
