"""A process that records an episode, saying what it did, until it is killed.

What it records follows from the number of the record: every value says which record it is, so
that whoever reads knows whether a row is the one that was appended.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import episodes as record
from relive.store.video import Encoder

BITS = 16
BLOCK = 16
SIDE = 4 * BLOCK
STATICS = {"task": "pick \N{SNOWMAN}", "setup": {"arms": [1, 2], "none": None}, "key": b"\x00\xff"}


@dataclass(frozen=True)
class Plan:
    """How a robot records: frames and states per second, by which profile, and what goes wrong.

    `stalls` is a camera that gives nothing for most of the time; `encoder_s` is what its encoder
    takes for a frame in addition; `seconds` is when the episode is closed, unless the
    process is killed before.
    """

    hz: int
    profile: str
    stalls: bool
    seconds: float
    encoder_s: float = 0.0


def frame(number: int) -> npt.NDArray[np.uint8]:
    """Give a picture whose blocks are the bits of a number: it survives any codec."""
    bits = (number >> np.arange(BITS)) & 1
    picture = np.kron(bits.reshape(4, 4), np.ones((BLOCK, BLOCK))) * 220 + 15
    return np.repeat(picture[:, :, None], 3, axis=2).astype(np.uint8)


def number_of(picture: npt.NDArray[np.uint8]) -> int:
    """Read the number off a picture."""
    means = picture.reshape(4, BLOCK, 4, BLOCK, 3).mean(axis=(1, 3, 4)).ravel()
    return int(((means > 127).astype(np.int64) << np.arange(BITS)).sum())


def large_frame(number: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Give a picture with a number in its upper left corner; the rest is hard to encode."""
    rng = np.random.default_rng(number % 7)
    picture = rng.integers(0, 256, (height, width, 3), np.uint8)
    picture[:SIDE, :SIDE] = frame(number)
    return picture


def value(name: str, number: int) -> Any:
    """Give what is recorded under a name as its record of that number."""
    if name == "cam":
        return frame(number)
    if name == "state":
        return np.arange(7, dtype=np.float64) + number
    if name == "depth":
        return np.full((48, 64), number % 65536, dtype=np.uint16)
    return f"note {number}"


def slow_down(seconds: float) -> None:
    """Make all encoders of this process take so much longer for each frame."""
    encode: Any = Encoder.encode

    def slowly(encoder: Encoder, picture: Any, ts_ns: int) -> Any:
        time.sleep(seconds)
        return encode(encoder, picture, ts_ns)

    Encoder.encode = slowly  # type: ignore[assignment,method-assign]


def camera(path: Path, profile: str, size: tuple[int, int], log: Path) -> None:
    """Record a camera alone, at 30 Hz or as fast as it can be encoded, until the process ends."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pictures = [large_frame(number, *size) for number in range(7)]
    with record.VideoSignalWriter(path, profile=profile) as writer:
        number = 0
        while True:
            ts = record.now_ns()
            picture = pictures[number % 7]
            picture[:SIDE, :SIDE] = frame(number)
            writer.append(picture, ts)
            os.write(said, f"cam {number} {ts} {time.monotonic_ns()}\n".encode())
            number += 1
            time.sleep(1 / 30)


def robot(root: Path, plan: Plan, log: Path) -> None:
    """Record, and write a line to `log` after each call that returned."""
    if plan.encoder_s:
        slow_down(plan.encoder_s)
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(*words: object) -> None:
        os.write(said, (" ".join(map(str, words)) + "\n").encode())

    say("born", 0, 0, time.monotonic_ns())
    spec = record.VideoSpec(profile=plan.profile, fps=plan.hz)
    with record.LocalDatasetWriter(root, signals={"cam": spec}).new_episode() as episode:
        say("began", 0, 0, time.monotonic_ns())
        for name, static in STATICS.items():
            episode.set_static(name, static)
            say("static", name, 0, time.monotonic_ns())
        end = time.monotonic() + plan.seconds

        def run(name: str, *, stalls: bool = False) -> None:
            number = 0
            while time.monotonic() < end:
                if not stalls or time.monotonic_ns() // 10**9 % 3 == 0:
                    ts = record.now_ns()
                    episode.append(name, value(name, number), ts)
                    say(name, number, ts, time.monotonic_ns())
                    number += 1
                time.sleep(1 / plan.hz)

        others = [
            threading.Thread(target=run, args=("cam",), kwargs={"stalls": plan.stalls}),
            threading.Thread(target=run, args=("depth",)),
            threading.Thread(target=run, args=("note",)),
        ]
        for thread in others:
            thread.start()
        run("state")
        for thread in others:
            thread.join()
        say("closing", 0, 0, time.monotonic_ns())
    say("closed", 0, 0, time.monotonic_ns())
    time.sleep(3600)
