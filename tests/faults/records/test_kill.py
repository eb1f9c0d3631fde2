"""A store whose writer is killed, or whose disk fails, at any system call is as after k operations.

No fewer than had been flushed. Every call that changes a file is tried with `RELIVE_KILLS=all`
(`make faults`), and else every few of them.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import relive
from tests.faults.records.programs import check as records_check
from tests.faults.records.programs import script as records_script
from tests.faults.records.programs.script import ACTS, STORE, all_states, before, ops_of
from tests.faults.records.programs.syscalls import CHANGING, Place, places, python, stopped, traced

Note = Callable[[str, object], None]
pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout(3600)]

SCRIPT = Path(records_script.__file__)
# Removing what is no longer needed is not missed when it fails, and room ahead is a favour.
FORGIVEN = {"unlink", "unlinkat", "rmdir", "fallocate", "ftruncate"}
STATES = all_states()
# Whether a call is hit depends on which thread makes it; then another attempt is made.
TRIES = 3


class Life(NamedTuple):
    """An act: what it begins with, where it is done, and the calls at which it can be stopped."""

    template: Path
    folder: Path
    places: list[Place]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Life]:
    """Every act, done to its end."""
    root = tmp_path_factory.mktemp("kills")
    folder = root / "folder"
    folder.mkdir()
    made = {}
    for act in ACTS:
        template = shutil.copytree(folder, root / act)
        done, calls = traced(python(SCRIPT, act, folder), root / f"{act}-logs")
        assert done.stdout.endswith("done\n"), done
        made[act] = Life(template, folder, places(calls, folder, CHANGING))
        copy = shutil.copytree(folder, root / "copy")
        assert _check(copy, act, done.stdout, "the end") == len(ops_of(*before(act), act))
        shutil.rmtree(copy)
    shutil.rmtree(folder)
    return made


@pytest.mark.parametrize("act", ACTS)
def test_killed_at_any_call(act: str, lives: dict[str, Life], record_property: Note) -> None:
    chosen = _chosen(lives[act].places, every=30)
    killed = 0
    for place in chosen:
        done, happened = _stopped(act, lives[act], place, "signal=KILL")
        assert done.returncode == (-9 if happened else 0), (place, done)
        killed += happened
    # Which thread makes a call varies, so some places are missed.
    assert killed >= len(chosen) - max(1, len(chosen) // 5)
    record_property("figure", f"records: {act} killed at {killed} of {len(chosen)} calls")


@pytest.mark.parametrize("act", ACTS)
def test_disk_that_is_full_at_any_call(
    act: str, lives: dict[str, Life], record_property: Note
) -> None:
    chosen = _chosen(lives[act].places, every=40)
    failed = 0
    for place in chosen:
        done, happened = _stopped(act, lives[act], place, "error=ENOSPC")
        assert done.returncode == 0, (place, done)
        last = done.stdout.split()[-1]
        assert last == "failed" or not happened or place.name in FORGIVEN, (place, done)
        failed += last == "failed"
    assert failed >= 0.3 * len(chosen)
    record_property("figure", f"records: {act} refused room at {failed} of {len(chosen)} calls")


def _stopped(
    act: str, life: Life, place: Place, how: str
) -> tuple[subprocess.CompletedProcess[str], bool]:
    """Let something happen at a call, and see that the store is whole then."""
    tries = TRIES
    while True:
        tries -= 1
        shutil.rmtree(life.folder, ignore_errors=True)
        shutil.copytree(life.template, life.folder)
        program = python(SCRIPT, act, life.folder)
        done, happened = stopped(program, place, how, life.folder.with_name("log"))
        _check(life.folder, act, done.stdout, (place, how))
        if happened or not tries:
            return done, happened


def test_every_act_uses_every_way_to_lose_something(lives: dict[str, Life]) -> None:
    for act, life in lives.items():
        names = {place.name for place in life.places}
        assert {"fdatasync", "fsync", "rename", "unlink", "ftruncate"} <= names, act
        assert names & {"pwrite64", "pwritev"}, act
        assert len(life.places) > 50
    assert len(ops_of(*ACTS)) > 30


def _chosen(found: list[Place], *, every: int) -> list[Place]:
    """Give the first, the last, and every so manieth of them, or all."""
    step = 1 if os.environ.get("RELIVE_KILLS") == "all" else every
    kept = sorted({*range(0, len(found), step), len(found) - 1})
    return [found[place] for place in kept]


def _check(folder: Path, act: str, lines: str, about: object) -> int:
    """See that nothing is lost of what the script said is safe, and give k."""
    path = folder / STORE
    begun = len(ops_of(*before(act)))
    least = records_check.said(lines, "safe", begun)
    most = records_check.said(lines, "op", begun) + 1
    if act == "write" and "begin" not in lines and not (path / "meta.json").exists():
        with pytest.raises(relive.errors.NotFoundError):
            relive.RecordStore.open(path)
        records_check.can_be_made(path)
        return 0
    try:
        found = records_check.survived(path, STATES, least, most)
        records_check.goes_on(path, STATES[found], rebalances=act == "rebalance")
    except Exception as error:
        error.add_note(f"{act} at {about}, said {lines.split()[-2:]}, kept in {folder}")
        raise
    return found
