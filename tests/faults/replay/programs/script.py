"""Acts of a recorder whose system calls are followed: what it says is done survives anything.

`python script.py ACT FOLDER`. Prints `step N` before a step, `safe N` when N steps are committed,
`synced N` when they are on the disk, `removing` and `removed N` around an `abort()`, and at the end
`done`, or `failed` and the name of a typed error that was raised.

A file that is written by two threads, one after the other, is counted by strace for each of them.
So an act begins to be followed where its main part begins, and others do what is before it.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from relive.errors import ClosedError, CorruptError, ReliveError
from relive.replay import ReplayConfig, ReplayRecorder, recover
from relive.store.locks import is_locked
from tests.faults.replay.programs.steps import record

ROOT: Final = "root"
RUN: Final = "run"
FIRST_STEPS: Final = 44
MORE_STEPS: Final = 31
ACTS: Final = (
    "create",
    "record",
    "close",
    "abort_new",
    "resume",
    "close_again",
    "abort",
    "recover",
)
BEFORE: Final = {"resume": "close", "close_again": "close", "abort": "close", "recover": "record"}
"""The act whose result another one begins with."""
FIRST: Final = {act: FIRST_STEPS if act in BEFORE else 0 for act in ACTS}
"""How many steps the run has before an act."""
CONFIG: Final = ReplayConfig(chunk_rows=8, flush_s=3600, sync_episodes=False, workers=1)
"""Commits happen where the script asks for them, so that each run makes the same calls."""

Say = Callable[[str], None]
Wait = Callable[[], None]


class Script:
    """The acts: each calls `wait` where it begins to be followed."""

    def __init__(self, folder: Path, say: Say, wait: Wait) -> None:
        self._root = folder / ROOT
        self._say = say
        self._wait = wait
        self.recorder: ReplayRecorder | None = None

    def create(self) -> None:
        """Begin a run, and commit one step."""
        self._wait()
        self._record(self._open(), 1)

    def record(self) -> None:
        """Record a run; the process ends without closing it."""
        recorder = self._open()
        self._wait()
        self._record(recorder, FIRST_STEPS)
        recorder.flush()
        self._say(f"safe {FIRST_STEPS}")

    def close(self) -> None:
        """Close a new run."""
        recorder = self._open()
        self._record(recorder, FIRST_STEPS)
        self._wait_idle(recorder)
        self._close(recorder)

    def abort_new(self) -> None:
        """Remove a new run."""
        recorder = self._open()
        self._record(recorder, FIRST_STEPS)
        self._wait_idle(recorder)
        self._abort(recorder)

    def resume(self) -> None:
        """Continue a closed run; the process ends without closing it."""
        self._wait()
        self._record(self._open(), MORE_STEPS)

    def close_again(self) -> None:
        """Close a run that was continued."""
        recorder = self._open()
        self._record(recorder, MORE_STEPS)
        self._wait_idle(recorder)
        self._close(recorder)

    def abort(self) -> None:
        """Remove what was added to a closed run."""
        recorder = self._open()
        self._record(recorder, MORE_STEPS)
        self._wait_idle(recorder)
        self._abort(recorder)

    def recover(self) -> None:
        """Complete a run whose recorder was killed."""
        self._wait()
        found = recover(self._root)
        if found.problems:
            raise CorruptError(str(found.problems))
        self._say(f"synced {FIRST_STEPS}")

    def check_released(self) -> None:
        """Check that a recorder that failed can be closed, and that its run is not locked then."""
        recorder = self.recorder
        if recorder is not None:
            for _ in range(2):
                try:
                    recorder.close()
                except ReliveError as error:
                    self._say(f"close {type(error).__name__}")
            try:
                recorder.step(action=1)
            except ClosedError:
                pass
            else:
                raise AssertionError("a closed recorder took a step")
        assert not is_locked(self._root / "replay" / f".{RUN}.lock")

    def _wait_idle(self, recorder: ReplayRecorder) -> None:
        """Wait after the thread that writes has nothing more to do, so that its calls are over."""
        while recorder.stats.queued:
            time.sleep(0.001)
        self._wait()

    def _open(self) -> ReplayRecorder:
        self.recorder = ReplayRecorder(self._root, RUN, config=CONFIG, live=None)
        self._say(f"begin {self.recorder.stats.steps}")
        return self.recorder

    def _record(self, recorder: ReplayRecorder, count: int) -> None:
        first = recorder.stats.steps
        for number in range(first, first + count):
            self._say(f"step {number + 1}")
            record(recorder, 0, number)
            if number % 20 == 19:
                recorder.sync()
                self._say(f"synced {number + 1}")
            elif number % 8 == 5 or count == 1:
                recorder.flush()
            else:
                continue
            self._say(f"safe {number + 1}")

    def _close(self, recorder: ReplayRecorder) -> None:
        steps = recorder.stats.steps
        recorder.close()
        self._say(f"synced {steps}")
        self._say(f"safe {steps}")

    def _abort(self, recorder: ReplayRecorder) -> None:
        self._say("removing")
        recorder.abort()
        self._say("removed")


def _perform(act: str, folder: Path, say: Say, wait: Wait) -> None:
    script = Script(folder, say, wait)
    os.chdir(folder)  # which is in no repository, whose state would be asked for
    try:
        getattr(script, act)()
        say("done")
    except ReliveError as error:
        say(f"failed {type(error).__name__} {' '.join(str(error).split())}")
        script.check_released()
    os._exit(0)  # what is open stays so


def play(act: str, folder: Path, log: Path, wait: Wait) -> None:
    """Do an act, and write lines to a log."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _perform(act, folder, lambda line: _write(handle, line), wait)


def _write(handle: int, line: str) -> None:
    os.write(handle, f"{line}\n".encode())


if __name__ == "__main__":
    _perform(sys.argv[1], Path(sys.argv[2]), lambda line: _write(1, line), lambda: None)
