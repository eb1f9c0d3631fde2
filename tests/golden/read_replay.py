"""A second reader of runs in plain Python, written from docs/format/replay.md alone."""

import json
import math
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.golden import read_runs
from tests.golden.read_pack import decode

CODECS = ("raw", "deflate", "zstd", "lz4")
Array = npt.NDArray[Any]
Row = dict[str, Any]


# The CRC of one byte after another, without the inversions before and after.
BYTES = [read_runs.crc32c(bytes([byte])) ^ read_runs.crc32c(b"\0") for byte in range(256)]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C, byte by byte: files of runs are too long for one bit after another."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ BYTES[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def checksum(table: str, values: Any) -> int:
    """Return the CRC-32C of values of a row, as JSON."""
    text = json.dumps([table, *values], separators=(",", ":"), ensure_ascii=False)
    return crc32c(text.encode())


class Run:
    """The content of one run; the constructor checks everything that the database has of it."""

    def __init__(self, root: Path, run_id: str) -> None:
        self.database = sqlite3.connect(root / "telemetry" / "telemetry.sqlite")
        assert self.pragma("application_id") == int.from_bytes(b"RPLY", "big")
        version = self.pragma("user_version")
        assert version in {1, 2}
        self.database.row_factory = sqlite3.Row
        self.database.execute("BEGIN")  # so that every table is read at the same moment
        (self.run,) = self.rows("runs", run_id)
        *values, crc = self.run.values()
        assert crc == checksum("run", values)
        self.episodes = sorted(self.rows("episodes", run_id), key=lambda row: row["number"])
        self.chunks, self.tails = self.rows("chunks", run_id), self.rows("tail", run_id)
        columns = sorted(self.rows("columns", run_id), key=lambda row: row["number"])
        self.commits = sorted(self.rows("commits", run_id), key=lambda row: row["first_row"])
        self.steps = sorted(self.rows("steps", run_id), key=lambda row: row["row"])
        sessions = [] if version == 1 else self.rows("sessions", run_id)
        self.sessions = sorted(sessions, key=lambda row: row["number"])
        self.database.close()
        self.check_digest(columns)
        self.columns = {row["name"]: json.loads(row["spec"]) for row in columns}
        pending = root / "replay" / f".{run_id}.{self.run['arrays_version']}.h5"
        is_pending = self.run["arrays_pending"] and pending.exists()
        path = pending if is_pending else root / "replay" / f"{run_id}.h5"
        self.file = path.read_bytes() if self.chunks or self.run["metadata_offset"] else b""
        if self.run["metadata_offset"]:
            metadata = self.file[self.run["metadata_offset"] :][: self.run["metadata_bytes"]]
            assert self.run["metadata_crc"] == crc32c(self.file[:48] + metadata)

    def pragma(self, name: str) -> int:
        return int(self.database.execute(f"PRAGMA {name}").fetchone()[0])

    def rows(self, table: str, run_id: str) -> list[Row]:
        sql = f"SELECT * FROM {table} WHERE run_id = ?"  # noqa: S608 - our names
        return [dict(row) for row in self.database.execute(sql, (run_id,))]

    def check_digest(self, columns: list[Row]) -> None:
        """Compare the sum of the checksums of all rows with the digest of the run."""
        total = sum(checksum("episodes", row.values()) for row in self.episodes)
        total += sum(checksum("sessions", row.values()) for row in self.sessions)
        for table, rows in (("columns", columns), ("chunks", self.chunks)):
            total += sum(checksum(table, list(row.values())[1:]) for row in rows)
        for tail in self.tails:
            values = (tail[name] for name in ("field", "first_row", "rows", "crc"))
            total += checksum("tail", values)
        row = 0
        for commit in self.commits:
            total += checksum("commits", list(commit.values())[1:])
            assert commit["first_row"] == row
            row += commit["rows"]
            steps = [list(step.values()) for step in self.steps[commit["first_row"] : row]]
            assert commit["crc"] == checksum("steps", steps)
        assert [step["row"] for step in self.steps] == list(range(row))
        assert (row, total % 2**32) == (self.run["steps"], self.run["digest"])

    def dataset(self, path: str, count: int | None, spec: Row) -> Array:
        """Return the rows of a dataset from chunks and tails; rows in neither of them are zeros."""
        dtype, shape = np.dtype(spec["dtype"]), tuple(spec["shape"])
        parts = [(row, self.stored(row), spec["chunk_rows"]) for row in self.chunks]
        parts += [(row, row["data"], row["rows"]) for row in self.tails]
        parts = [part for part in parts if part[0]["field"] == path]
        ends = [row["first_row"] + row["rows"] for row, _, _ in parts]
        values = np.zeros((max(ends, default=0) if count is None else count, *shape), dtype)
        for row, stored, rows in parts:
            assert row["crc"] == crc32c(stored)
            raw = decoded(stored, spec, rows * math.prod(shape) * dtype.itemsize)
            part = np.frombuffer(raw, dtype).reshape(rows, *shape)
            values[row["first_row"] :][: row["rows"]] = part[: row["rows"]]
        return values

    def stored(self, chunk: Row) -> bytes:
        return self.file[chunk["offset"] :][: chunk["bytes"]]

    def column(self, name: str) -> Array:
        """Return all rows of a column."""
        spec = self.columns[name]
        count = self.run["steps" if spec["rows_of"] == "steps" else "ends"]
        if spec["stack"] is None:
            return self.dataset(name.replace(".", "/"), count, spec)
        axis = {"first": 0, "last": -1}[spec["stack"]]
        shape = list(spec["shape"])
        depth = shape.pop(axis)
        numbered = {"dtype": "<u8", "shape": [depth], "chunk_rows": 1024, "shuffle": True}
        numbers = self.dataset(f"stacks/{name}", count, {**spec, **numbered})
        owner = name if spec["planes_of"] is None else list(self.columns)[spec["planes_of"]]
        planes = self.dataset(f"planes/{owner}", None, {**self.columns[owner], "shape": shape})
        planes = np.concatenate([np.zeros((1, *shape), planes.dtype), planes])  # number 0
        return np.moveaxis(planes[numbers], 1, 1 if axis == 0 else -1)

    def valid(self, field: str) -> Array:
        """Return which rows have a field."""
        flags = f"valid.{field}"
        if flags in self.columns:
            return self.column(flags)
        is_end = any(
            spec["rows_of"] == "ends" for spec in self.columns.values() if spec["field"] == field
        )
        return np.ones(self.run["ends" if is_end else "steps"], bool)


