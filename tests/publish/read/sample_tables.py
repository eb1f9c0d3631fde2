"""Tables that are published in tests, and how they are published."""

import datetime as dt
import hashlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive.model import Batch
from relive.publish.read.dataset import PublishedDataset, dataset
from relive.publish.read.footer import ShardFooter
from relive.publish.read.scan import Scan
from relive.publish.write.builder import DatasetBuilder

START = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - timestamps without a zone are tested, too


def every_type(rows: int = 1000) -> pa.Table:
    """Return columns of every type that has statistics, and some that have none.

    Values ascend, so that row groups have different bounds; some are null or NaN.
    """
    numbers = np.arange(rows)
    hours = [START + dt.timedelta(hours=int(n)) for n in numbers]
    return pa.table(
        {
            "i": numbers,
            "i8": pa.array((numbers // 100).astype(np.int8)),
            "u32": pa.array(numbers.astype(np.uint32) + np.uint32((1 << 32) - rows)),
            "u64": pa.array(numbers.astype(np.uint64) + np.uint64(1 << 63)),
            "f": pa.array([float("nan") if n % 100 == 7 else float(n) for n in numbers]),
            "f32": pa.array((numbers / 10).astype(np.float32)),
            "s": pa.array([f"s{n:04d}" if n % 3 else None for n in numbers]),
            "b": pa.array([n >= rows // 2 for n in numbers]),
            "bin": pa.array([f"{n:04d}".encode() for n in numbers]),
            "d": pa.array([f"c{n // 100}" for n in numbers]).dictionary_encode(),
            "ts": pa.array(hours, pa.timestamp("us")),
            "ts_s": pa.array(hours, pa.timestamp("s")),
            "tz": pa.array(hours, pa.timestamp("ms", "UTC")),
            "date": pa.array([START.date() + dt.timedelta(days=int(n)) for n in numbers]),
            "time": pa.array(numbers, pa.int32()).cast(pa.time32("ms")),
            "dec": pa.array([Decimal(int(n) - 500) / 4 for n in numbers], pa.decimal128(12, 2)),
            "n": pa.array([{"p": int(n), "q": [int(n)]} if n % 2 else None for n in numbers]),
            "l": pa.array([list(range(n % 3)) for n in numbers], pa.list_(pa.int64())),
            "empty": pa.nulls(rows, pa.int32()),
        }
    )


def as_stored(table: pa.Table) -> pa.Table:
    """Return a table as it is read from Parquet: the items of lists have another name."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return pq.read_table(pa.BufferReader(sink.getvalue()))


def write(table: pa.Table, path: Path, row_group_size: int = 100, **options: Any) -> Path:
    """Write a Parquet file as other programs do."""
    pq.write_table(table, path, row_group_size=row_group_size, **options)
    return path


def footer_of(path: Path) -> ShardFooter:
    """Return the footer of a Parquet file."""
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little") + 8
    return ShardFooter(data[-length:], len(data), f"`{path.name}`")


def publish(root: Any, tables: dict[str, Any], **remote: Any) -> str:
    """Publish tables as `test/data`, and return the digest."""
    builder = DatasetBuilder("test/data", root=root, **remote)
    for name, data in tables.items():
        builder.add_table(name, data)
    return builder.publish()


def published(root: Any, tables: dict[str, Any]) -> PublishedDataset:
    """Publish tables as `test/data`, and open it."""
    publish(root, tables)
    return dataset("test/data", root=root)


def in_files(table: pa.Table, folder: Path, cuts: Sequence[int], rows: int = 100) -> list[Path]:
    """Write the rows between cuts to files of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = [*cuts, table.num_rows]
    return [
        write(table.slice(start, stop - start), folder / f"{number:02d}.parquet", rows)
        for number, (start, stop) in enumerate(zip([0, *cuts], ends, strict=True))
    ]


def random_rows(rows: int, seed: int = 0) -> pa.Table:
    """Return rows of about 1 KiB that cannot be compressed, with ascending ids."""
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(rows),
            "score": random.random(rows),
            "payload": pa.array([random.bytes(1000) for _ in range(rows)]),
            "label": random.integers(0, 10, rows),
        }
    )


def values(batch: Batch, name: str) -> list[Any]:
    """Return the values of a gathered field that is not ragged."""
    found = batch[name]
    assert isinstance(found, np.ndarray)
    listed: list[Any] = found.tolist()
    return listed


def count_calls(
    monkeypatch: pytest.MonkeyPatch, method: str, count: Callable[..., int]
) -> list[int]:
    """Return a list to which each call of a method of `Scan` appends `count(*arguments)`."""
    calls: list[int] = []
    original = getattr(Scan, method)

    def counted(self: Scan, *arguments: Any) -> Any:
        calls.append(count(*arguments))
        return original(self, *arguments)

    monkeypatch.setattr(Scan, method, counted)
    return calls


def stored_blobs(root: Path) -> list[Path]:
    """Return the files of all blobs of a directory root."""
    return sorted(path for path in (root / "blobs").rglob("*") if path.is_file())


def flipped(path: Path, offset: int) -> Callable[[], object]:
    """Change one byte of a file; return a function that changes it back."""
    data = path.read_bytes()
    changed = bytearray(data)
    changed[offset] ^= 1
    assert hashlib.sha256(changed).digest() != hashlib.sha256(data).digest()
    path.chmod(0o644)
    path.write_bytes(changed)
    return lambda: path.write_bytes(data)
