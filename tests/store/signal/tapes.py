"""Tapes for tests, with a second reader that shares no code with relive."""

import struct
from pathlib import Path
from typing import TypeAlias

import numpy as np

from relive._native import TapeReader, TapeWriter
from tests.golden.read_runs import crc32c

Row: TypeAlias = tuple[int, tuple[int, ...], bytes]


def tape(path: Path, row_bytes: int | None = 8, clocks: int = 0) -> TapeWriter:
    """Create a tape."""
    return TapeWriter(str(path), "arm", b'{"a": 1}', row_bytes, clocks)


def read(path: Path, max_rows: int = 1000) -> list[Row]:
    """Return every row: its timestamp, clocks and payload."""
    reader = TapeReader(str(path))
    rows = []
    while (chunk := reader.next(max_rows, 1 << 20)) is not None:
        timestamps, clocks, payload, offsets = chunk
        for found, dtype in ((timestamps, np.int64), (clocks, np.int64), (payload, np.uint8)):
            assert found.dtype == dtype
        assert clocks.shape == (len(timestamps), reader.clocks)
        for row, (ts, ticks) in enumerate(zip(timestamps.tolist(), clocks.tolist(), strict=True)):
            part = payload[offsets[row] : offsets[row + 1]]
            rows.append((ts, tuple(ticks), part.tobytes()))
    assert reader.rows == len(rows)
    return rows


def plain_read(data: bytes) -> tuple[bytes, list[Row], list[bytes]]:
    """Return head, rows and notes of a tape, by a reader written from the specification."""
    assert data[:12] == b"RELIVEJ\0\1\0\0\0"
    salt, at = data[12:20], 24
    records: list[bytes] = []
    while at < len(data):
        magic, length, sequence, crc = struct.unpack_from("<4sIQI", data, at)
        assert (magic, sequence) == (b"JREC", len(records))
        records.append(data[at + 20 : at + 20 + length])
        assert crc == crc32c(salt + data[at : at + 16] + records[-1])
        at += 20 + length
    kind, version, clocks, flags, row_bytes = struct.unpack_from("<BBHIQ", records[0])
    assert (kind, version, flags | 1) == (1, 1, 1)
    rows: list[Row] = []
    notes = []
    for record in records[1:]:
        if record[0] == 3:
            notes.append(record[1:])
            continue
        kind, count, first = struct.unpack_from("<IIQ", record)
        assert (kind, first) == (2, len(rows))
        at = 16
        for _ in range(count):
            ts, *ticks = struct.unpack_from(f"<{1 + clocks}q", record, at)
            at += 8 + 8 * clocks
            if flags:
                (row_bytes,) = struct.unpack_from("<I", record, at)
                at += 4
            rows.append((ts, tuple(ticks), record[at : at + row_bytes]))
            at += row_bytes
        assert at == len(record)
    return records[0][16:], rows, notes