def check_file(file: bytes, table: Array) -> None:
    """Check the file of a closed run by its own checksums; `table` is its dataset `/chunks`."""
    (end,) = struct.unpack_from("<Q", file, 28)
    offset, crc, magic = struct.unpack_from("<QI4s", file, end - 16)
    assert (crc, magic) == (crc32c(file[offset : end - 8] + file[:48]), b"RPLY")
    for _, _, _, offset, size, crc in table.tolist():
        assert crc == crc32c(file[offset:][:size])


def decoded(stored: bytes, spec: Row, size: int) -> bytes:
    """Undo the filters of a chunk."""
    codec, item = CODECS.index(spec["codec"]), np.dtype(spec["dtype"]).itemsize
    if spec["codec"] == "lz4":
        raw, at, (total, block) = b"", 12, struct.unpack_from(">QI", stored)
        assert total == size
        while len(raw) < size:
            (length,) = struct.unpack_from(">I", stored, at)
            logical = min(block, size - len(raw))
            part = stored[at + 4 :][:length]
            raw += part if length == logical else decode(part, codec, logical) or b""
            at += 4 + length
    else:
        raw = decode(stored, codec, size) or b""
    assert len(raw) == size
    if not spec["shuffle"]:
        return raw
    return np.frombuffer(raw, np.uint8).reshape(item, -1).T.tobytes()
