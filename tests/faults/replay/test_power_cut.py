"""Whatever a disk holds after a power cut: no synced step is lost, and no row is without arrays.

`RELIVE_REPLAY_CUTS` says how many states are tried (`make faults`: over 2,000), `RELIVE_CUT_SEED`
where the seeds begin. A state that fails says its seed and stays where it is.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.records.programs.cuts import Cut, History, snapshot
from tests.faults.records.programs.syscalls import Call, python, traced
from tests.faults.replay.programs import script
from tests.faults.replay.programs.script import BEFORE
from tests.faults.replay.programs.survivors import Found, check, last

Note = Callable[[str, object], None]
SCRIPT = Path(script.__file__)
CUTS = int(os.environ.get("RELIVE_REPLAY_CUTS", "48"))
SEED = int(os.environ.get("RELIVE_CUT_SEED", "0"))
WHOLE = ("close", "close_again", "abort_new", "abort", "recover")
"""Acts with everything that they do before: a new root, a run that is continued, and so on."""
SECOND = ("resume", "close_again", "abort", "recover")
"""Acts on a run whose recorder was killed."""
EACH = 20
"""How many states are made of a pair of cuts. Half of all states are of whole acts, a quarter
each of those after a kill and after another cut."""
FEW = 20
pytestmark = [pytest.mark.needs("strace"), pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of roots are made here."""
    shared = Path("/dev/shm")  # noqa: S108 (a folder of its own is made there)
    parent = shared if os.access(shared, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="relive-replay-cuts-", dir=parent))
    yield folder
    kept = [*folder.glob("failed-*")]
    for each in folder.iterdir():
        if each not in kept:
            shutil.rmtree(each)
    if not kept:
        folder.rmdir()


@pytest.mark.parametrize("act", WHOLE)
def test_what_is_synced_survives_a_power_cut(act: str, memory: Path, record_property: Note) -> None:
    history = _history(act, memory)
    count = CUTS // 2 // len(WHOLE)
    found = Counter(
        _tried(history.choose(seed), memory, act, seed) for seed in range(SEED, SEED + count)
    )
    _check_differ(found)
    record_property("figure", f"replay: {count} power cuts of {act}, {_told(found)}")


@pytest.mark.parametrize("act", SECOND)
def test_a_run_whose_recorder_was_killed_survives_a_cut(
    act: str, memory: Path, record_property: Note
) -> None:
    # What the first had only written must not be taken for safe by the second.
    folder = _emptied(memory)
    begun = snapshot(folder)
    killed = _calls("record", folder)
    safe = last(_said(killed), "synced", 0)
    second = _calls(act, folder)
    history = History(begun, folder, [*killed, *second])
    history.is_gone_on_with(second[0].start, "")
    count = CUTS // 4 // len(SECOND)
    found = Counter(
        _tried(history.choose(seed, after=second[0].start), memory, act, seed, first=safe)
        for seed in range(SEED, SEED + count)
    )
    _check_differ(found)
    record_property("figure", f"replay: {count} power cuts of {act} after a kill, {_told(found)}")


@pytest.mark.parametrize("act", ["close", "close_again"])
def test_a_run_that_lost_power_survives_the_next_cut(
    act: str, memory: Path, record_property: Note
) -> None:
    history = _history(act, memory)
    pairs = max(1, CUTS // 4 // 2 // EACH)
    found: Counter[Found] = Counter()
    for first in range(SEED, SEED + pairs):
        folder = memory / "life"
        shutil.rmtree(folder)
        history.choose(first).build(folder)
        begun = snapshot(folder)
        calls = _calls("close_again", folder)
        again = History(begun, folder, calls)
        safe = last(_said(calls), "begin", 0)
        for seed in range(min(EACH, max(1, CUTS // 8))):
            about = f"{act}-{first}"
            cut = again.choose(seed)
            found[_tried(cut, memory, "close_again", seed, first=safe, about=about)] += 1
    count = found.total()
    record_property("figure", f"replay: {count} power cuts after one of {act}, {_told(found)}")


def _history(act: str, memory: Path) -> History:
    """Return what an act does to the disk, with what it does before."""
    folder = _emptied(memory)
    if act in BEFORE:
        _calls(BEFORE[act], folder)
    begun = snapshot(folder)
    return History(begun, folder, _calls(act, folder))


def _emptied(memory: Path) -> Path:
    folder = memory / "life"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _calls(act: str, folder: Path) -> list[Call]:
    logs = folder.with_name("logs")
    done, calls = traced(python(SCRIPT, act, folder), logs)
    shutil.rmtree(logs)
    assert done.stdout.endswith("done\n"), done
    return calls


def _said(calls: list[Call]) -> list[str]:
    return [
        line
        for call in calls
        if call.name == "write" and call.fd(0)[0] == "1"
        for line in call.text(1).decode().splitlines()
    ]


def _tried(
    cut: Cut, memory: Path, act: str, seed: int, *, first: int | None = None, about: str = ""
) -> Found:
    """Check one state; return what is in it."""
    state = memory / "state"
    cut.build(state)
    lines = cut.lines()
    try:
        found = check(state, act, lines, "synced", first=first, recovers=seed % 2 == 1)
    except Exception as error:
        kept = state.rename(memory / f"failed-{about}-{act}-{seed}")
        error.add_note(f"{about} {act} with seed {seed}, kept in {kept}; said {lines[-4:]}")
        raise
    shutil.rmtree(state)
    return found


def _check_differ(found: Counter[Found]) -> None:
    # States that are all the same would prove nothing.
    assert len(found) > 1 or found.total() < FEW, found


def _told(found: Counter[Found]) -> str:
    """Return how many different states there were, and in how many the run did not exist yet."""
    absent = sum(count for each, count in found.items() if not each.status)
    return f"{len(found)} different states, {absent} without the run"
