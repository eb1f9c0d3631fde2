"""A recorder that is killed, or whose disk is full or broken, at any system call.

Nothing that it said is safe may be lost, and no signal may end it. With `RELIVE_KILLS=all`
(`make faults`) at every call.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.faults.attached import OPENING, Done, Program
from tests.faults.damage import memory_folder
from tests.faults.records.programs.syscalls import CHANGING, Call, Place
from tests.faults.replay.programs import script
from tests.faults.replay.programs.script import ACTS, BEFORE
from tests.faults.replay.programs.survivors import check

Note = Callable[[str, object], None]
IS_LONG = os.environ.get("RELIVE_KILLS") == "all"
FEW = 3
TRIES = 3
FORGIVEN = frozenset({"unlink", "fallocate", "sync_file_range", "mkdir"})
"""Calls without which nothing is lost; `mkdir` of a folder that exists."""
TRIED_AGAIN = {
    ("openat", "telemetry.sqlite-wal"),
    ("openat", "telemetry.sqlite-shm"),
    ("pwrite64", "telemetry.sqlite-shm"),
    ("openat", ".run.lock"),
}
WRITING = ("WRONLY", "RDWR", "CREAT", "TRUNC")
_INDEX: Final = re.compile(r"/\.index\.json\.\d+$")
pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout(3600)]


def _writes(call: Call) -> bool:
    """Check whether a call writes, or opens or maps a file to write to it."""
    if call.name == "mmap":
        return "PROT_WRITE" in call.args[2]
    flags = str(call.args)
    return call.name not in OPENING or any(f"O_{how}" in flags for how in WRITING)


PROGRAM: Final = Program(
    script.play,
    [script.__name__],
    (*OPENING, "mmap", *CHANGING),
    is_chosen=_writes,
    path_of=lambda path, pid: _INDEX.sub(f"/.index.json.{pid}", path),
)


class Life(NamedTuple):
    """An act: the folder that it begins with, where it is done, and its calls."""

    template: Path
    folder: Path
    places: list[Place]


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory, where syncing takes no time."""
    with memory_folder() as folder:
        yield folder


@pytest.fixture(scope="module", params=ACTS)
def act(request: pytest.FixtureRequest) -> str:
    """The name of an act."""
    return str(request.param)


@pytest.fixture(scope="module")
def life(act: str, memory: Path) -> Life:
    """What an act begins with, and what it does."""
    folder = memory / "life"
    template = memory / f"before-{act}"
    template.mkdir()
    if act in BEFORE:
        done = PROGRAM.run(BEFORE[act], template)
        assert done.last("done") is not None, done
    _begin(template, folder)
    done, places = PROGRAM.places_of(act, folder, memory / "logs")
    assert done.last("done") is not None, done
    check(folder, act, _lines(done))
    return Life(template, folder, places)


def test_killed_at_any_call(act: str, life: Life, record_property: Note) -> None:
    chosen = _chosen(life.places)
    killed = 0
    for number, place in enumerate(chosen):
        done = _stopped(act, life, place, "signal=KILL", recovers=number % 2 == 1)
        assert done.code == (-9 if done.happened else 0), (place, done)
        killed += done.happened
    assert killed >= len(chosen) - max(1, len(chosen) // 10)
    record_property("figure", f"replay: {act} killed at {killed} of {len(chosen)} calls")


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_disk_that_fails_at_any_call(
    act: str, error: str, life: Life, record_property: Note
) -> None:
    chosen = _chosen(life.places)
    failed = met = 0
    for number, place in enumerate(chosen):
        done = _stopped(act, life, place, f"error={error}", recovers=number % 2 == 1)
        assert done.code == 0, (place, done)
        has_failed = done.last("failed") is not None
        assert has_failed or not done.happened or _is_forgiven(act, place, life), (place, done)
        failed += has_failed
        met += done.happened
    assert met >= len(chosen) - max(1, len(chosen) // 10)
    record_property(
        "figure", f"replay: {act} met {error} at {met} of {len(chosen)} calls, {failed} reported"
    )


def _stopped(act: str, life: Life, place: Place, how: str, *, recovers: bool) -> Done:
    """Let something happen at a call, and check the run then."""
    for attempt in range(TRIES):
        _begin(life.template, life.folder)
        done = PROGRAM.run(act, life.folder, place, how)
        try:
            check(life.folder, act, _lines(done), recovers=recovers)
        except Exception as error:
            error.add_note(f"{act} at {place} with {how}: {done.code} {_lines(done)[-6:]}")
            raise
        if done.happened or attempt == TRIES - 1:
            return done
    raise AssertionError


def _begin(template: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)


def _lines(done: Done) -> list[str]:
    return [" ".join(words) for words in done.said]


def _is_forgiven(act: str, place: Place, life: Life) -> bool:
    """Check whether nothing is lost by an error that is not reported."""
    name = Path(place.path).name
    # SQLite syncs its folder with fdatasync, and the recorder does it again with fsync.
    is_folder = name == "telemetry" and place.name in {"openat", "fdatasync"}
    # What is in the WAL is committed; it is copied to the database later, and again if that fails.
    is_copied = name == "telemetry.sqlite"
    syncs = [each for each in life.places if each[:2] == ("fdatasync", place.path)]
    is_log = name == "telemetry.sqlite-wal"
    is_copying = is_log and bool(syncs) and place == syncs[-1]
    # After that it is emptied, or else begun again from its start.
    is_emptied = is_log and place.name == "ftruncate"
    # Chunks that were being written when they became unwanted.
    is_unwanted = act.startswith("abort") and (place.name, name) == ("pwrite64", "run.h5")
    # SQLite opens a file for reading if it cannot be opened for writing. Without room for the file
    # that connections share, the database is read without it. `recover` looks at the lock before
    # it takes it.
    is_tried_again = act == "recover" and (place.name, name) in TRIED_AGAIN
    # Readers make the index again if it is missing.
    is_index = "index.json" in name
    is_useless = is_unwanted or is_index or place.name in FORGIVEN
    return is_folder or is_copied or is_copying or is_emptied or is_tried_again or is_useless


def _chosen(found: list[Place]) -> list[Place]:
    """Return all places, or a few of them, with the first and the last."""
    if IS_LONG:
        return found
    return [found[round(number * (len(found) - 1) / (FEW - 1))] for number in range(FEW)]
