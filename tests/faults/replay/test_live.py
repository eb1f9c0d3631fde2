"""Frames of a live lane are whole, however often its writers and readers are killed.

`RELIVE_LIVE_READS` says how often frames are read (`make faults`: 1,000,000).
"""

import multiprocessing
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.replay import LiveLane
from tests.faults.replay.programs import lane as program
from tests.faults.replay.programs.lane import COUNTED, FRAMES, READS, SEGMENTS
from tests.processes import running

Note = Callable[[str, object], None]
WANTED = int(os.environ.get("RELIVE_LIVE_READS", "20000"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
SHARED = Path("/dev/shm")  # noqa: S108 - where lanes are
LANES = 2
READERS = 3
MAKERS = 4
LEAST_KILLS = 24
BEGIN_S = 60.0
pytestmark = pytest.mark.timeout(3600)


class Campaign:
    """Two lanes, their writers, and readers, each of which is replaced when it was killed."""

    def __init__(self, counts: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([program.__name__])
        self._rng = random.Random(SEED)  # noqa: S311 - moments, not secrets
        unique = uuid.uuid4().hex
        self.names = [f"{unique}.{number}" for number in range(LANES)]
        self._counts = counts
        np.zeros((READERS, COUNTED), np.uint64).tofile(counts)
        self._counted = np.memmap(counts, np.uint64, "r").reshape(-1, COUNTED)
        self._pipes: dict[int, Any] = {}
        self.writers_killed = self.readers_killed = 0
        self._readers: list[BaseProcess] = []
        self._writers: list[BaseProcess] = []

    def start(self) -> None:
        """Start all processes."""
        for lane in range(LANES):
            self._writers.append(self._writer(lane))
        for place in range(READERS):
            self._readers.append(self._reader(place))
        for lane in range(LANES):
            self._has_begun(lane)

    def end(self) -> None:
        """Kill all processes."""
        for process in [*self._writers, *self._readers]:
            process.kill()
            process.join()

    def step(self) -> None:
        """Kill a process at some moment, and start another one."""
        time.sleep(self._rng.choice([0.0, 0.002, 0.02, 0.2]) * self._rng.random())
        if self._rng.random() < 0.6:
            self._replace_writer(self._rng.randrange(LANES))
        else:
            place = self._rng.randrange(READERS)
            _killed(self._readers[place])
            self.readers_killed += 1
            self._readers[place] = self._reader(place)

    def total(self, what: int) -> int:
        """Return what all readers counted."""
        return int(self._counted[:, what].sum())

    def check_readers(self) -> None:
        """Check that no reader saw a wrong frame."""
        assert [process.exitcode for process in self._readers] == [None] * READERS

    def _replace_writer(self, lane: int) -> None:
        _killed(self._writers[lane])
        self.writers_killed += 1
        self._writers[lane] = self._writer(lane)
        while self._rng.random() < 0.4:  # while it makes its segment
            time.sleep(0.02 * self._rng.random())
            _killed(self._writers[lane])
            self.writers_killed += 1
            self._writers[lane] = self._writer(lane)
        self._has_begun(lane)

    def _has_begun(self, lane: int) -> None:
        """Check that a new writer is found by readers, and that nothing of dead ones is left."""
        name, process = self.names[lane], self._writers[lane]
        assert self._pipes[lane].poll(BEGIN_S)
        assert self._pipes[lane].recv() == "begun"
        assert LiveLane.attach(name).pid == process.pid
        assert [info.pid for info in LiveLane.list() if info.name == name] == [process.pid]
        assert {path.name.split(".")[4] for path in segments(name)} == {str(process.pid)}

    def _writer(self, lane: int) -> BaseProcess:
        self._pipes[lane], theirs = self._context.Pipe(duplex=False)
        seed = (SEED, lane, self._rng.randrange(1 << 30))
        process = self._context.Process(
            target=program.write, args=(self.names[lane], seed, theirs), daemon=True
        )
        process.start()
        theirs.close()
        return process

    def _reader(self, place: int) -> BaseProcess:
        name = self.names[place % LANES]
        task = (name, self._counts, place)
        process = self._context.Process(target=program.read, args=task, daemon=True)
        process.start()
        return process


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    """All processes, which end with the test."""
    made = Campaign(tmp_path / "counts")
    try:
        made.start()
        yield made
    finally:
        made.end()
        LiveLane.create(f"{made.names[0]}.last", (1,)).close()  # frees the memory of killed writers


def test_no_frame_is_torn(campaign: Campaign, record_property: Note) -> None:
    kills = 0
    while campaign.total(READS) < WANTED or kills < LEAST_KILLS:
        campaign.step()
        campaign.check_readers()
        kills += 1
    campaign.end()
    reads, frames, changes = (campaign.total(what) for what in (READS, FRAMES, SEGMENTS))
    assert frames > reads // 1000
    assert changes > 0
    # The next lane, of whatever name, frees what killed writers left.
    assert any(segments(name) for name in campaign.names)
    LiveLane.create(f"{campaign.names[0]}.next", (1,)).close()
    assert [segments(name) for name in campaign.names] == [[], []]
    record_property(
        "figure",
        f"live lane: {reads:,} reads of {frames:,} frames, {changes:,} changes of shape, "
        f"{campaign.writers_killed} writers and {campaign.readers_killed} readers killed, 0 torn",
    )


def test_lanes_that_are_made_at_the_same_time(record_property: Note) -> None:
    # Each frees the memory of killed writers, and must leave that of the others alone.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([program.__name__])
    unique, count = uuid.uuid4().hex, max(1000, WANTED // 100)
    processes = [
        context.Process(target=program.make_often, args=(f"{unique}.{number}", count), daemon=True)
        for number in range(MAKERS)
    ]
    with running(processes):
        for process in processes:
            process.join()
    assert [process.exitcode for process in processes] == [0] * MAKERS
    assert segments(unique) == []
    record_property("figure", f"live lane: {MAKERS * count:,} lanes made at the same time")


def segments(name: str) -> list[Path]:
    """Return everything in shared memory that belongs to a lane."""
    return [path for path in SHARED.iterdir() if f".{name}." in path.name]


def _killed(process: BaseProcess) -> None:
    assert process.exitcode is None, process.exitcode
    process.kill()
    process.join()
    assert process.exitcode == -9, process.exitcode
