"""Parquet files of signals that are damaged, already exist, or cannot be written."""

import json
import os
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive import errors
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_reader import ColumnsFile
from relive.store.signal.parquet_writer import ColumnsWriter

META = SignalMeta("arm", "vector", "float32", (3,), {"unit": "rad"}, ("sensor",))
VALUES = np.arange(30, dtype=np.float32).reshape(10, 3)
TIMES = np.arange(10) * 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.parquet"


def listed(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def write(path: Path, meta: SignalMeta = META, values: Any = VALUES) -> None:
    with ColumnsWriter(path, meta) as writer:
        writer.write(TIMES[:4], values[:4], {"sensor": TIMES[:4]})
        writer.write(TIMES[4:], values[4:], {"sensor": TIMES[4:]})


def read_all(path: Path) -> Any:
    """Read everything, or return None for the error of damaged files."""
    file = ColumnsFile(path)
    try:
        values = file.values(range(file.rows))
        clocks = [file.clock(name).tolist() for name in file.meta.clocks]
        return file.meta, values.tolist(), file.timestamps().tolist(), *clocks
    except errors.UnsupportedError:
        return None
    except errors.CorruptError as error:
        assert str(path) in str(error)  # noqa: PT017 - a file may also be whole
        return None


def test_truncated_file_raises(path: Path) -> None:
    write(path)
    assert read_all(path) is not None
    for end in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, end)
        assert read_all(path) is None, end


