"""A small record store with any bit flipped, any file cut, gone or exchanged: never a wrong value.

Everything that is read is right or a typed error, and `validate` at the level `full` reports a
problem. `RELIVE_BITS` is how many bits and lengths of each file are tried (`make faults`: all).
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import Field, RecordStore
from relive.errors import NotFoundError, ReliveError
from relive.store.records import validate
from tests.faults.damage import cuts, exchanges, flips, losses, memory_folder

pytestmark = pytest.mark.timeout(7200)
Note = Callable[[str, object], None]
Reading = dict[tuple[str, int] | str, Any]

ROWS = 12
FIELDS = {"state": Field("u1", (5,)), "text": Field("str", codec="zstd")}
# `LOCK` and an empty list of checksums are missing here.
FILES = ("chunk/0.zr", "chunk/1.zr", "meta.json", "state.2.offset", "text.2.offset", "text.1.dict")


def create(path: Path, number: int = 0) -> RecordStore:
    """Create a store with a dense and a compressed field, changed values and a dictionary."""
    store = RecordStore.create(path, FIELDS, workers=1)
    state = np.arange(ROWS * 5, dtype=np.uint8).reshape(ROWS, 5) + number
    store.extend(
        {"state": state, "text": [f"text {number} {row * row} " * 6 for row in range(ROWS)]}
    )
    store.train_dictionary("text", 256)
    store["text"][3] = "changed" * 9
    store["state"][2] = np.full(5, 99 - number, np.uint8)
    return store


def read(path: Path) -> Reading:
    """Read every value of a store, and leave out what raises a typed error."""
    found: Reading = {}
    try:
        store = RecordStore.open(path)
    except ReliveError:
        return found
    with store:
        found["length"] = len(store)
        found["fields"] = repr(store.fields)
        for name in FIELDS:
            for row in range(len(store)):
                try:
                    value = store.gather([row], [name])[name][0]
                except ReliveError:
                    continue
                found[name, row] = value if isinstance(value, str) else value.tolist()
    return found


class Closed:
    """A store that was closed, another one, and the files of both."""

    def __init__(self, folder: Path) -> None:
        self.path, other = folder / "store", folder / "other"
        create(self.path).close()
        create(other, 1).close()
        self.files = [self.path / name for name in FILES]
        self.others = [other / name for name in FILES]
        empty = {self.path / "LOCK", self.path / "chunk/0.crc"}
        assert {each for each in self.path.rglob("*") if each.is_file()} - empty == {*self.files}
        self._right = read(self.path)
        assert len(self._right) == 2 + 2 * ROWS

    def check(self, damage: str) -> None:
        """Check that all that is read is right, and that validation reports a problem."""
        for what, value in read(self.path).items():
            assert value == self._right.get(what), (damage, what)
        if damage == "meta.json is gone":
            with pytest.raises(NotFoundError, match="is not a record store"):
                validate(self.path, "full")
        else:
            assert validate(self.path, "full").problems, damage


@pytest.fixture(scope="module")
def closed() -> Iterator[Closed]:
    with memory_folder() as folder:
        store = Closed(folder)
        yield store
        assert validate(store.path, "full").ok


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit(closed: Closed, name: str, record_property: Note) -> None:
    count = 0
    for damage in flips(closed.path / name):
        closed.check(damage)
        count += 1
    record_property("figure", f"records: {count} bits of {name}: all found")


@pytest.mark.parametrize("name", FILES)
def test_every_shorter_missing_and_exchanged_file(closed: Closed, name: str) -> None:
    path, number = closed.path / name, FILES.index(name)
    others = [each for each in closed.files if each != path]
    for damages in (cuts(path), losses(path), exchanges(path, [*others, closed.others[number]])):
        for damage in damages:
            closed.check(damage)


def test_every_bit_and_length_of_a_journal() -> None:
    """A process was killed: a store is found as it was after some call, or there is an error."""
    with memory_folder() as folder:
        store = create(folder / "live")
        store.sync()
        states = [read(folder / "live")]
        store["state"][0] = np.full(5, 50, np.uint8)
        store.extend({"state": np.full((1, 5), 51, np.uint8), "text": ["last"]})
        store.flush()
        states.append(read(folder / "live"))
        path = shutil.copytree(folder / "live", folder / "killed")
        store.close()
        (journal,) = path.glob("*.journal")
        assert read(path) == states[1]
        assert len(states[1]) == len(states[0]) + 2
        for damages in (flips(journal), cuts(journal)):
            for damage in damages:
                found = read(path)
                assert not found or any(_is_part(found, state) for state in states), damage


def test_every_byte_after_the_last_sync() -> None:
    """Bytes that did not arrive on the disk: what was not synced is dropped, and all is well."""
    with memory_folder() as folder:
        store = create(folder / "live")
        store.sync()
        synced = read(folder / "live")
        before = (folder / "live/chunk/1.zr").read_bytes()
        texts = ["a" * length for length in range(1, 20)]
        store.extend({"state": np.zeros((len(texts), 5), np.uint8), "text": texts})
        store.flush()
        path = shutil.copytree(folder / "live", folder / "killed")
        store.close()
        chunk = path / "chunk/1.zr"
        after = chunk.read_bytes()
        assert len(read(path)) > len(synced)
        added = [at for at, byte in enumerate(after) if before[at : at + 1] != bytes([byte])]
        for at in range(added[0], added[-1] + 1):  # with the zeros between values
            damaged = bytearray(after)
            damaged[at] ^= 0x40
            chunk.write_bytes(damaged)
            assert read(path) == synced, at
            assert validate(path, "full").ok, at


def _is_part(found: Reading, state: Reading) -> bool:
    return found["length"] == state["length"] and found.items() <= state.items()
