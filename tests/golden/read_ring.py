"""A second reader of live lanes in plain Python, written from docs/format/ring.md alone.

Python has no fences, so it reads only segments that no process writes.
"""

import json
import struct
from typing import Any, NamedTuple

from tests.golden.read_runs import crc32c

PAGE, SLOT_HEADER = 4096, 64


class Frame(NamedTuple):
    """A frame, its scalars and its sequence number."""

    data: bytes
    scalars: dict[str, bool | int | float]
    sequence: int


class Lane(NamedTuple):
    """The content of a segment."""

    description: dict[str, Any]
    has_ended: bool
    published: int
    newest: Frame | None


def read_lane(data: bytes) -> Lane:
    """Read a segment and check its header."""
    magic, version, slots, stride, size, most, length = struct.unpack_from("<8sIIQQQQ", data)
    zero, crc = struct.unpack_from("<II", data, 48)
    must((magic, version, zero) == (b"RELVRING", 1, 0))
    must(length <= 3968 - 56)
    text = data[56 : 56 + length]
    must(crc == crc32c(data[:52] + text))
    must(2 <= slots <= 1 << 16)
    must(most <= 1 << 20)
    before_frame = SLOT_HEADER + -(-most // 8) * 8
    must(stride == -(-(before_frame + size) // 64) * 64)
    must(len(data) >= PAGE + slots * stride)
    description = json.loads(text)
    (head,), (flags,) = struct.unpack_from("<Q", data, 3968), struct.unpack_from("<Q", data, 4032)
    newest = None
    if head:
        slot = data[PAGE + (head - 1) % slots * stride :][:stride]
        sequence, used = struct.unpack_from("<QQ", slot)
        must(sequence == 2 * head)
        content = slot[SLOT_HEADER : SLOT_HEADER + used]
        number = description["first"] + head - 1
        newest = Frame(slot[before_frame:][:size], read_scalars(content), number)
    return Lane(description, bool(flags & 1), description["first"] + head, newest)


def read_scalars(data: bytes) -> dict[str, bool | int | float]:
    """Read names and numbers."""
    found: dict[str, bool | int | float] = {}
    while data:
        length = data[0]
        name, tag, rest = data[1 : 1 + length].decode(), data[1 + length], data[2 + length :]
        (value,) = struct.unpack_from({0: "<?", 1: "<q", 2: "<d"}[tag], rest)
        found[name] = value
        data = rest[8:]
    return found


def must(true: bool) -> None:  # noqa: FBT001 - the condition
    """Raise an error unless the condition is true."""
    if not true:
        raise ValueError("damaged segment")