def test_changed_byte_is_found_or_harmless(path: Path) -> None:
    write(path)
    data = path.read_bytes()
    whole = read_all(path)
    rng = random.Random(5)  # noqa: S311 - random bytes
    start = data.rindex(b"PAR1") - int.from_bytes(data[-8:-4], "little")
    for offset in range(start):  # all rows: their pages have checksums
        changed = bytearray(data)
        changed[offset] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        assert read_all(path) in (None, whole), offset
    for _ in range(300):  # the footer has no checksum, so a changed byte may change numbers
        changed = bytearray(data)
        changed[rng.randrange(start, len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        read_all(path)


def test_inconsistent_metadata_raises(path: Path) -> None:
    write(path)
    table = pq.read_table(path)

    def metadata_with(**changes: Any) -> bytes:
        return json.dumps(META.to_json() | changes).encode()

    for metadata in (
        b"{",
        b"[]",
        b"\xff",
        metadata_with(version="1"),
        metadata_with(version=0),
        metadata_with(dtype="float64"),
        metadata_with(dtype="object"),
        metadata_with(dtype="str", kind="text", shape=[]),
        metadata_with(shape=[4]),
        metadata_with(shape=[]),
        metadata_with(shape=["3"]),
        metadata_with(shape=3),
        metadata_with(kind="sound"),
        metadata_with(clocks=["other"]),
        metadata_with(name=None),
        metadata_with(attrs=[]),
    ):
        pq.write_table(table.replace_schema_metadata({b"relive": metadata}), path)
        with pytest.raises(errors.CorruptError, match=r"a\.parquet"):
            _ = ColumnsFile(path).meta
    pq.write_table(
        table.replace_schema_metadata({b"relive": metadata_with(more=1, shape=[3, 1])}), path
    )
    assert ColumnsFile(path).values(range(2)).shape == (2, 3, 1)
    pq.write_table(table.replace_schema_metadata({b"relive": metadata_with(version=2)}), path)
    with pytest.raises(errors.UnsupportedError, match=r"a\.parquet.*version 2"):
        _ = ColumnsFile(path).meta


def test_lists_that_contradict_the_metadata_raise(path: Path) -> None:
    write(path)
    metadata = pq.read_schema(path).metadata[b"relive"]
    rows = pa.array([[1, 2, 3], [1, 2, 3]], pa.list_(pa.float32()))
    for values, fits in ((rows, True), (pa.array([[1, 2]] * 2, pa.list_(pa.float32())), False)):
        columns = {"timestamp": [1, 2], "value": values, "clock.sensor": [0, 0]}
        pq.write_table(pa.table(columns).replace_schema_metadata({b"relive": metadata}), path)
        file = ColumnsFile(path)
        if fits:
            assert file.values(range(2)).tolist() == [[1, 2, 3], [1, 2, 3]]
        else:
            with pytest.raises(errors.CorruptError, match=r"a\.parquet.*row 0"):
                file.value(1)


def test_replaced_file_raises_corrupt(path: Path) -> None:
    write(path)
    file = ColumnsFile(path)
    assert file.rows == 10
    path.unlink()
    write(path, values=VALUES + 1)
    with pytest.raises(errors.CorruptError, match=r"a\.parquet.*changed"):
        file.value(0)
    assert ColumnsFile(path).value(0).tolist() == [1, 2, 3]


def test_existing_file_is_kept(path: Path) -> None:
    path.write_bytes(b"mine")
    with pytest.raises(errors.AlreadyExistsError, match=r"a\.parquet"):
        ColumnsWriter(path, META)
    path.unlink()
    writer = ColumnsWriter(path, META)
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        writer.close()
    assert path.read_bytes() == b"mine"
    assert listed(path.parent) == ["a.parquet"]


def test_leftover_of_an_earlier_writer_is_overwritten(path: Path) -> None:
    left = path.with_name(".a.parquet.part")
    left.write_bytes(b"x" * 100_000)
    write(path)
    assert listed(path.parent) == ["a.parquet"]
    assert read_all(path) is not None


def test_file_is_renamed_after_it_is_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync = os.fsync

    def fsync(handle: int) -> None:
        there = "named" if path.exists() else "unnamed"
        steps.append(f"{there} {'folder' if os.path.isdir(f'/proc/self/fd/{handle}') else 'file'}")  # noqa: PTH112
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write(path)
    assert steps == ["unnamed file", "named folder"]


def test_aborted_writer_leaves_nothing(path: Path) -> None:
    writer = ColumnsWriter(path, META)
    writer.write(TIMES, VALUES, {"sensor": TIMES})
    assert writer.rows == 10
    writer.abort()
    writer.abort()
    assert listed(path.parent) == []
    for use in (writer.close, lambda: writer.write(TIMES, VALUES, {"sensor": TIMES})):
        with pytest.raises(errors.ClosedError):
            use()
    with pytest.raises(ZeroDivisionError), ColumnsWriter(path, META):
        _ = 1 / 0
    assert listed(path.parent) == []
    with ColumnsWriter(path, META) as writer:
        pass
    assert ColumnsFile(path).rows == 0
    with pytest.raises(errors.ClosedError):
        writer.close()


def test_missing_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match=r"a\.parquet"):
        ColumnsWriter(tmp_path / "no" / "a.parquet", META)


def test_full_disk_raises(path: Path) -> None:
    meta = SignalMeta("big", "vector", "uint8", (100_000,))
    noise = np.random.default_rng(0).integers(0, 256, (30, 100_000)).astype(np.uint8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = ColumnsWriter(path, meta)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(
            errors.StorageError, match=r"cannot write .*a\.parquet.*: File too large"
        ):
            writer.write(np.arange(30), noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(errors.ClosedError):
        writer.close()
    assert listed(path.parent) == []


@pytest.mark.parametrize(
    ("times", "values", "clocks"),
    [
        (TIMES[::-1], VALUES, TIMES),
        (TIMES * 0, VALUES, TIMES),
        (TIMES - 3, VALUES, TIMES),
        (TIMES[:9], VALUES, TIMES),
        (TIMES, VALUES[:9], TIMES),
        (TIMES, VALUES, TIMES[:9]),
        (TIMES, VALUES, None),
        (TIMES, VALUES.astype(np.float64), TIMES),
        (TIMES, VALUES[:, :2], TIMES),
        (TIMES, VALUES[:, 0], TIMES),
        (TIMES.astype(np.float64), VALUES, TIMES),
        (TIMES, VALUES, TIMES.astype(np.int32)),
    ],
)
def test_rows_that_do_not_fit_are_refused_whole(
    path: Path, times: Any, values: Any, clocks: Any
) -> None:
    writer = ColumnsWriter(path, META)
    writer.write(TIMES[:1] - 1, VALUES[:1], {"sensor": TIMES[:1]})
    given = {} if clocks is None else {"sensor": clocks}
    with pytest.raises((errors.InvalidError, errors.InvalidTypeError)):
        writer.write(times, values, given)
    writer.close()
    assert ColumnsFile(path).rows == 1


def test_rows_may_change_after_they_were_written(path: Path) -> None:
    times, values, clocks = TIMES.copy(), VALUES.copy(), TIMES.copy()
    with ColumnsWriter(path, META) as writer:
        writer.write(times, values, {"sensor": clocks})
        times[:] = values[:] = clocks[:] = -1
    _, read, stamps, sensor = read_all(path)
    assert (read, stamps, sensor) == (VALUES.tolist(), TIMES.tolist(), TIMES.tolist())
