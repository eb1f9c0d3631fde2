"""A second reader of record stores in plain Python, written from the specification only."""

import json
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.golden.read_pack import decode
from tests.golden.read_runs import crc32c

PAGE, BLOCK = 4096, 65536
ZSTD = 2


class Value(NamedTuple):
    """One value: its variable dimensions, if there are several, and its bytes."""

    dims: tuple[int, ...]
    data: bytes
    dictionary: str = ""
    """The file of the dictionary with which `data` is still compressed, if it is."""
    length: int = 0
    """How many bytes it is without, then."""


class Store:
    """The content of a store; the constructor reads and checks the index."""

    def __init__(self, folder: Path) -> None:
        text = (folder / "meta.json").read_bytes()
        before, _, crc = text.rpartition(b',\n  "crc": "')
        assert crc == b'%08x"\n}\n' % crc32c(before)
        self.folder = folder
        self.meta: dict[str, Any] = json.loads(text)
        assert (self.meta["format"], self.meta["version"]) == ("relive-records", 1)
        self.fields = {field["id"]: field for field in self.meta["fields"]}
        self.length: int = self.meta["length"]
        listed = self.meta["chunks"]["full"] + self.meta["chunks"]["unfull"]
        self.ends = {number: (end, tail) for number, end, _, tail in listed}
        # The location of each value: an entry, a physical row, or None, for every field and row.
        self.locations = {id_: self._folded(field) for id_, field in self.fields.items()}
        self.owned = {id_: field["chunks"] for id_, field in self.fields.items()}
        self.physical = {id_: field["physical"] for id_, field in self.fields.items()}
        for record in self._journal():
            self._apply(record)
        self.chunk = cache(self._chunk)

    def _folded(self, field: dict[str, Any]) -> list[Any]:
        locations: list[Any] = [None] * self.length
        # Tables take precedence over extents, so they are applied last.
        for logical, physical, rows in field["extents"]:
            locations[logical : logical + rows] = range(physical, physical + rows)
        if field["table"]:
            name, rows = field["table"]
            data = (self.folder / name).read_bytes()
            assert struct.unpack_from("<8sII", data) == (b"RELIVET\0", 1, field["id"])
            assert data[16:32].hex() == self.meta["uid"]
            assert crc32c(data[:60]) == struct.unpack_from("<I", data, 60)[0]
            entries, crcs = data[PAGE : PAGE + 16 * rows], data[PAGE + 16 * rows :]
            assert struct.unpack_from("<QI", data, 32) == (rows, crc32c(crcs))
            assert crcs == checksums(entries)
            locations[:rows] = struct.iter_unpack("<IQI", entries)
        return locations

    def _journal(self) -> Iterator[bytes]:
        """Return the records of all groups that end with a Commit."""
        path = self.folder / self.meta["journal"]
        data = path.read_bytes() if path.exists() else b""
        at, sequence, group = 24, 0, list[bytes]()
        while at + 20 <= len(data):
            magic, length, number, crc = struct.unpack_from("<4sIQI", data, at)
            record = data[at + 20 : at + 20 + length]
            whole = data[12:20] + data[at : at + 16] + record
            if (magic, number, crc) != (b"JREC", sequence, crc32c(whole)):
                return
            at, sequence = at + 20 + length, sequence + 1
            if record[0] != 5:
                group.append(record)
                continue
            frames, _, _, crc = struct.unpack_from("<IQQI", record, 4)
            assert (frames, crc) == (len(group), crc32c(b"".join(group)))
            yield from [*group, record]
            group = []

    def _apply(self, record: bytes) -> None:
        kind, _, count, _, number = struct.unpack_from("<BBHIQ", record)
        if kind == 1:
            chunk, field = struct.unpack_from("<II", record, 4)
            self.ends[chunk] = (PAGE, 0)
            if record[1] == 1:
                self.owned[field].append(chunk)
        elif kind == 2:
            self._append(record, count, number)
        elif kind == 3:
            for at in range(16, len(record), 20):
                field, _, *entry = struct.unpack_from("<HHIQI", record, at)
                self.locations[field][number] = tuple(entry)
        elif kind == 4:
            self.length -= 1
            for locations in self.locations.values():
                locations[number] = locations[-1]
                locations.pop()
        else:
            assert struct.unpack_from("<Q", record, 16)[0] == self.length
            for at in range(32, len(record), 24):
                chunk, tail, end = struct.unpack_from("<IIQ", record, at)
                self.ends[chunk] = (end, tail)

    def _append(self, record: bytes, count: int, rows: int) -> None:
        at = 16 + 4 * count
        given = {field: how for field, how, _ in struct.iter_unpack("<HBB", record[16:at])}
        for field in [*given, *(self.locations.keys() - given.keys())]:
            if given.get(field) == 2:
                self.locations[field] += struct.iter_unpack("<IQI", record[at : at + 16 * rows])
                at += 16 * rows
            elif given.get(field) == 1:
                self.locations[field] += range(self.physical[field], self.physical[field] + rows)
                self.physical[field] += rows
            else:
                self.locations[field] += [None] * rows
        assert at == len(record)
        self.length += rows

    def column(self, name: str) -> list[Value | None]:
        """Return the values of a field; None where a value is missing."""
        field = next(field for field in self.fields.values() if field["name"] == name)
        return [self._value(field, location) for location in self.locations[field["id"]]]

    def _value(self, field: dict[str, Any], location: Any) -> Value | None:
        if isinstance(location, int):
            chunk, row = divmod(location, field["rows"])
            location = (self.owned[field["id"]][chunk], PAGE + row * field["bytes"], field["bytes"])
        if location is None or location[2] == 0:
            return None
        chunk, at, length = location
        kind, owner, data = self.chunk(chunk)
        record = data[at : at + length]
        assert len(record) == length
        if kind == 1:
            assert owner == field["id"]
            return Value((), record)
        magic, id_, codec, dims, _, logical, stored, crc = struct.unpack_from("<4sHBBQQII", record)
        assert (magic, id_, length, at % 8) == (b"ZREC", field["id"], 32 + 8 * dims + stored, 0)
        assert crc == crc32c(record[:28] + record[32:])
        shape, payload = struct.unpack_from(f"<{dims}Q", record, 32), record[32 + 8 * dims :]
        if codec == ZSTD and (wanted := dictionary_id(payload)):
            return Value(shape, payload, self._dictionary(field, wanted), logical)
        found = decode(payload, codec, logical)
        assert found is not None
        assert len(found) == logical
        return Value(shape, found)

    def _chunk(self, number: int) -> tuple[int, int, bytes]:
        """Return the kind, the field and the bytes of a chunk up to its write position."""
        end, tail = self.ends[number]
        data = (self.folder / "chunk" / f"{number}.zr").read_bytes()[:end]
        assert struct.unpack_from("<8sII", data) == (b"RELIVEC\0", 1, number)
        assert data[16:32].hex() == self.meta["uid"]
        assert crc32c(data[:60]) == struct.unpack_from("<I", data, 60)[0]
        kind, field = struct.unpack_from("<II", data, 32)
        if kind == 1:
            crcs = (self.folder / "chunk" / f"{number}.crc").read_bytes()
            full = (len(data) - PAGE) // BLOCK
            own = checksums(data[PAGE:])
            assert crcs[: 4 * full] == own[: 4 * full]
            assert own[4 * full :] in {b"", struct.pack("<I", tail)}
        return kind, field, data

    def _dictionary(self, field: dict[str, Any], wanted: int) -> str:
        for name in field["dictionaries"]:
            data = (self.folder / name).read_bytes()
            assert struct.unpack("<I", data[-4:])[0] == crc32c(data[:-4])
            if struct.unpack_from("<II", data) == (0xEC30A437, wanted):
                return str(name)
        raise AssertionError(f"no dictionary {wanted}")


def checksums(data: bytes) -> bytes:
    """Return the CRC of every block; the last block may be shorter."""
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    return b"".join(struct.pack("<I", crc32c(block)) for block in blocks)


def dictionary_id(frame: bytes) -> int:
    """Return the dictionary id in a zstd frame (RFC 8878, 3.1.1.1), or 0."""
    flags = frame[4]
    size = (0, 1, 2, 4)[flags & 3]
    at = 5 if flags & 32 else 6
    return int.from_bytes(frame[at : at + size], "little")
