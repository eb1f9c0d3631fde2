"""Writers and readers of a live lane whose every byte says which frame it is of."""

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from relive.errors import NotFoundError
from relive.replay import LiveLane

SHAPES: Final = ((8,), (3, 40), (24, 24), (210, 20, 1), (4096,))
"""Of words of 8 bytes: up to 32 KiB."""
DTYPES: Final = ("<u8", "<i8")
READS, FRAMES, SEGMENTS = 0, 1, 2
"""What a reader counts: its reads, those that returned another frame, and the changes of shape."""
COUNTED: Final = 3
TORN: Final = 3
"""The exit code of a reader that saw a wrong frame."""
_OFTEN: Final = 256
_NUMBER: Final = np.uint64(0x9E3779B97F4A7C15)
_WORDS: Final = np.arange(4200, dtype=np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)


def words_of(token: int, number: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Return a frame of which each word depends on its writer, its number and its place."""
    first = np.array([token], np.uint64) + np.array([number], np.uint64) * _NUMBER
    return (_WORDS[: int(np.prod(shape))] + first).reshape(shape)


def write(name: str, seed: tuple[int, ...], pipe: Connection) -> None:
    """Publish frames, the shape of which changes now and then, until this process is killed."""
    rng = np.random.default_rng(seed)
    token = int(rng.integers(1 << 62))
    lane = LiveLane.create(name, (2, 2), slots=int(rng.choice([2, 4, 8])), metadata={"of": token})
    pipe.send("begun")
    number = 0
    while True:
        shape, dtype = SHAPES[rng.integers(len(SHAPES))], str(rng.choice(DTYPES))
        for _ in range(int(rng.integers(1, 3000))):
            frame = words_of(token, number, shape).view(dtype)
            assert lane.publish(frame, token=token, number=number) == number
            number += 1


def read(name: str, counts: Path, place: int) -> None:
    """Read at full speed until this process is killed; end with `TORN` if a frame is wrong."""
    counted = np.memmap(counts, np.uint64, "r+").reshape(-1, COUNTED)[place]
    while True:
        try:
            lane = LiveLane.attach(name)
        except NotFoundError:
            time.sleep(0.0005)
            continue
        shape, before = lane.shape, (0, -1)
        while True:
            for _ in range(_OFTEN):
                found = lane.latest()
                counted[READS] += 1
                if found is None:
                    continue
                frame, scalars, sequence = found
                token, number = int(scalars["token"]), int(scalars["number"])
                is_whole = np.array_equal(frame.view("<u8"), words_of(token, number, frame.shape))
                # Another writer begins with 0 again.
                is_next = sequence == number and (token != before[0] or number >= before[1])
                if not is_whole or not is_next or token != lane.metadata["of"]:
                    os.write(2, f"{before} {sequence} {scalars} {is_whole}\n".encode())
                    os._exit(TORN)
                counted[FRAMES] += (token, number) != before
                counted[SEGMENTS] += frame.shape != shape
                shape, before = frame.shape, (token, number)
            if not lane.is_live:
                break


def make_often(name: str, count: int) -> None:
    """Make a lane and end it, again and again."""
    for number in range(count):
        with LiveLane.create(name, (2, 2)) as lane:
            lane.publish(np.full((2, 2), number % 256, np.uint8))
