"""What a writer cut off a journal does not come back, whatever the disk makes of the cut."""

import shutil
import sys
from pathlib import Path

import pytest

import relive
from tests.faults.records.programs.cuts import History, snapshot
from tests.faults.records.programs.syscalls import traced

pytestmark = pytest.mark.needs("strace")

# So many that what is written to the journal for them is longer than a page.
ROWS = 300
GO_ON = """
import os, sys, relive
store = relive.RecordStore.open(sys.argv[1], "a", workers=1)
store.extend({"name": ["d" * 20] * int(sys.argv[2])})
store.flush()
os._exit(0)
"""
BEGIN_REBALANCE = """
import sys, relive
relive.RecordStore.open(sys.argv[1], "a", workers=1).rebalance()
"""
REBALANCE_ANEW = """
import os, sys, relive
store = relive.RecordStore.open(sys.argv[1], "a", workers=1)
store[0] = {"name": "z"}
store.sync()
store.rebalance()
os._exit(0)
"""


def names(path: Path) -> str:
    """Give the first letter of every record."""
    with relive.RecordStore.open(path) as store:
        return "".join(name[0] for name in store["name"])


def lost(before: Path, after: Path, path: Path) -> None:
    """Make what was written to the chunk of a store, between two moments, zeros."""
    (chunk,) = (path / "chunk").glob("*.zr")
    old, new = ((each / "chunk" / chunk.name).read_bytes() for each in (before, after))
    old, new = old.ljust(len(new), b"\0"), new.ljust(len(old), b"\0")
    places = [place for place in range(len(old)) if old[place] != new[place]]
    with chunk.open("r+b") as file:
        file.seek(places[0])
        file.write(bytes(places[-1] + 1 - places[0]))


def test_groups_behind_a_cut_do_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    moments = []
    store = relive.RecordStore.create(path, {"name": relive.Field("str")}, workers=1)
    for name in "abc":
        store.extend({"name": [name * 20] * ROWS})
        # The first are safe from a power cut, the others from the end of the process only.
        getattr(store, "sync" if name == "a" else "flush")()
        moments.append(shutil.copytree(path, tmp_path / name))
    store.close()

    # The power goes. All has arrived but the bytes of the second records.
    folder = tmp_path / "folder"
    folder.mkdir()
    cut = shutil.copytree(moments[2], folder / "store")
    lost(moments[0], moments[1], cut)
    assert names(cut) == "a" * ROWS

    # Somebody goes on with records of the same length, and the power goes again.
    begun = snapshot(folder)
    program = [sys.executable, "-c", GO_ON, str(cut), str(ROWS)]
    done, calls = traced(program, tmp_path / "logs")
    assert done.returncode == 0, done
    history = History(begun, folder, calls)
    found = set()
    for seed in range(500):
        history.choose(seed).build(tmp_path / "state")
        found.add(names(tmp_path / "state" / "store"))
        shutil.rmtree(tmp_path / "state")
    assert found == {"a" * ROWS, "a" * ROWS + "d" * ROWS}


def test_an_older_rebalance_does_not_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "store"
    with relive.RecordStore.create(path, {"name": relive.Field("str")}, workers=1) as store:
        store.extend({"name": ["a", "b", "c"]})
    # Killed when all is copied, and not in force yet.
    program = [sys.executable, "-c", BEGIN_REBALANCE, str(path)]
    done, _ = traced(program, tmp_path / "first", killed_at=("rename", 2))
    assert done.returncode == -9, done
    assert (path / "rebalance.json").exists()

    begun = snapshot(folder)
    program = [sys.executable, "-c", REBALANCE_ANEW, str(path)]
    done, calls = traced(program, tmp_path / "second")
    assert done.returncode == 0, done
    history = History(begun, folder, calls)
    found = set()
    for seed in range(150):
        history.choose(seed).build(tmp_path / "state")
        state = tmp_path / "state" / "store"
        before = names(state)
        with relive.RecordStore.open(state, "a") as store:
            store.rebalance()
        assert names(state) == before, seed
        found.add(before)
        shutil.rmtree(tmp_path / "state")
    assert found == {"abc", "zbc"}
