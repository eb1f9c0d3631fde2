"""The sources that must fulfil the `Source` contract, and their expected rows.

A factory returns a source of n rows in which row i has the values `columns([i])`. To test another
source, add one line to `SOURCES`.
"""

import atexit
import functools
import itertools
import pickle
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from relive import ArraySource, PackReader, PackWriter, RecordStore, Run
from relive.episodes.read.simple_signal import SimpleSignal
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.write.video_writer import VideoSignalWriter
from relive.load import Concat, Map, Mix
from relive.model import Batch, Field, Ragged, Row, Source, Subset
from relive.model.signal import ArraySignal, Signal
from relive.model.source import Indices, as_indices, check_out, pick_fields
from relive.publish.read.dataset import dataset
from relive.publish.write.builder import DatasetBuilder
from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter

Make: TypeAlias = Callable[[int], Source]
"""Makes a source of n rows."""

FIELDS = {
    "id": Field(np.int64),
    "vec": Field(np.float32, (3,)),
    "tokens": Field(np.int32, ragged=True),
}


def tokens(row: int) -> npt.NDArray[np.int32]:
    """Return the tokens of a row; their number is the row number modulo four."""
    return np.arange(row, row + row % 4, dtype=np.int32)


def columns(rows: npt.ArrayLike) -> dict[str, npt.NDArray[Any] | Ragged]:
    """Return the expected fields of these rows."""
    ids = np.asarray(rows, dtype=np.int64)
    listed = [tokens(int(row)) for row in ids.ravel()]
    return {
        "id": ids.copy(),
        "vec": (ids[..., None] + np.array([0.0, 0.25, 0.5])).astype(np.float32),
        "tokens": Ragged.from_list(listed, dtype=np.int32),
    }


class ListSource(Source):
    """The simplest source: columns in memory, one Python loop per gather."""

    def __init__(self, rows: npt.ArrayLike) -> None:
        self._columns = columns(rows)
        self._length = len(np.asarray(rows))

    @property
    def fields(self) -> Mapping[str, Field]:
        return FIELDS

    def __len__(self) -> int:
        return self._length

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        picked = pick_fields(self.fields, fields)
        rows = as_indices(indices, len(self))
        given = check_out(out, picked, rows.shape)
        batch: Batch = {}
        for name, field in picked.items():
            column = self._columns[name]
            if isinstance(column, Ragged):
                batch[name] = column.take(rows)
                continue
            array = given.get(name)
            if array is None:
                array = np.empty(rows.shape + field.shape, dtype=field.dtype)
            for position in np.ndindex(rows.shape):
                array[position] = column[rows[position]]
            batch[name] = array
        return batch


def list_source(n: int) -> Source:
    return ListSource(np.arange(n))


def range_subset(n: int) -> Source:
    """Select rows n - 1, n - 2, … of a longer source that stores them reversed and spread out."""
    numbers = np.full(2 * n + 3, -1)
    numbers[1 : 2 * n + 1 : 2] = np.arange(n)[::-1]
    return Subset(ListSource(numbers), range(2 * n - 1, 0, -2))


def array_subset(n: int) -> Source:
    order = np.random.default_rng(n).permutation(n)
    return Subset(ListSource(order), np.argsort(order))


