"""A compaction that is killed, loses power, or whose disk fails, loses nothing of its run.

With `RELIVE_KILLS=all` (`make faults`) it is stopped at every call. `RELIVE_REPLAY_CUTS` says how
many power cuts there are, `RELIVE_CUT_SEED` where their seeds begin.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.faults.attached import Done, Program
from tests.faults.damage import memory_folder
from tests.faults.records.programs.cuts import Cut, History, snapshot
from tests.faults.records.programs.syscalls import Call, Place, python, traced
from tests.faults.replay.programs import compaction
from tests.faults.replay.programs.compaction import (
    ACTS,
    COMPACTIONS,
    STOPPED,
    check,
    record_run,
)
from tests.faults.replay.programs.script import ROOT, RUN
from tests.faults.replay.programs.survivors import unused_commits

Note = Callable[[str, object], None]
IS_LONG = os.environ.get("RELIVE_KILLS") == "all"
FEW_CUTS = 60
CUTS = int(os.environ.get("RELIVE_REPLAY_CUTS", str(FEW_CUTS)))
SEED = int(os.environ.get("RELIVE_CUT_SEED", "0"))
FEW = 4
TRIES = 3
SCRIPT = Path(compaction.__file__)
PROGRAM: Final = Program(compaction.play, [compaction.__name__])
FORGIVEN = frozenset({"fallocate", "sync_file_range", "mkdir"})
"""Calls without which nothing is lost; `mkdir` of a folder that exists."""
pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout(3600)]


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


@pytest.fixture(scope="module")
def recorded(memory: Path) -> Path:
    """A folder with a closed run."""
    folder = memory / "recorded"
    folder.mkdir()
    record_run(folder / ROOT)
    return folder


@pytest.fixture(scope="module", params=ACTS)
def act(request: pytest.FixtureRequest) -> str:
    """The name of an act."""
    return str(request.param)


@pytest.fixture(scope="module")
def life(act: str, recorded: Path, memory: Path) -> Life:
    """What an act begins with, and what it does."""
    folder, template = memory / "life", memory / f"before-{act}"
    _begin(recorded, folder)
    if act not in COMPACTIONS:
        _stop_compaction(folder, memory, *STOPPED[{"resume": "finish"}.get(act, act)])
    shutil.copytree(folder, template)
    done, places = PROGRAM.places_of(act, folder, memory / "logs")
    assert done.last("done") is not None, done
    assert "replacing" not in check(folder, 0)
    return Life(template, folder, places)


def test_killed_at_any_call(act: str, life: Life, record_property: Note) -> None:
    chosen = _chosen(life.places)
    found: Counter[str] = Counter()
    killed = 0
    for number, place in enumerate(chosen):
        done, state = _stopped(act, life, place, "signal=KILL", number)
        assert done.code == (-9 if done.happened else 0), (place, done)
        killed += done.happened
        found[state] += 1
    assert killed >= len(chosen) - max(1, len(chosen) // 10)
    assert len(found) > 1 or not IS_LONG
    record_property(
        "figure", f"replay: {act} killed at {killed} of {len(chosen)} calls, {dict(found)}"
    )


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_disk_that_fails_at_any_call(
    act: str, error: str, life: Life, record_property: Note
) -> None:
    chosen = _chosen(life.places)
    failed = met = 0
    for number, place in enumerate(chosen):
        done, _ = _stopped(act, life, place, f"error={error}", number)
        assert done.code == 0, (place, done)
        has_failed = done.last("failed") is not None
        is_forgiven = _is_forgiven(place, life.places)
        assert has_failed or not done.happened or is_forgiven, (place, done)
        failed += has_failed
        met += done.happened
    assert met >= len(chosen) - max(1, len(chosen) // 10)
    record_property(
        "figure", f"replay: {act} met {error} at {met} of {len(chosen)} calls, {failed} reported"
    )


def test_power_cuts(recorded: Path, memory: Path, record_property: Note) -> None:
    folder = memory / "cut"
    _begin(recorded, folder)
    history = History(snapshot(folder), folder, _calls("compact", folder))
    count = max(1, CUTS // 6)
    found = Counter(
        _tried(history.choose(seed), memory, "compact", seed) for seed in range(SEED, SEED + count)
    )
    assert len(found) > 1, found  # states that are all the same would prove nothing
    record_property("figure", f"replay: {count} power cuts of a compaction, {dict(found)}")


@pytest.mark.parametrize("second", ["finish", "resume", "compact"])
def test_power_cuts_after_a_kill(
    second: str, recorded: Path, memory: Path, record_property: Note
) -> None:
    # What the first had only written must not be taken for safe by the second.
    folder = memory / "killed"
    _begin(recorded, folder)
    begun = snapshot(folder)
    whole = _calls("compact", folder)
    count = max(1, CUTS // 15)
    found: Counter[str] = Counter()
    syncs = _last_syncs(whole)
    for number in syncs if CUTS > FEW_CUTS else syncs[:1]:
        _begin(recorded, folder)
        first = _calls("compact", folder, killed_at=("fdatasync", number))
        calls = _calls(second, folder)
        history = History(begun, folder, [*first, *calls])
        for seed in range(SEED, SEED + count):
            cut = history.choose(seed, after=calls[0].start)
            found[_tried(cut, memory, f"{second}-after-{number}", seed)] += 1
    record_property(
        "figure", f"replay: {found.total()} power cuts of {second} after a kill, {dict(found)}"
    )


def _last_syncs(calls: list[Call]) -> list[int]:
    """Return the numbers of the syncs of the journal around the renaming of the new file."""
    names = [call.name for call in calls]
    renamed = names.index("rename")
    syncs = [place for place, name in enumerate(names) if name == "fdatasync"]
    journal = [place for place in syncs if calls[place].paths()[0].endswith("-wal")]
    before = max(place for place in journal if place < renamed)
    after = min(place for place in journal if place > renamed)
    return [syncs.index(before) + 1, syncs.index(after) + 1]


def _calls(act: str, folder: Path, *, killed_at: tuple[str, int] | None = None) -> list[Call]:
    logs = folder.with_name("logs")
    done, calls = traced(python(SCRIPT, act, folder), logs, killed_at=killed_at)
    shutil.rmtree(logs)
    if killed_at is None:
        assert done.stdout.endswith("done\n"), done
    else:
        assert done.returncode == -9, done
    return calls


def _tried(cut: Cut, memory: Path, about: str, seed: int) -> str:
    """Check one state; return what is in it."""
    state = memory / "state"
    cut.build(state)
    try:
        with unused_commits():
            found = check(state, seed, is_cut=True)
    except Exception as error:
        kept = state.rename(memory.with_name(f"failed-{about}-{seed}"))
        error.add_note(f"{about} with seed {seed}, kept in {kept}")
        raise
    shutil.rmtree(state)
    return found


def _stop_compaction(folder: Path, memory: Path, name: str, path: str) -> None:
    """Kill a compaction at a call."""
    template = shutil.copytree(folder, memory / "template")
    done, places = PROGRAM.places_of("compact", folder, memory / "logs")
    assert done.last("done") is not None, done
    _begin(template, folder)
    shutil.rmtree(template)
    place = next(each for each in places if (each.name, Path(each.path).name) == (name, path))
    assert PROGRAM.run("compact", folder, place, "signal=KILL").happened


def _stopped(act: str, life: Life, place: Place, how: str, number: int) -> tuple[Done, str]:
    """Let something happen at a call, and check the run then."""
    tries = 0
    while True:
        _begin(life.template, life.folder)
        done = PROGRAM.run(act, life.folder, place, how)
        try:
            found = check(life.folder, number)
        except Exception as error:
            error.add_note(f"{act} at {place} with {how}: {done}")
            raise
        tries += 1
        if done.happened or tries == TRIES:
            return done, found


def _begin(template: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)


def _is_forgiven(place: Place, places: list[Place]) -> bool:
    """Check whether nothing is lost without a call."""
    name = Path(place.path).name
    alike = [each for each in places if (each.name, each.path) == (place.name, place.path)]
    is_last = place == alike[-1]
    # SQLite syncs its folder, and ignores errors of that; `Database` does it again.
    is_folder = place.name == "fdatasync" and name == "telemetry"
    # SQLite opens a file again in another way, if it cannot be opened, and leaves a journal that
    # it cannot remove.
    is_opened = place.name in {"openat", "unlink"} and "telemetry" in place.path
    # What is in the WAL is committed; it is copied to the database later, and again if that fails.
    is_copied = name == "telemetry.sqlite" or (name.endswith("-wal") and is_last)
    # The lock has the number of the process for a message only.
    is_told = name == f".{RUN}.lock"
    # Other programs may use the index, which the next recorder writes again.
    is_index = "index.json" in name
    # Nothing is kept in the memory that connections share.
    is_shared = name.endswith("-shm")
    is_any = place.name in FORGIVEN
    return is_folder or is_opened or is_copied or is_told or is_index or is_shared or is_any


def _chosen(found: list[Place]) -> list[Place]:
    """Return all places, or a few of them, with the first and the last."""
    if IS_LONG:
        return found
    return [found[round(number * (len(found) - 1) / (FEW - 1))] for number in range(FEW)]
