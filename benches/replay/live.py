"""The live lane: `publish()` beside a copy of the same frame, while another process reads."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.peers import module
from benches.replay.contest import section_of
from benches.replay.scenes import DISTINCT, FRAME
from benches.report import note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.episodes.promises import Ledger
    from benches.options import Options
    from benches.replay.scenes import Scene
    from benches.report import Section

NAME = "bench-live"
HZ = 60
FRAMES = 100_000
"""Frames of a run."""
COPY, PUBLISH = "memcpy", "relive publish"
EXTRA_US = 2.0


def live_part(scene: Scene, options: Options, ledger: Ledger) -> Iterator[Section]:
    """Copies and publishes alternate; before each, the frame is written as an environment does."""
    count = max(1, round(FRAMES * options.scale))
    spent: dict[str, list[Any]] = {COPY: [], PUBLISH: []}
    with module("relive.replay").LiveLane.create(NAME, FRAME) as lane:
        reader = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "benches.replay.viewer", NAME, str(HZ)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdout is not None
        reader.stdout.readline()
        for number in range(options.runs):
            note(f"replay: live, run {number + 1} of {options.runs}")
            for name, each in _alternate(lane, scene, count).items():
                spent[name].append(each)
    read, _ = reader.communicate()
    rates = {name: [1e9 / each.mean() for each in runs] for name, runs in spent.items()}
    section = section_of("live lane: one frame", rates, {}, count * options.runs)
    section.unit, section.ratio_of = "frames", "-"
    at: dict[str, dict[str, float]] = {}
    for row in section.rows:
        runs = spent[row.name]
        at[row.name] = {
            f"p{place}": statistics.median(float(np.percentile(each, place)) for each in runs) / 1e3
            for place in (50, 99)
        }
        row.latency_ms = {key: value / 1e3 for key, value in at[row.name].items()}
    section.facts["frames that the reader got"] = read.strip()
    for key, times in (("p50", 2), ("p99", 3)):
        limit = times * at[COPY][key] + EXTRA_US
        ledger.most(f"live lane: publish, {key} in µs", at[PUBLISH][key], limit, "µs")
    yield section


def _alternate(lane: Any, scene: Scene, count: int) -> dict[str, Any]:
    """Nanoseconds of `count` copies and publishes."""
    spent = {name: np.empty(count, np.int64) for name in (COPY, PUBLISH)}
    screen, copy = np.empty(FRAME, np.uint8), np.empty(FRAME, np.uint8)
    frames, publish = scene.frames, lane.publish
    gc.collect()
    gc.freeze()
    try:
        for number in range(count):
            for name in (COPY, PUBLISH) if number % 2 else (PUBLISH, COPY):
                np.copyto(screen, frames[number % DISTINCT])
                if name == COPY:
                    begin = perf_counter_ns()
                    np.copyto(copy, screen)
                    end = perf_counter_ns()
                else:
                    begin = perf_counter_ns()
                    publish(screen, reward=1.0)
                    end = perf_counter_ns()
                spent[name][number] = end - begin
    finally:
        gc.unfreeze()
    return spent
