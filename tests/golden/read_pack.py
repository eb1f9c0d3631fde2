"""A second reader of packs in plain Python, written from the specification only."""

import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tests.golden.read_runs import crc32c


class Entry(NamedTuple):
    """One entry of the index, and its payload."""

    kind: int
    codec: int
    payload: bytes | None
    """None where it was compressed with a dictionary."""


class Pack(NamedTuple):
    """The content of a pack."""

    entries: list[Entry]
    stats: tuple[Any, ...]
    sections: dict[str, bytes]


def read_pack(path: Path) -> Pack:
    """Read a whole pack and check every checksum."""
    data = path.read_bytes()
    magic, version, flags, count, crc = struct.unpack_from("<8sIIQI", data)
    assert (magic, version, crc) == (b"A2PACK\0\0", 1, crc32c(data[:24]))
    footer = data[-32:]
    data_end, index_crc, data_crc, stats_at, crc, zero = struct.unpack("<QIIQII", footer)
    assert (crc, zero) == (crc32c(footer[:24]), 0)
    assert index_crc == crc32c(data[28 : 28 + 32 * count])
    entries = []
    first = data_end
    for k in range(count):
        at, length, kind, bits, crc, logical, rest = struct.unpack_from(
            "<QIHHIIQ", data, 28 + 32 * k
        )
        first = min(first, at)
        stored = data[at : at + length]
        assert rest == 0
        assert crc == crc32c(stored) if bits & 16 or crc else True
        entries.append(Entry(kind, bits & 15, decode(stored, bits, logical)))
    if flags & 1 or data_crc:
        assert data_crc == crc32c(data[first:data_end])
    stats = data[stats_at + 4 :][: struct.unpack_from("<I", data, stats_at)[0]] if stats_at else b""
    sections = dict(read_sections(data)) if flags & 2 else {}
    if "STAT" in sections:
        block = data[stats_at : stats_at + 4 + len(stats)]
        assert sections["STAT"] == struct.pack("<I", crc32c(block))
    return Pack(entries, read_stats(stats), sections)


def decode(stored: bytes, bits: int, logical: int) -> bytes | None:
    """Decompress a payload."""
    codec = bits & 15
    if codec == 0 or not stored:
        return stored
    if bits & 32:
        return None
    if codec == 1:
        return zlib.decompress(stored)
    name = {2: "zstd", 3: "lz4_raw"}[codec]
    return bytes(pa.Codec(name).decompress(stored, decompressed_size=logical))


def read_sections(data: bytes) -> list[tuple[str, bytes]]:
    """Read the directory and the sections it lists."""
    (at,) = struct.unpack_from("<Q", data, len(data) - 40)
    tag, directory = read_section(data, at)
    sections = [
        struct.unpack_from("<4sIQQ", directory, k) for k in range(0, len(directory) - 8, 24)
    ]
    found = [read_section(data, offset) for _, _, offset, _ in sections]
    assert [(name.encode(), len(body)) for name, body in found] == [(p[0], p[3]) for p in sections]
    return [*found, (tag, directory)]


def read_section(data: bytes, at: int) -> tuple[str, bytes]:
    """Read one section and check its checksum."""
    tag, crc, length = struct.unpack_from("<4sIQ", data, at)
    body = data[at + 16 : at + 16 + length]
    assert crc == crc32c(tag + struct.pack("<Q", length) + body)
    return tag.decode(), body


def read_stats(block: bytes) -> tuple[Any, ...]:
    """Read the postcard encoding of the stats."""
    at, values = 0, []
    for field in "uuuufuuu":
        if not block:
            break
        if field == "f":
            values.append(struct.unpack_from("<d", block, at)[0])
            at += 8
            continue
        value, shift = 0, 0
        while True:
            value |= (block[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if block[at - 1] < 128:
                break
        values.append(value)
    return tuple(values)
