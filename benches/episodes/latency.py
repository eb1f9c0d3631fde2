"""How long single appends take: of vectors as fast as they go, and of pictures at their pace."""

from __future__ import annotations

import gc
import time
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.episodes.robot import CAMERA_HZ, CAMERAS, HEIGHT, SECOND_NS, START_NS, WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.episodes.questions import Questions
    from benches.episodes.robot import Robot
    from benches.peers.episode_peer import Recorder, VectorWriter

ENOUGH = 20_000
"""Appends below which one in ten thousand means nothing."""
SLOW_START = 15
"""Pictures of each camera before the first that counts: encoders open on the first."""


def append_vectors(writer: VectorWriter | None, asked: Questions, count: int) -> list[int]:
    """Append `count` rows; give the nanoseconds of each, or of nothing without a writer."""
    times, values = asked.times[:count].tolist(), asked.values[:count]
    spent = np.empty(count, np.int64)
    append: Callable[[Any, Any], None] = _nothing if writer is None else writer.append
    stamp: Callable[[int], Any] = int if writer is None else writer.stamp
    # Whatever the process has piled up before is not walked through while the clock runs.
    gc.collect()
    gc.freeze()
    try:
        if writer is None:
            for place, ts_ns in enumerate(times):
                row = values[place]
                when = stamp(ts_ns)
                begin = perf_counter_ns()
                spent[place] = perf_counter_ns() - begin
                del row, when
        else:
            for place, ts_ns in enumerate(times):
                row = values[place]
                when = stamp(ts_ns)
                begin = perf_counter_ns()
                append(row, when)
                spent[place] = perf_counter_ns() - begin
    finally:
        gc.unfreeze()
    found: list[int] = spent.tolist()
    return found


def append_frames(recorder: Recorder, robot: Robot, seconds: float) -> dict[str, list[int]]:
    """Append pictures of all cameras at their pace; give nanoseconds of appends and of copies.

    A camera writes each picture into its buffer just before; beside each append the same
    buffer is copied into an array that is there and into a new one, in an order that changes.
    """
    buffers = [np.empty((HEIGHT, WIDTH, 3), np.uint8) for _ in CAMERAS]
    there = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    films = [robot.frames(camera) for camera in range(len(CAMERAS))]
    ticks = min(round(seconds * CAMERA_HZ), robot.frame_count)
    spent: dict[str, list[int]] = {"append": [], "copy": [], "fresh copy": []}

    def camera_writes(camera: int, tick: int) -> Any:
        np.copyto(buffers[camera], films[camera][tick])
        return buffers[camera]

    def append(camera: int, tick: int) -> int:
        picture = camera_writes(camera, tick)
        ts_ns = START_NS + tick * SECOND_NS // CAMERA_HZ
        begin = perf_counter_ns()
        recorder.frame(camera, ts_ns, picture)
        return perf_counter_ns() - begin

    def copy(camera: int, tick: int) -> int:
        picture = camera_writes(camera, tick)
        begin = perf_counter_ns()
        np.copyto(there, picture)
        return perf_counter_ns() - begin

    def fresh_copy(camera: int, tick: int) -> int:
        picture = camera_writes(camera, tick)
        begin = perf_counter_ns()
        held = picture.copy()
        taken = perf_counter_ns() - begin
        del held
        return taken

    ways = [("append", append), ("copy", copy), ("fresh copy", fresh_copy)]
    start = perf_counter_ns()
    for tick in range(ticks):
        for camera in range(len(CAMERAS)):
            # Cameras are half a period apart, as they are when nobody makes them agree.
            due = start + (2 * tick + camera) * SECOND_NS // (2 * CAMERA_HZ)
            time.sleep(max(0, due - perf_counter_ns()) / SECOND_NS)
            first = (tick + camera) % len(ways)
            for name, way in ways[first:] + ways[:first]:
                taken = way(camera, tick)
                counts = not recorder.whole_ticks or camera == len(CAMERAS) - 1
                if tick >= SLOW_START and (counts or name != "append"):
                    spent[name].append(taken)
    return spent


def percentiles(spent_ns: list[int]) -> dict[str, float]:
    """Milliseconds at the places that tell how even appends are, where they are enough to tell."""
    values = np.asarray(spent_ns, np.float64) / 1e6
    at = {"p50": 50, "p99": 99, "p99.99": 99.99, "max": 100}
    if len(values) < ENOUGH:
        del at["p99.99"]
    return {name: float(np.percentile(values, place)) for name, place in at.items()}


def _nothing(row: Any, when: Any) -> None:
    del row, when
