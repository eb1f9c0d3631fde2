"""Whatever a disk holds after a power cut, nothing that was synced is lost and nothing is wrong.

`RELIVE_CUTS` says how many states are tried (`make faults`: over 10,000), `RELIVE_CUT_SEED` where
the seeds begin. A state that fails says its seed and stays where it is.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import relive
from tests.faults.records.programs import check as records_check
from tests.faults.records.programs import script as records_script
from tests.faults.records.programs.cuts import Cut, History, snapshot
from tests.faults.records.programs.model import State
from tests.faults.records.programs.script import (
    ACTS,
    STORE,
    all_states,
    before,
    ops_of,
    states_again,
)
from tests.faults.records.programs.syscalls import Call, python, traced

Note = Callable[[str, object], None]
pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout(3600)]

SCRIPT = Path(records_script.__file__)
CUTS = int(os.environ.get("RELIVE_CUTS", "300"))
SEED = int(os.environ.get("RELIVE_CUT_SEED", "0"))
STATES = all_states()
# Half of the states are of one writer; a quarter each of two, between which the power went
# or the first was killed. So many are made of each pair.
EACH = 25


class Life(NamedTuple):
    """An act: the folder that it begins with, and what it does."""

    start: Path
    history: History
    fsyncs: list[int]


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of stores are made here."""
    shared = Path("/dev/shm")  # noqa: S108 (a folder of its own is made there)
    parent = shared if os.access(shared, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="relive-cuts-", dir=parent))
    yield folder
    # What failed is kept for whoever looks for the reason.
    kept = [*folder.glob("failed-*")]
    for each in folder.iterdir():
        if each not in kept:
            shutil.rmtree(each)
    if not kept:
        folder.rmdir()


@pytest.fixture(scope="module")
def lives(memory: Path) -> dict[str, Life]:
    """What each act does to the disk."""
    folder = memory / "life"
    folder.mkdir()
    made = {}
    for act in ACTS:
        start = shutil.copytree(folder, memory / f"start-{act}")
        calls = _run(act, folder)
        made[act] = Life(start, History(snapshot(start), folder, calls), _fsyncs(calls))
    shutil.rmtree(folder)
    return made


def _fsyncs(calls: list[Call]) -> list[int]:
    """Give the numbers of all fsyncs, those that make a rename last first."""
    names = [call.name for call in calls if call.name in {"fsync", "rename"}]
    places = [place for place, name in enumerate(names) if name == "fsync"]
    is_last = {place: place > 0 and names[place - 1] == "rename" for place in places}
    numbers = {place: number for number, place in enumerate(places, 1)}
    return [numbers[place] for place in sorted(places, key=lambda one: (not is_last[one], -one))]


def _run(
    act: str, folder: Path, *there: int, killed_at: tuple[str, int] | None = None
) -> list[Call]:
    """Let the script do an act; give its calls, none where it was not killed as it should."""
    logs = folder.with_name("logs")
    try:
        done, calls = traced(python(SCRIPT, act, folder, *there), logs, killed_at=killed_at)
    finally:
        shutil.rmtree(logs)
    if killed_at:
        return calls if done.returncode == -9 else []
    assert done.stdout.endswith("done\n"), done
    return calls


@pytest.mark.parametrize("act", ACTS)
def test_what_is_synced_survives_a_power_cut(
    act: str, lives: dict[str, Life], memory: Path, record_property: Note
) -> None:
    wanted = (len(ops_of(*before(act))), STATES)
    count = CUTS // 2 // len(ACTS)
    lost = sum(
        _tried(lives[act].history.choose(seed), memory, f"{act}-{seed}", wanted)
        for seed in range(SEED, SEED + count)
    )
    # States in which nothing is lost would prove nothing.
    assert lost > count // 20
    record_property("figure", f"records: {count} power cuts of {act}, {lost} with a loss")


@pytest.mark.parametrize("act", ACTS)
def test_a_store_that_lost_power_survives_the_next_cut(
    act: str, lives: dict[str, Life], memory: Path, record_property: Note
) -> None:
    # What is done then has the shape of what was lost, so that nothing of it may come back.
    folder = memory / "again"
    tried = 0
    for first in range(SEED, SEED + _pairs()):
        shutil.rmtree(folder, ignore_errors=True)
        lives[act].history.choose(first).build(folder)
        there = _there(folder, act)
        if there is not None:
            begun = snapshot(folder)
            history = History(begun, folder, _run(act, folder, there))
            wanted = (there, states_again(act, there))
            for seed in range(EACH):
                _tried(history.choose(seed), memory, f"{act}-{first}-{seed}", wanted)
                tried += 1
    record_property("figure", f"records: {tried} power cuts of {act} behind another")


@pytest.mark.parametrize("act", ACTS)
def test_a_store_whose_writer_was_killed_survives_a_cut(
    act: str, lives: dict[str, Life], memory: Path, record_property: Note
) -> None:
    # What the first had only written, and renamed, must not be taken for safe by the second.
    folder = memory / "killed"
    tried = 0
    least = len(ops_of(*before(act)))
    for pair in range(_pairs()):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(lives[act].start, folder)
        begun = snapshot(folder)
        number = lives[act].fsyncs[pair % len(lives[act].fsyncs)]
        first = _run(act, folder, killed_at=("fsync", number))
        there = _there(folder, act)
        if first and there is not None:
            second = _run(act, folder, there)
            history = History(begun, folder, [*first, *second])
            history.is_gone_on_with(second[0].start, f"op {there}")
            wanted = (least, states_again(act, there))
            for seed in range(EACH):
                cut = history.choose(seed, after=second[0].start)
                _tried(cut, memory, f"{act}-killed-{number}-{seed}", wanted)
                tried += 1
    record_property("figure", f"records: {tried} power cuts of {act} behind a kill")


def _pairs() -> int:
    return max(CUTS // 4 // len(ACTS) // EACH, 1)


def _there(folder: Path, act: str) -> int | None:
    """Give how many operations a store has; none where it was not made yet."""
    if not (folder / STORE / "meta.json").exists():
        return None
    least = len(ops_of(*before(act)))
    return records_check.survived(folder / STORE, STATES, least, len(STATES))


def _tried(cut: Cut, memory: Path, about: str, wanted: tuple[int, list[State]]) -> bool:
    """See that one state is right; whether something was lost in it that had been done.

    `wanted` is how many operations were safe before, and the states after each.
    """
    state = memory / "state"
    cut.build(state)
    try:
        lost = _check(cut, state / STORE, *wanted, about)
    except Exception as error:
        kept = state.rename(memory / f"failed-{about}")
        error.add_note(f"{about}, kept in {kept}; said {cut.lines()}")
        raise
    shutil.rmtree(state)
    return lost


def _check(cut: Cut, path: Path, begun: int, wanted: list[State], about: str) -> bool:
    lines = "\n".join(cut.lines())
    least = records_check.said(lines, "synced", begun)
    done = records_check.said(lines, "op", begun)
    if begun == 0 and "synced" not in lines and not (path / "meta.json").exists():
        with pytest.raises(relive.errors.NotFoundError):
            relive.RecordStore.open(path)
        records_check.can_be_made(path)
        return done > 0
    found = records_check.survived(path, wanted, least, done + 1)
    if about.endswith(("0", "5")):
        records_check.goes_on(path, wanted[found], rebalances=about.startswith("rebalance"))
    return found < done
