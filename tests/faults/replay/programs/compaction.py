"""Compacts a run, or cleans up after a compaction that was interrupted: its calls are followed.

`python compaction.py ACT FOLDER`. Prints `done` at the end, or `failed` and the name of a typed
error that was raised.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from relive.errors import CorruptError, ReliveError
from relive.replay import ReplayRecorder, recover, validate
from relive.replay.manage.compact import compact
from relive.replay.manage.runs import load_tables
from relive.replay.storage.files import is_replacing
from relive.replay.storage.layout import arrays_path, lock_path
from relive.store.locks import is_locked
from tests.faults.replay.programs.check import opens_in_h5py, steps_of
from tests.faults.replay.programs.script import CONFIG, ROOT, RUN
from tests.faults.replay.programs.steps import record

STEPS: Final = 42
COMPACTIONS: Final = ("compact", "train")
"""Acts that write a new file: with another codec, and in the layout for training."""
ACTS: Final = (*COMPACTIONS, "finish", "undo", "resume")
STOPPED: Final = {"finish": ("rename", f".{RUN}.1.h5"), "undo": ("fsync", "replay")}
"""The call of `compact` that these acts begin with the failure of; `resume` begins as `finish`."""

Wait = Callable[[], None]


def record_run(root: Path) -> None:
    """Record a run, and continue it, so that its file has bytes that nothing refers to."""
    for end in (STEPS // 2, STEPS):
        with ReplayRecorder(root, RUN, config=CONFIG, live=None) as recorder:
            for number in range(recorder.stats.steps, end):
                record(recorder, 0, number)


def check(folder: Path, number: int, *, is_cut: bool = False) -> str:
    """Check that a run is whole; clean up, in one of several ways, and check again.

    Return what had been done: whether there was something to clean up, and which file was used.
    After a power cut, the WAL may have commits that were not synced and cannot be used.
    """
    root = folder / ROOT
    assert steps_of(root, RUN, 1) == STEPS
    path = arrays_path(root, RUN)
    assert opens_in_h5py(path, 1) == STEPS
    problems = validate(root, "index").problems
    assert [each for each in problems if not (is_cut and "cannot be used" in each.message)] == []
    run = load_tables(root, RUN).run
    found = f"{run.arrays_version}{' replacing' * is_replacing(root, run)}"
    more = 0
    if number % 3 == 0 and run.status != "recording":
        train = number % 2 == 0
        compact(root, RUN, codec=None if train else "lz4", layout="train" if train else None)
    elif number % 3 != 2:
        assert recover(root).problems == ()
    else:
        more = 1
        with ReplayRecorder(root, RUN, config=CONFIG, live=None) as recorder:
            record(recorder, 0, STEPS)
    run = load_tables(root, RUN).run
    assert (run.arrays_pending, is_replacing(root, run)) == (0, False)
    assert not [each for each in path.parent.iterdir() if each.match(f".{RUN}.*.h5")]
    report = validate(root, "full")
    assert (report.problems, report.unfinished) == ((), ())
    assert steps_of(root, RUN, 1) == opens_in_h5py(path, 1) == STEPS + more
    return found


def _perform(act: str, folder: Path, say: Callable[[str], None], wait: Wait) -> None:
    root = folder / ROOT
    os.chdir(folder)  # which is in no repository, whose state would be asked for
    wait()
    try:
        if act == "compact":
            compact(root, RUN, codec="lz4", threads=1)
        elif act == "train":
            compact(root, RUN, layout="train", threads=1)
        elif act == "resume":
            ReplayRecorder(root, RUN, config=CONFIG, live=None).close()
        else:
            found = recover(root)
            if found.problems:
                raise CorruptError(str(found.problems))
        say("done")
    except ReliveError as error:
        say(f"failed {type(error).__name__} {' '.join(str(error).split())}")
    assert not is_locked(lock_path(root, RUN))
    os._exit(0)  # what is open stays so


def play(act: str, folder: Path, log: Path, wait: Wait) -> None:
    """Do an act, and write lines to a log."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _perform(act, folder, lambda line: _write(handle, line), wait)


def _write(handle: int, line: str) -> None:
    os.write(handle, f"{line}\n".encode())


if __name__ == "__main__":
    _perform(sys.argv[1], Path(sys.argv[2]), lambda line: _write(1, line), lambda: None)
