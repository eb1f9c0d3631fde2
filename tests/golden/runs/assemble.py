"""Assembles the small golden runs byte by byte, in plain Python.

`python -m tests.golden.runs.assemble` writes the missing files next to this file. Existing files
are never changed: files that were readable once stay readable.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

from tests.golden.read_runs import crc32c

FOLDER = Path(__file__).resolve().parent

BOARDS = [
    0x1000_0000_0000_0010,
    0x0000_0000_0000_0012,
    0xFFFF_EDCB_A987_6543,
    0x0000_0000_0000_0000,
    0x1234_5678_1234_5678,
]
MOVES = [0, 3, 2, 1]


def v1(engine: bytes, boards: Sequence[int], moves: Sequence[int]) -> bytes:
    """Return a run of version 1."""
    head = (1, 0, len(moves), 1_700_000_000, 12.5, 20_504, 2048, len(engine))
    data = b"A2T1" + struct.pack("<BBIQfQIH", *head) + engine
    data += struct.pack(f"<{len(boards)}Q", *boards) + bytes(moves)
    return data + struct.pack("<I", crc32c(data))


def v2(engine: bytes | None, boards: Sequence[int], steps: Sequence[bytes]) -> bytes:
    """Return a run of version 2; a step is what follows its board."""
    data = varint(len(steps)) + varint(1_700_000_000) + struct.pack("<f", 12.5)
    data += varint(20_504) + varint(2048)
    data += b"\0" if engine is None else b"\1" + varint(len(engine)) + engine
    data += varint(len(steps))
    for board, step in zip(boards, steps, strict=False):
        data += varint(board) + step
    return data + varint(boards[-1])


def varint(value: int, length: int = 1) -> bytes:
    """Return an integer in at least `length` bytes."""
    data = b""
    while value >= 0x80 or length > 1:
        data += bytes([value & 0x7F | 0x80])
        value, length = value >> 7, length - 1
    return data + bytes([value])


def step(move: int, *branches: float | None) -> bytes:
    """Return a step without its board; None is an illegal move, or no branches at all."""
    if not branches:
        return bytes([move, 0])
    legal = (b"\1" if value is None else b"\0" + struct.pack("<f", value) for value in branches)
    return bytes([move, 1]) + b"".join(legal)


FILES = {
    "v1-smallest": v1(b"", [0], []),
    "v1-engine": v1("expectimax-é".encode(), BOARDS, MOVES),
    "v1-engine-not-text": v1(b"\xff\xfe", BOARDS, MOVES),
    "v2-smallest": v2(None, [0], []),
    "v2-without-branches": v2(b"", BOARDS, [step(move) for move in MOVES]),
    "v2-some-branches": v2(
        "expectimax-é".encode(),
        BOARDS,
        [
            step(0, 1.0, 0.0, 0.5, 0.25),
            step(3),
            step(2, None, None, 1.0, None),
            step(1, None, None, None, None),
        ],
    ),
    "v2-odd-floats": v2(
        None,
        BOARDS,
        [
            step(0, float("nan"), float("inf"), -0.0, 1e-45),
            step(3, float("nan"), None, None, None),
            step(2),
            step(1),
        ],
    ),
    "v2-longer-integers": v2(
        None, BOARDS, [varint(move, 1 + move) + b"\0" for move in MOVES]
    ).replace(varint(20_504), varint(20_504, 10)),
}


def main() -> None:
    """Write the missing files."""
    for name, data in FILES.items():
        path = FOLDER / f"{name}.a2run2"
        if not path.exists():
            path.write_bytes(data)


if __name__ == "__main__":
    main()
