"""A recording that is killed keeps all that was appended a second before, and frame i is row i.

`RELIVE_EPISODE_KILLS` says how often (`make faults`: 240 times).
"""

import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from relive import episodes as record
from relive.episodes import LocalDataset, recover, validate
from relive.errors import UnfinishedError
from tests.faults.episodes.programs.robot import (
    SIDE,
    STATICS,
    Plan,
    camera,
    large_frame,
    number_of,
    robot,
    value,
)

KILLS = int(os.environ.get("RELIVE_EPISODE_KILLS", "12"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
AT_ONCE = 6
SAFE_AFTER_NS = 10**9
RATES = (1, 5, 30)
PROFILES = ("record", "record", "lossless", "fast", "compact")
# What an encoder takes for a frame in addition. A full queue of 16 then waits up to 5 seconds.
ENCODER_S = (0.0, 0.0, 0.05, 0.3)
SLOW_S = 0.3
# Sizes and profiles of a camera that is recorded alone.
CAMERAS = (
    ((720, 1280), "lossless"),
    ((1080, 1920), "record"),
    ((1080, 1920), "lossless"),
    ((1080, 1920), "compact"),
    ((480, 640), "lossless"),
    ((1080, 1920), "fast"),
)
pytestmark = pytest.mark.timeout(3600)


@dataclass(frozen=True)
class Moment:
    """When a robot is killed: so long after it began, or after it began to finish its files."""

    mark: str
    after: float


@dataclass
class Life:
    """One robot: what it was to do, where, and when it was killed."""

    plan: Plan
    moment: Moment
    root: Path
    log: Path
    process: BaseProcess
    killed_ns: int = 0

    def kill(self) -> None:
        """End it without a word, when the moment has come."""
        while self.process.is_alive() and self.moment.mark not in _said(self.log).marks:
            time.sleep(0.002)
        time.sleep(self.moment.after)
        self.killed_ns = time.monotonic_ns()
        self.process.kill()


@dataclass
class Said:
    """What a robot said that it had done."""

    stamps: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    statics: list[str] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)


def test_killed_while_recording(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(SEED)  # noqa: S311 - moments, not secrets
    waiting = [_plan(rng, number) for number in range(KILLS)]
    # Robots are born of a process that has no threads and has imported everything.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.faults.episodes.programs.robot", "av", "pyarrow.parquet"]
    )
    alive: list[Life] = []
    rows = kept_whole = 0
    phases: Counter[str] = Counter()
    number = 0
    while waiting or alive:
        while waiting and len(alive) < AT_ONCE:
            alive.append(_begin(context, tmp_path / str(number), *waiting.pop()))
            number += 1
        time.sleep(0.01)
        for life in [life for life in alive if not life.process.is_alive()]:
            life.process.join()
            assert life.process.exitcode == -signal.SIGKILL
            alive.remove(life)
            phases.update(_phases(life))
            found = _check(life)
            rows += found
            kept_whole += found > 0
    assert kept_whole > KILLS // 2
    # Kills land everywhere, and often where files are being finished.
    assert phases["recording"] >= KILLS // 5
    assert phases["closing"] >= KILLS // 6
    assert all(phases[f"{hz} Hz"] >= KILLS // 4 for hz in RATES)
    assert phases["slow encoder"] >= KILLS // 10
    record_property(
        "figure", f"episodes: {KILLS} kills: {dict(sorted(phases.items()))}, {rows} records kept"
    )


def test_killed_while_frames_wait_for_their_encoder(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(SEED)  # noqa: S311 - moments, not secrets
    context = multiprocessing.get_context("forkserver")
    kills = max(1, KILLS // 12)
    rows = 0
    for number in range(kills):
        size, profile = CAMERAS[number % len(CAMERAS)]
        folder = tmp_path / str(number)
        folder.mkdir()
        log = folder / "log"
        process = context.Process(target=camera, args=(folder / "cam.mp4", profile, size, log))
        process.start()
        while len(_said(log).stamps["cam"]) < 4:
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(rng.uniform(1.2, 2.2))
        killed_ns = time.monotonic_ns()
        process.kill()
        process.join()
        rows += _check_camera(folder, size, profile, killed_ns)
        shutil.rmtree(folder)
    record_property("figure", f"cameras: {kills} kills, {rows} frames kept")


def _check_camera(folder: Path, size: tuple[int, int], profile: str, killed_ns: int) -> int:
    stamps = _said(folder / "log").stamps["cam"]
    for _ in range(2):
        recover(folder / "cam.mp4")
    found = record.VideoSignal(folder / "cam.mp4", folder / "cam.frames.parquet")
    safe = sum(when < killed_ns - SAFE_AFTER_NS for _, when in stamps)
    assert safe <= len(found) <= len(stamps) + 1, f"{len(found)} of {safe}: {size}, {profile}"
    known = min(len(found), len(stamps))
    assert found.timestamps[:known].tolist() == [ts for ts, _ in stamps[:known]]
    for number, (picture, _) in enumerate(found):
        assert number_of(picture[:SIDE, :SIDE]) == number
        if profile == "lossless":
            np.testing.assert_array_equal(picture, large_frame(number, *size))
    return len(found)


def _plan(rng: random.Random, number: int) -> tuple[Plan, Moment]:
    hz = RATES[number % len(RATES)]
    closes = number % 5 < 2
    seconds = rng.uniform(0.2, 2.5) if closes else 60.0
    plan = Plan(
        hz,
        rng.choice(PROFILES),
        stalls=rng.random() < 0.3,
        seconds=seconds,
        encoder_s=rng.choice(ENCODER_S),
    )
    if closes:
        return plan, Moment("closing", rng.uniform(0, 0.06))
    return plan, Moment("born", 0) if number % 15 == 4 else Moment("began", rng.uniform(0.05, 4.5))


def _begin(context: ForkServerContext, root: Path, plan: Plan, moment: Moment) -> Life:
    log = root.with_suffix(".log")
    process = context.Process(target=robot, args=(root, plan, log))
    process.start()
    life = Life(plan, moment, root, log, process)
    threading.Thread(target=life.kill, daemon=True).start()
    return life


def _phases(life: Life) -> Iterator[str]:
    """Say where a robot was when it was killed, and what it was like."""
    marks = _said(life.log).marks
    yield next(
        mark for mark in ("closed", "closing", "recording", "began", "born") if mark in marks
    )
    yield f"{life.plan.hz} Hz"
    if life.plan.stalls:
        yield "stalling camera"
    if life.plan.encoder_s == SLOW_S:
        yield "slow encoder"


def _said(log: Path) -> Said:
    said = Said()
    if not log.exists():
        return said
    for line in log.read_text().splitlines():
        name, what, ts, when = line.split()
        if name == "static":
            said.statics.append(what)
        elif name in ("born", "began", "closing", "closed"):
            said.marks.add(name)
        else:
            said.marks.add("recording")
            said.stamps[name].append((int(ts), int(when)))
    return said


def _check(life: Life) -> int:
    said = _said(life.log)
    if not life.root.exists():
        assert "began" not in said.marks
        return 0
    before = LocalDataset(life.root)
    left = list(before.unfinished)
    assert len(before) + len(left) <= 1
    if "closed" in said.marks:
        assert len(before) == 1
    for unfinished in left:
        if unfinished.reason == "empty":  # not even begun
            assert "began" not in said.marks
            continue
        with pytest.raises(UnfinishedError, match="relive recover"):
            record.DiskEpisode(unfinished.path)
    has_movie = [(each.path / "cam.mp4").exists() for each in left] == [True]
    assert not recover(life.root).problems
    recover(life.root)
    dataset = LocalDataset(life.root)
    assert not list(dataset.unfinished) or "began" not in said.marks
    if not len(dataset):
        assert "began" not in said.marks
        return 0
    report = validate(life.root, level="full")
    assert not report.problems
    if has_movie:  # with its final name, so all frames are in it
        assert len(dataset[0]["cam"]) == len(said.stamps["cam"])
    return _check_episode(dataset[0], life, said)


def _check_episode(episode: record.Episode, life: Life, said: Said) -> int:
    for name in said.statics:
        assert episode[name] == STATICS[name]
    rows = 0
    for name, stamps in said.stamps.items():
        safe = sum(when < life.killed_ns - SAFE_AFTER_NS for _, when in stamps)
        if name not in episode.signals:
            assert not safe, f"{name} with {safe} safe records is gone: {life.plan}"
            continue
        signal_ = episode[name]
        assert len(signal_) >= safe, f"{name}: {len(signal_)} of {safe}: {life.plan}"
        # The last append may have been taken and not said.
        assert len(signal_) <= len(stamps) + 1
        times = signal_.timestamps
        assert (np.diff(times) > 0).all()
        known = min(len(signal_), len(stamps))
        assert times[:known].tolist() == [ts for ts, _ in stamps[:known]]
        for number, (got, _) in enumerate(signal_):
            if name == "cam":
                assert number_of(got) == number
            else:
                np.testing.assert_array_equal(got, value(name, number))
        rows += len(signal_)
    return rows
