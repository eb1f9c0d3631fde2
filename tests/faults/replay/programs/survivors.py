"""Checks what an act of a recorder left, after it was stopped or lost power."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from relive.errors import NotFoundError, UnknownNameError
from relive.replay import ReplayRecorder, ReplayRun, recover, validate
from tests.faults.replay.programs.check import opens_in_h5py, steps_of
from tests.faults.replay.programs.script import CONFIG, FIRST, ROOT, RUN
from tests.faults.replay.programs.steps import record


class Found(NamedTuple):
    """What an act left."""

    steps: int
    status: str
    """The status of the run; empty if there is none."""
    is_ended: bool = False
    """Whether it is known when the run ended."""


def check(
    folder: Path,
    act: str,
    lines: Sequence[str],
    word: str = "safe",
    *,
    first: int | None = None,
    recovers: bool = False,
) -> Found:
    """Check that nothing is lost that was said to be safe; return what there is.

    Then the run is continued, after `recover` or without it. `first` is how many steps were safe
    before the act, if it did not begin as it does by itself.
    """
    root = folder / ROOT
    found = _found(root)
    before = FIRST[act] if first is None else first
    begun = last(lines, "begin", before)
    least, most = last(lines, word, before), last(lines, "step", max(before, FIRST[act]))
    about = (before, begun, least, found, most)
    is_kept = least <= found.steps <= most and "removed" not in lines
    is_removed = found.steps == begun and "removing" in lines
    assert is_kept or is_removed, about
    with unused_commits() if word == "synced" else contextlib.nullcontext():
        if recovers and found.status:
            _recover(root, found.steps)
        _continue(root, found.steps)
    return found


@contextlib.contextmanager
def unused_commits() -> Iterator[None]:
    """Ignore warnings about commits that a power cut left after others that it removed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* cannot be used: .*", RuntimeWarning)
        yield


def last(lines: Sequence[str], word: str, default: int) -> int:
    """Return the last number that was printed after a word."""
    numbers = [int(line.split()[1]) for line in lines if line.startswith(f"{word} ")]
    return max([default, *numbers])


def _found(root: Path) -> Found:
    try:
        run = ReplayRun(root, RUN)
        return Found(steps_of(root, RUN, 1), run.status, run.info["ended_ns"] is not None)
    except (NotFoundError, UnknownNameError):
        return Found(0, "")


def _recover(root: Path, found: int) -> None:
    done = recover(root)
    assert done.problems == done.locked == (), done
    assert validate(root, "full").problems == ()
    assert steps_of(root, RUN, 1) == found
    assert opens_in_h5py(root / "replay" / f"{RUN}.h5", 1) == found


def _continue(root: Path, found: int) -> None:
    with ReplayRecorder(root, RUN, config=CONFIG, live=None) as recorder:
        assert recorder.stats.steps == found
        for number in range(found, found + 3):
            record(recorder, 0, number)
    assert steps_of(root, RUN, 1) == found + 3
    assert opens_in_h5py(root / "replay" / f"{RUN}.h5", 1) == found + 3
    assert validate(root, "full").problems == ()
