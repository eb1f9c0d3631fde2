"""Readers see every commit of a recorder on a slow disk, and find no damage.

SQLite writes the frames of a commit, syncs them, and only then shows them to readers. Where an
fsync takes no time, as on the disks of tests, no reader comes in between.
`RELIVE_SLOW_KILLS` says how many recorders are killed for each delay, and `RELIVE_SLOW_DRAWS` how
many batches are drawn (`make faults`: 100, and 100,000).
"""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relive.errors import NotFoundError, UnknownNameError
from relive.replay import FrameResolver, ReplayRun, validate
from tests.faults.replay.programs import slow_disk
from tests.faults.replay.programs.check import steps_of
from tests.faults.replay.programs.slow_disk import RUN_ID
from tests.faults.slow_fsync import slow_fsync

Note = Callable[[str, object], None]
KILLS = int(os.environ.get("RELIVE_SLOW_KILLS", "1"))
DRAWS = int(os.environ.get("RELIVE_SLOW_DRAWS", "1500"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
ROOT = Path(__file__).resolve().parents[3]
DELAYS_MS = (5, 50, 200) if KILLS > 1 else (50,)
LEARNING_DELAYS_MS = (40, 100) if KILLS > 1 else (40,)
LIVES = 4
"""How often one run is recorded, one recorder after the other."""
_PAUSE_S = 0.0005
pytestmark = [pytest.mark.needs("h5py"), pytest.mark.timeout(3600)]


def command(act: str, root: Path, *numbers: int) -> list[str]:
    return [sys.executable, "-m", slow_disk.__name__, act, str(root), *map(str, numbers)]


class Readers:
    """What reads a run in this process. All of it is refreshed while the recorder commits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = ReplayRun(root, RUN_ID)
        self.followed = self.run.transitions(follow=True)
        self.resolver = FrameResolver(root / "replay")
        self.has_refreshed = 0

    def refresh(self) -> None:
        """Read what is new."""
        self.run.refresh()
        self.followed.refresh()
        self.resolver.resolve(f"h5://{RUN_ID}/actions/{len(self.run) + 1000}")
        self.has_refreshed += 1

    def check(self, synced: int) -> None:
        """Check that everything that was synced before is seen."""
        self.run.refresh()
        assert len(self.run) >= synced
        opened = ReplayRun(self.root, RUN_ID)
        assert len(opened) >= synced
        self.followed.refresh()
        assert len(self.followed) >= len(opened.transitions())
        assert self.resolver.resolve(f"h5://{RUN_ID}/actions/{synced - 1}") is not None


@pytest.mark.parametrize("delay_ms", DELAYS_MS)
def test_readers_miss_nothing_that_was_synced(
    delay_ms: int, tmp_path: Path, record_property: Note
) -> None:
    rng = np.random.default_rng((SEED, delay_ms))
    kills = synced_in_all = refreshes = 0
    while kills < KILLS:
        root = tmp_path / str(kills)
        synced = 0
        for _ in range(min(LIVES, KILLS - kills)):
            syncs = int(rng.integers(2, 6))
            process = subprocess.Popen(
                command("record", root, int(rng.integers(1 << 30))),
                cwd=ROOT,
                env=slow_fsync(tmp_path, delay_ms),
                stdout=subprocess.PIPE,
            )
            with process:
                try:
                    before, (synced, count) = synced, _watched(process, root, syncs)
                finally:
                    process.kill()
            assert synced > before
            refreshes += count
            kills += 1
            synced_in_all += syncs
        assert steps_of(root, RUN_ID, 1) >= synced
        assert validate(root, "full").ok
    record_property(
        "figure",
        f"replay: fsyncs of {delay_ms} ms: {kills} recorders killed, {synced_in_all} syncs seen by "
        f"readers that refreshed {refreshes} times",
    )


def _watched(process: "subprocess.Popen[bytes]", root: Path, syncs: int) -> tuple[int, int]:
    """Read while a recorder commits, and kill it; return the steps of its last sync."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    readers: Readers | None = None
    text, synced = b"", 0
    while text.count(b"\n") < syncs or readers is None:
        assert process.poll() is None
        while select.select([pipe], [], [], 0)[0]:
            text += os.read(pipe, 1 << 16)
        lines = text.split(b"\n")[:-1]
        if readers is None:
            with contextlib.suppress(NotFoundError, UnknownNameError):
                readers = Readers(root)
        elif lines and int(lines[-1]) > synced:
            synced = int(lines[-1])
            readers.check(synced)
        else:
            readers.refresh()
            time.sleep(_PAUSE_S)
    process.kill()
    readers.check(synced)
    return synced, readers.has_refreshed


@pytest.mark.parametrize("delay_ms", LEARNING_DELAYS_MS)
def test_a_recorder_that_learns_finds_no_damage(
    delay_ms: int, tmp_path: Path, record_property: Note
) -> None:
    done = subprocess.run(
        command("learn", tmp_path / "root", SEED, DRAWS // 2),
        cwd=ROOT,
        env=slow_fsync(tmp_path, delay_ms),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"{DRAWS // 2}\n"), done.stderr
    record_property("figure", f"replay: fsyncs of {delay_ms} ms: {DRAWS // 2} draws, no error")
