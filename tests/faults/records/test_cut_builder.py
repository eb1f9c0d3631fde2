"""The states that are built for power cuts find what is wrong, and nothing where nothing is."""

import shutil
from pathlib import Path

import pytest

from tests.faults.records.programs import toy as records_toy
from tests.faults.records.programs.cuts import History, snapshot
from tests.faults.records.programs.syscalls import places, python, stopped, traced

pytestmark = pytest.mark.needs("strace")

TOY = Path(records_toy.__file__)


def history_of(how: str, folder: Path) -> History:
    folder.mkdir()
    before = snapshot(folder)
    done, calls = traced(python(TOY, how, folder), folder.with_name("logs"))
    assert done.returncode == 0, done
    return History(before, folder, calls)


def broken(history: History, seed: int, state: Path) -> str | None:
    """Say what is wrong with one state, if something is."""
    cut = history.choose(seed)
    cut.build(state)
    safe = max((int(line.split()[1]) for line in cut.lines()), default=0)
    try:
        found = records_toy.read(state)
        assert found >= safe, (found, safe)
    except (AssertionError, OSError, ValueError) as error:
        return repr(error)
    finally:
        shutil.rmtree(state)
    return None


def test_a_sound_program_survives(tmp_path: Path) -> None:
    history = history_of("sound", tmp_path / "toy")
    assert len(history.moments) > 50
    for seed in range(400):
        assert broken(history, seed, tmp_path / "state") is None, seed


@pytest.mark.parametrize("how", records_toy.PLANTED)
def test_a_planted_fault_is_found(how: str, tmp_path: Path) -> None:
    history = history_of(how, tmp_path / "toy")
    assert any(broken(history, seed, tmp_path / "state") for seed in range(400))


def test_states_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    history = history_of("data-not-synced", tmp_path / "toy")
    seen = set()
    for seed in range(40):
        states = []
        for name in ("one", "two"):
            history.choose(seed).build(tmp_path / name)
            files = sorted((tmp_path / name).iterdir())
            states.append(tuple((path.name, path.read_bytes()) for path in files))
            shutil.rmtree(tmp_path / name)
        assert states[0] == states[1]
        seen.add(states[0])
    assert len(seen) > 20


def test_the_last_moment_has_everything_that_was_synced(tmp_path: Path) -> None:
    history = history_of("sound", tmp_path / "toy")
    states = set()
    for seed in range(300):
        cut = history.choose(seed)
        if len(cut.lines()) == records_toy.VALUES:
            cut.build(tmp_path / "state")
            states.add(records_toy.read(tmp_path / "state"))
            shutil.rmtree(tmp_path / "state")
    assert states == {records_toy.VALUES}


def test_a_program_is_stopped_where_it_was_told(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    program = python(TOY, "sound", folder)
    _, calls = traced(program, tmp_path / "logs")
    found = places(calls, folder)
    assert len(found) > 50
    assert len(set(found)) == len(found)
    for place in found[3::17]:
        shutil.rmtree(folder)
        folder.mkdir()
        killed, happened = stopped(program, place, "signal=KILL", tmp_path / "log")
        assert happened, place
        said = killed.stdout.split()
        assert records_toy.read(folder) >= (int(said[-1]) if said else 0), place