@functools.cache
def folder() -> Path:
    """Return a directory that is removed when the process exits."""
    path = Path(tempfile.mkdtemp(prefix="relive-contract-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def arrays(n: int) -> ArraySource:
    return ArraySource(columns(np.arange(n)))


def npy_files(n: int) -> ArraySource:
    named = columns(np.arange(n))
    fields: dict[str, Any] = {"tokens": named.pop("tokens")}
    for name, values in named.items():
        fields[name] = folder() / f"{name}-{n}.npy"
        np.save(fields[name], np.asarray(values))
    return ArraySource({name: fields[name] for name in ("id", "vec", "tokens")})


def fortran_arrays(n: int) -> ArraySource:
    named = columns(np.arange(n))
    return ArraySource(named | {"vec": np.asfortranarray(named["vec"])})


def strided_arrays(n: int) -> ArraySource:
    """Return fields that are reversed, part of a wider array, or offset in memory."""
    rows = columns(np.arange(n))
    wide = np.full((2 * n, 7), np.nan, dtype=np.float32)
    wide[::2, 1:7:2] = array(rows, "vec")
    more = columns(np.concatenate([[7, 3], np.arange(n)]).astype(np.int64))["tokens"]
    backwards = np.arange(n)[::-1].copy()
    return ArraySource({"id": backwards[::-1], "vec": wide[::2, 1:7:2], "tokens": more[2:]})


def memmap_slices(n: int) -> ArraySource:
    """Return the last rows of mapped files, one in another byte order."""
    rows = columns(np.arange(n))
    path = folder() / f"memmap-{n}"
    ids = np.memmap(path, np.int64, "w+", offset=24, shape=(n + 3, 2))
    ids[3:, 1] = np.arange(n)
    ids.flush()
    vec = np.memmap(f"{path}-vec", np.float32, "w+", shape=(3, n + 1))
    vec[:, 1:] = array(rows, "vec").T
    vec.flush()
    return ArraySource({"id": ids[3:, 1], "vec": vec.T[1:], "tokens": rows["tokens"]})


def concat(n: int, make: Callable[[npt.ArrayLike], Source]) -> Source:
    """Return three joined sources, one of them empty."""
    cut = n // 3
    return Concat(*map(make, (np.arange(cut), np.arange(0), np.arange(cut, n))))


def mix(n: int, make: Callable[[npt.ArrayLike], Source]) -> Source:
    """Return a two-to-one mix whose sources hold the rows in the order of the mix."""
    room = max(n, 1)
    shape = Mix(*[make(np.full(room, -1))] * 2, weights=(2, 1), length=n, seed=n)
    which, positions = shape._find(np.arange(n))
    parts = np.full((2, room), -1)
    parts[which, positions] = np.arange(n)
    return Mix(*map(make, parts), weights=(2, 1), length=n, seed=n)


def from_ids(batch: Batch) -> Batch:
    """Compute all fields from row numbers."""
    return columns(array(batch, "id"))


def same(row: Row) -> Row:
    """Return the batch unchanged."""
    return row


def array_source(rows: npt.ArrayLike) -> Source:
    return ArraySource(columns(rows), workers=2)


def nested(n: int) -> Source:
    """Return views of mixes of views, all native."""
    return Concat(mix(n + 4, array_source)[: n // 2], concat(2 * n, array_source)[n // 2 : n])


def pack_payloads(n: int) -> Source:
    """Return entries of a pack that contain their row number, every other one compressed."""
    path = folder() / f"payloads-{n}.a2pack"
    if not path.exists():
        with PackWriter(path, align=8) as writer:
            for row in range(n):
                writer.append(np.full(9, row).tobytes(), codec=("raw", "zstd")[row % 2])
    return Map(PackReader.open(path), from_payloads, fields=FIELDS)


def from_payloads(batch: Batch) -> Batch:
    """Compute all fields from the numbers in payloads."""
    payloads = batch["payload"]
    assert isinstance(payloads, Ragged)
    return columns(payloads.values.view(np.int64).reshape(-1, 9)[:, 4])


def pack_steps(n: int) -> Source:
    """Return the steps of runs in a pack with a step table."""
    path = folder() / f"steps-{n}.a2pack"
    if not path.exists():
        with PackWriter(path, align=8, steps=True) as writer:
            for first in range(0, n, 4):
                steps = min(4, n - first)
                boards = np.arange(first, first + steps + 1, dtype=np.uint64)
                writer.append(Run(boards, np.zeros(steps, np.uint8)), "v2")
    return Map(PackReader.open(path).steps(), from_boards, fields=FIELDS)


def from_boards(batch: Batch) -> Batch:
    """Compute all fields from the numbers stored as boards."""
    return columns(array(batch, "board").astype(np.int64))


def records(n: int) -> Source:
    """Return a record store without changes."""
    path = folder() / f"records-{n}"
    if not path.exists():
        with RecordStore.create(path, FIELDS, chunk_size=7) as store:
            store.extend(columns(np.arange(n)))
    return RecordStore.open(path)


def compressed_records(n: int) -> Source:
    """Return a record store with compressed values, opened without a memory map."""
    path = folder() / f"compressed-{n}"
    if not path.exists():
        codecs = zip(FIELDS.items(), ("zstd", "lz4", "deflate"), strict=True)
        fields = {
            name: Field(field.dtype, field.shape, codec, field.ragged)
            for (name, field), codec in codecs
        }
        with RecordStore.create(path, fields) as store:
            store.extend(ListSource(np.arange(n)))
    return RecordStore.open(path, io="pread", verify="always")


def changed_records(n: int, name: str = "changed") -> RecordStore:
    """Return a record store with deleted and replaced records."""
    path = folder() / f"{name}-{n}"
    if not path.exists():
        with RecordStore.create(path, FIELDS) as store:
            change_records(store, n)
    return RecordStore.open(path)


def change_records(store: RecordStore, n: int) -> None:
    """Write rows that are in order only after deletes and changes."""
    numbers = np.random.default_rng(n).permutation(n + n // 2 + 1).tolist()
    for number in numbers:
        store.append({key: values[0] for key, values in columns([number]).items()})
    deleted = [position for position, number in enumerate(numbers) if number >= n]
    for start, stop in store.delete(deleted):
        numbers[stop] = numbers[start]
    for position in range(n):
        if numbers[position] != position:
            store[position] = {key: values[0] for key, values in columns([position]).items()}


def rebalanced_records(n: int) -> Source:
    """Return a record store that was changed and rebalanced."""
    fresh = not (folder() / f"rebalanced-{n}").exists()
    reader = changed_records(n, "rebalanced")
    if fresh:
        with RecordStore.open(reader.path, mode="a") as store:
            store.rebalance()
        reader.refresh()
    return reader


def written_records(n: int) -> Source:
    """Return a record store that is being written and was not flushed."""
    store = RecordStore.create(folder() / f"written-{next(COUNTER)}", FIELDS)
    WRITTEN.append(store)
    close_written(keep=8)
    change_records(store, n)
    return store


def close_written(keep: int = 0) -> None:
    """Close the stores that `written_records` returned, all but the last ones."""
    while len(WRITTEN) > keep:
        WRITTEN.pop(0).close()


def published_table(n: int) -> Source:
    """Return a published table of three files with row groups of two rows."""
    path = folder() / f"published-{n}"
    if not path.exists():
        builder = DatasetBuilder("contract/table", root=path)
        rows = columns(np.arange(n))
        tokens = rows["tokens"]
        assert isinstance(tokens, Ragged)
        vec = pa.array(array(rows, "vec").ravel())
        table = pa.table(
            {
                "id": array(rows, "id"),
                "vec": pa.FixedSizeListArray.from_arrays(vec, 3),
                "tokens": pa.ListArray.from_arrays(tokens.offsets.astype("i4"), tokens.values),
            }
        )
        cuts = [0, n // 3, n // 2, n]
        parts = [folder() / f"published-{n}-{part}.parquet" for part in range(3)]
        for part, start, stop in zip(parts, cuts[:-1], cuts[1:], strict=True):
            pq.write_table(table.slice(start, stop - start), part, row_group_size=2)
        builder.add_table("main", parts)
        builder.publish()
    return dataset("contract/table", root=path).table()


def transitions(n: int) -> Source:
    """Return transitions of a run whose observations are row numbers."""
    path = folder() / f"transitions-{n}"
    if not path.exists():
        with ReplayRecorder(path, "run", config=ReplayConfig(chunk_rows=4), live=None) as recorder:
            for row in range(n):
                recorder.step(np.int64(row), terminated=row % 3 == 2 or row == n - 1)
            recorder.step(np.int64(n), truncated=True)  # what followed is not known
    return Map(ReplayRun(path, "run").transitions(), from_observations, fields=FIELDS)


def from_observations(batch: Batch) -> Batch:
    """Compute all fields from row numbers that were observed."""
    return columns(array(batch, "observation"))


def signal_file(n: int) -> Signal[Any]:
    path = folder() / f"signal-{n}.parquet"
    if not path.exists():
        with ColumnsWriter(path, SignalMeta("vec", "vector", "float32", (3,))) as writer:
            writer.write(np.arange(n), array(columns(np.arange(n)), "vec"))
    return SimpleSignal(path)


def signal_view(n: int) -> Signal[Any]:
    return signal_file(n + 4)[np.arange(n + 3)].time[: n + 2].time[range(n)]


def signal_video(n: int) -> Signal[Any]:
    path = folder() / f"video-{n}.mp4"
    if not path.exists():
        with VideoSignalWriter(path, profile="lossless") as writer:
            for row in range(n):
                writer.append(np.full((16, 16, 3), row, np.uint8), row)
    return VideoSignal(path, path.with_suffix(".frames.parquet"))


def from_records(batch: Batch) -> Batch:
    """Compute all fields from records whose times are row numbers."""
    return columns(array(batch, "ts_ns")) | {"vec": batch["value"]}


def from_frames(batch: Batch) -> Batch:
    """Compute all fields from frames whose pixels are row numbers."""
    return columns(array(batch, "value").max((-3, -2, -1), initial=0).astype(np.int64))


COUNTER = itertools.count()
WRITTEN: list[RecordStore] = []

SOURCES: dict[str, Make] = {
    "list": list_source,
    "range-subset": range_subset,
    "array-subset": array_subset,
    "array": arrays,
    "array-npy": npy_files,
    "array-fortran": fortran_arrays,
    "array-strided": strided_arrays,
    "array-memmap": memmap_slices,
    "array-view": lambda n: array_source(np.arange(n)[::-1])[::-1],
    "concat": lambda n: concat(n, array_source),
    "concat-python": lambda n: concat(n, ListSource),
    "mix": lambda n: mix(n, array_source),
    "mix-python": lambda n: mix(n, ListSource),
    "map": lambda n: Map(ArraySource({"id": np.arange(n)}), from_ids, fields=FIELDS),
    "map-rows": lambda n: Map(ListSource(np.arange(n)), same, fields=FIELDS, per_row=True),
    "nested": nested,
    "pack": pack_payloads,
    "pack-steps": pack_steps,
    "records": records,
    "records-compressed": compressed_records,
    "records-changed": changed_records,
    "records-rebalanced": rebalanced_records,
    "records-written": written_records,
    "published": published_table,
    "transitions": transitions,
    "signal": lambda n: Map(
        ArraySignal(array(columns(range(n)), "vec"), range(n)), from_records, fields=FIELDS
    ),
    "signal-file": lambda n: Map(signal_file(n), from_records, fields=FIELDS),
    "signal-view": lambda n: Map(signal_view(n), from_records, fields=FIELDS),
    "signal-video": lambda n: Map(signal_video(n), from_frames, fields=FIELDS),
}

BOUND = {"records-written"}
"""Sources that belong to the process that made them."""


def assert_rows(source: Source, batch: Batch, rows: npt.ArrayLike) -> None:
    """Compare a batch exactly with the expected rows."""
    expected = columns(rows)
    assert list(batch) == list(source.fields)
    for name, values in batch.items():
        wanted = expected[name]
        assert type(values) is type(wanted), name
        assert values.dtype == wanted.dtype, name
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(values, wanted, strict=True)
        else:
            assert values == wanted


def array(batch: Batch, name: str) -> npt.NDArray[Any]:
    """Return a field of a batch, which must be an array."""
    values = batch[name]
    assert isinstance(values, np.ndarray)
    return values


def ids(source: Source) -> list[int]:
    """Return the number of every row, in order."""
    listed: list[int] = array(source.gather(np.arange(len(source)), ["id"]), "id").tolist()
    return listed


def pickled(source: Source) -> Source:
    """Pickle and unpickle a source."""
    copy: Source = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own data
    return copy


def ids_in_another_process(source: Source, rows: list[int]) -> list[int]:
    """Read ids from a source that was inherited or unpickled."""
    batch = source.gather(rows)
    assert_rows(source, batch, rows)
    ids: list[int] = array(batch, "id").tolist()
    return ids
