"""A second reader of runs, written from docs/format/runs.md alone, in plain Python."""

import struct
from typing import Any


def read(data: bytes) -> dict[str, Any]:
    """Read a run of either version: its meta, boards, moves and branches, as plain values.

    The branches of a step are None, or four values in which None is an illegal move.
    """
    return read_v1(data) if data[:5] == b"A2T1\x01" else read_v2(data)


def crc32c(data: bytes) -> int:
    """Return the checksum of v1, computed bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read_v1(data: bytes) -> dict[str, Any]:
    """Read version 1."""
    must(len(data) >= 48, "too short")
    must(struct.unpack("<I", data[-4:])[0] == crc32c(data[:-4]), "wrong checksum")
    names = ("steps", "start_unix_s", "elapsed_s", "max_score", "highest_tile")
    order, *values, length = struct.unpack_from("<BIQfQIH", data, 5)
    meta = dict(zip(names, values, strict=True))
    steps, at = meta["steps"], 36 + length
    must(order == 0, "wrong byte order")
    must(len(data) == at + 8 * (steps + 1) + steps + 4, "wrong length")
    try:
        meta["engine"] = data[36:at].decode() or None
    except UnicodeDecodeError:
        meta["engine"] = None
    boards = list(struct.unpack_from(f"<{steps + 1}Q", data, at))
    moves = list(data[at + 8 * (steps + 1) : -4])
    must(all(move <= 3 for move in moves), "no move")
    return {"meta": meta, "boards": boards, "moves": moves, "branches": [None] * steps}


class Input:
    """Reads version 2 sequentially."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, count: int) -> bytes:
        must(len(self.rest) >= count, "too short")
        head, self.rest = self.rest[:count], self.rest[count:]
        return head

    def varint(self, bits: int) -> int:
        value = 0
        for shift in range(0, bits, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            must(value < 1 << bits, "too wide")
            if byte < 0x80:
                return value
        raise ValueError("too wide")

    def tag(self) -> bool:
        tag = self.take(1)[0]
        must(tag <= 1, "wrong tag")
        return tag == 1

    def float(self) -> float:
        return float(struct.unpack("<f", self.take(4))[0])


def read_v2(data: bytes) -> dict[str, Any]:
    """Read version 2."""
    at = Input(data)
    meta: dict[str, Any] = {"steps": at.varint(32), "start_unix_s": at.varint(64)}
    meta |= {"elapsed_s": at.float(), "max_score": at.varint(64), "highest_tile": at.varint(32)}
    meta["engine"] = at.take(at.varint(64)).decode() if at.tag() else None
    must(at.varint(64) == meta["steps"], "wrong number of steps")
    boards, moves, branches = [], [], []
    for _ in range(meta["steps"]):
        boards.append(at.varint(64))
        moves.append(at.varint(32))
        must(moves[-1] <= 3, "no move")
        branches.append([None if at.tag() else at.float() for _ in "udlr"] if at.tag() else None)
    boards.append(at.varint(64))
    must(not at.rest, "bytes are left")
    return {"meta": meta, "boards": boards, "moves": moves, "branches": branches}


def must(true: bool, otherwise: str) -> None:  # noqa: FBT001 - the condition
    """Raise an error unless the condition is true."""
    if not true:
        raise ValueError(otherwise)
