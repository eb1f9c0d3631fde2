"""Whoever records, recovers, edits or copies may be killed, or refused, at any system call.

What was committed is never touched; an episode is committed whole, or unfinished with everything
that was flushed, or not there where it was only begun or is aborted. Every call that changes a
file is tried with `RELIVE_KILLS=all` (`make faults`), and else every few of them.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from relive import episodes as record
from tests.faults.damage import memory_folder
from tests.faults.episodes.programs.check import Files, check, files_of
from tests.faults.episodes.programs.script import (
    ACTS,
    LONE,
    OLD_ROWS,
    OTHER,
    ROOT,
    SIGNALS,
    SPEC,
    STATICS,
    append,
    time_of,
    value,
)
from tests.faults.episodes.programs.syscalls import Done, places_of, run
from tests.faults.records.programs.syscalls import Place

Note = Callable[[str, object], None]
pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout(7200)]

IS_LONG = os.environ.get("RELIVE_KILLS") == "all"
# Which thread makes a call varies, and strace counts for each; then another attempt is made.
TRIES = 4
FEW = 2
SEED = int(os.environ.get("RELIVE_SEED", "1"))
# Removing what is no longer needed is not missed, and a file that grows along with the tape is
# made from the tape again.
FORGIVEN = {"unlink", "unlinkat", "rmdir"}
ERRORS = ("ENOSPC", "EIO") if IS_LONG else ("ENOSPC",)


class Life(NamedTuple):
    """An act: what it begins with, where it is done, and the calls at which it can be stopped."""

    template: Path
    folder: Path
    before: Files
    places: list[Place]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder in memory, where syncing takes no time."""
    with memory_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def lives(place: Path) -> dict[str, Life]:
    """Every act, done to its end."""
    old = place / "old"
    _fill(old / ROOT, 3)
    made = {}
    for act in ACTS:
        folder = shutil.copytree(old, place / "folder")
        _prepare(act, folder)
        template = shutil.copytree(folder, place / act)
        before = files_of(template)
        done, places = places_of(act, folder, place / "logs")
        assert done.last("done") is not None, done
        check(act, folder, done, before)
        shutil.rmtree(folder)
        made[act] = Life(template, folder, before, places)
    return made


def _fill(root: Path, count: int) -> None:
    writer = record.LocalDatasetWriter(root, signals={"cam": SPEC})
    for _ in range(count):
        with writer.new_episode() as episode:
            for name, static in STATICS.items():
                episode.set_static(name, static)
            episode.describe("state", unit="rad")
            append(episode, range(OLD_ROWS))


def _prepare(act: str, folder: Path) -> None:
    """Make what an act begins with."""
    if act == "recover":
        for number in range(2):
            done = run("leave", folder, alone=f"left{number}")
            assert done.code == -9
            assert done.number("safe") == 8
        shutil.copytree(
            folder / ROOT / "000000000000" / "000000000003",
            folder / ROOT / "000000000000" / ".aborted.copy.1",
        )
    elif act == "merge":
        _fill(folder / OTHER, 1)
        edits = record.LocalDataset(folder / ROOT).edits
        first, second, third = (episode.uid for episode in record.LocalDataset(folder / ROOT))
        edits.drop(first)
        edits.cut(second, time_of(2))
        edits.drop(third)
    elif act == "replace":
        (folder / LONE).mkdir()
        with record.SimpleSignalWriter(folder / LONE / "state.parquet") as state:
            for number in range(OLD_ROWS):
                state.append(value("state", number), time_of(number))
        with record.VideoSignalWriter(folder / LONE / "cam.mp4", spec=SPEC) as cam:
            for number in range(OLD_ROWS):
                cam.append(value("cam", number), time_of(number))


@pytest.mark.parametrize("act", ACTS)
def test_killed_at_any_call(act: str, lives: dict[str, Life], record_property: Note) -> None:
    chosen = _chosen(lives[act].places)
    killed = 0
    for each in chosen:
        done = _stopped(act, lives[act], each, "signal=KILL")
        assert done.code == (-9 if done.happened else 0), (each, done)
        killed += done.happened
    assert killed >= 0.8 * len(chosen) - 1
    record_property("figure", f"episodes: {act} killed at {killed} of {len(chosen)} calls")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("act", ACTS)
def test_refused_at_any_call(
    act: str, error: str, lives: dict[str, Life], record_property: Note
) -> None:
    chosen = _chosen(lives[act].places)
    found: Counter[str] = Counter()
    for each in chosen:
        done = _stopped(act, lives[act], each, f"error={error}")
        assert done.code == 0, (each, done)
        failed = done.last("failed")
        assert failed or not done.happened or _is_forgiven(each, done), (each, done)
        if failed:
            assert failed[:2] == ["StorageError", "io"], (each, failed)
            assert _is_named(failed[2:], lives[act].folder), (each, failed)
        found["failed" if failed else "forgiven" if done.happened else "missed"] += 1
    assert found["missed"] <= 0.2 * len(chosen) + 1
    record_property("figure", f"episodes: {act} with {error} at {len(chosen)} calls: {dict(found)}")


def test_every_act_uses_every_way_to_lose_something(lives: dict[str, Life]) -> None:
    names = Counter(each.name for life in lives.values() for each in life.places)
    assert {"fdatasync", "fsync", "rename", "link", "unlink", "mkdir", "openat"} <= names.keys()
    assert {"pwrite64", "write", "rmdir", "unlinkat"} <= names.keys()
    assert names.total() > 400


def _stopped(act: str, life: Life, place: Place, how: str) -> Done:
    """Let something happen at a call, and see that all is well then."""
    tries = TRIES
    while True:
        tries -= 1
        shutil.rmtree(life.folder, ignore_errors=True)
        shutil.copytree(life.template, life.folder)
        done = run(act, life.folder, place, how)
        try:
            check(act, life.folder, done, life.before)
        except Exception as error:
            error.add_note(f"{act}, {how} at {place}, said {done.said[-3:]}")
            raise
        if done.happened or not tries:
            return done


def _is_forgiven(place: Place, done: Done) -> bool:
    """Whether nobody needs to be told: all that was to be done is done without the call."""
    is_tape, is_video = place.path.endswith(".tape"), place.path.endswith("cam.mp4.tape")
    # The thread that syncs tapes also syncs the directory, for their names.
    is_folder = place.name == "fsync" and not Path(place.path).suffix
    if done.last("aborted") is not None and (is_tape or is_folder):
        return True
    # The movie has all that its tape was to hold.
    if is_video and (done.last("closed") is not None):
        return True
    return place.name in FORGIVEN or place.path.endswith("big.parquet.part")


def _is_named(words: list[str], folder: Path) -> bool:
    text = " ".join(words)
    return str(folder) in text or any(f"'{name}'" in text for name in SIGNALS)


def _chosen(found: list[Place]) -> list[Place]:
    """Give all of them, or a few."""
    rng = random.Random(SEED)  # noqa: S311 - places, not secrets
    return found if IS_LONG else rng.sample(found, min(FEW, len(found)))
