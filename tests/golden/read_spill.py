"""Reads a spill file, written from docs/format/spill.md alone."""

import struct

from tests.golden.read_runs import crc32c

Slot = tuple[int, tuple[int, ...], bytes]


def read_spill(data: bytes, salt: bytes) -> dict[int, Slot]:
    """Return timestamp, clocks and bytes of each frame, by row; `salt` is that of the tape."""
    magic, version, own_salt, clocks, frame_bytes, crc = struct.unpack_from("<8sI8sIQI", data)
    assert (magic, version, own_salt) == (b"RELIVES\0", 1, salt)
    assert crc == crc32c(data[:32])
    head = 28 + 8 * clocks
    stride = (head + frame_bytes + 4095) // 4096 * 4096
    frames: dict[int, Slot] = {}
    for at in range(4096, len(data), stride):
        if not any(data[at : at + head]):
            continue
        magic, frame_crc, row, ts_ns, *times, crc = struct.unpack_from(
            f"<4sIQq{clocks}qI", data, at
        )
        assert magic == b"SLOT"
        assert crc == crc32c(salt + data[at : at + head - 4])
        frame = data[at + head : at + head + frame_bytes]
        assert frame_crc == crc32c(frame)
        frames[row] = (ts_ns, tuple(times), frame)
    return frames
