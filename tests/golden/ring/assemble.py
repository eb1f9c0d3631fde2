"""Creates the golden segment of a live lane, with its expected content.

`python -m tests.golden.ring.assemble` writes it next to this file if it is missing. It has two
slots and three frames, so that the third is where the first was. The writer was killed while it
wrote the fourth. An existing segment is never changed: what was readable once stays readable.
"""

import os
import struct
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from relive.replay import LiveLane, live

FILE = Path(__file__).resolve().parent / "lane.ring"
NAME, PID, STARTED = "golden.lane-1", 4242, 1_700_000_000_000_000_000
SHAPE, DTYPE, SLOTS = (5, 3), "<u2", 2
METADATA: dict[str, Any] = {"env": "größe", "actions": [0, None, 1.5]}
FRAMES = 3
SLOT_BYTES = 64 * -(-(64 + 1024 + 30) // 64)
STEP_RATE = 64 + 1 + len("step_rate") + 1
"""Where the value of `step_rate` is in a slot; the only bytes that depend on time."""


def frame(number: int) -> npt.NDArray[np.uint16]:
    """Return a frame."""
    return np.arange(15, dtype=DTYPE).reshape(SHAPE) + np.uint16(1000 * number)


def scalars(number: int) -> dict[str, float]:
    """Return the scalars of a frame."""
    return {
        "reward": -0.5 * number,
        "step": number - 2**63,
        "done": number == 1,
        "größe": float("inf"),
    }


def make() -> bytes:
    """Publish frames, and return the bytes of the segment of a writer that is killed then."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(live, "_FOLDER", Path(folder)),
        mock.patch.object(live, "now_ns", return_value=STARTED),
        mock.patch.object(os, "getpid", return_value=PID),
        LiveLane.create(NAME, SHAPE, DTYPE, SLOTS, metadata=METADATA) as lane,
    ):
        for number in range(FRAMES):
            lane.publish(frame(number), **scalars(number))
        data = bytearray(Path(folder, f"relive.{os.getuid()}.{NAME}.{PID}").read_bytes())
    for slot in range(SLOTS):
        struct.pack_into("<d", data, 4096 + slot * SLOT_BYTES + STEP_RATE, 30.0)
    # The writer began to write frame 3 over frame 1.
    slot = 4096 + FRAMES % SLOTS * SLOT_BYTES
    struct.pack_into("<Q", data, slot, 2 * FRAMES + 1)
    data[slot + 64 + 1024 :][:8] = frame(FRAMES).tobytes()[:8]
    return bytes(data)


def main() -> None:
    """Write the segment if it is missing."""
    if not FILE.exists():
        FILE.write_bytes(make())


if __name__ == "__main__":
    main()
