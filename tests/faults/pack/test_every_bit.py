"""A small pack with any bit flipped or any bytes cut off: never a wrong payload.

Everything that is read is right or a typed error, and `validate` at the level `full` reports a
problem. An unfinished pack keeps what recovery cannot use. `RELIVE_BITS` is how many bits and
lengths of each file are tried (`make faults`: all).
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import relive
from relive.errors import ReliveError
from relive.store.pack import recover, validate
from tests.faults.damage import cuts, exchanges, flips, losses, memory_folder
from tests.store.pack.packs import make_runs

pytestmark = pytest.mark.timeout(7200)
Note = Callable[[str, object], None]
Reading = dict[str, Any]

PAYLOADS = [b"", b"one", bytes(range(200)), b"text " * 40]


def begin(path: Path, codec: str) -> relive.PackWriter:
    """Append entries of all kinds, with names and a table of steps."""
    writer = relive.PackWriter(path, codec=codec, steps=True, align=64, capacity=8)
    for number, run in enumerate(make_runs(3)):
        writer.append(run, "v2", name=f"run-{number}")
    for number, payload in enumerate(PAYLOADS):
        writer.append(payload, name=f"bytes-{number}")
    return writer


def read(path: Path) -> Reading:
    """Read all of a pack, and leave out what raises a typed error."""
    found: Reading = {}

    def attempt(what: str, call: Callable[[], Any]) -> None:
        try:
            found[what] = call()
        except ReliveError:
            return

    try:
        reader = relive.PackReader.open(path)
    except ReliveError:
        return found
    with reader:
        found["length"] = len(reader)
        attempt("names", lambda: [reader.name(position) for position in range(len(reader))])
        for position in range(len(reader)):
            attempt(f"payload {position}", partial(_payload, reader, position))
            attempt(f"kind {position}", partial(reader.kind, position))
            attempt(f"entry {position}", partial(_entry, reader, position))
    return found


def _payload(reader: relive.PackReader, position: int) -> bytes:
    return bytes(reader.payload(position))


def _entry(reader: relive.PackReader, position: int) -> str:
    return repr(reader[position])


def test_every_bit_and_length_of_a_pack(record_property: Note) -> None:
    with memory_folder() as folder:
        path = folder / "pack"
        begin(path, "zstd").close()
        right = read(path)
        assert len(right) == 2 + 3 * (3 + len(PAYLOADS))
        count = 0
        for damages in (flips(path), cuts(path)):
            for damage in damages:
                for what, value in read(path).items():
                    assert value == right.get(what), (damage, what)
                assert validate(path, "full").problems, damage
                count += 1
        assert validate(path, "full").ok
        record_property("figure", f"packs: {count} bits and lengths of a pack: all found")


def test_every_bit_and_length_of_an_unfinished_pack(record_property: Note) -> None:
    with memory_folder() as folder:
        live = folder / "live"
        live.mkdir()
        writer = begin(live / "pack", "raw")
        writer.flush()
        killed = shutil.copytree(live, folder / "killed")
        writer.close()
        right = read(live / "pack")
        data, journal = sorted(killed.iterdir())
        assert journal.name == f"{data.name}.journal"
        _check_recovery(killed, folder / "again", right, "no damage")
        count = recovered = 0
        ways = [way(path) for path in (data, journal) for way in (flips, cuts, losses)]
        for damages in [*ways, exchanges(data, [journal])]:
            for damage in damages:
                recovered += _check_recovery(killed, folder / "again", right, damage)
                count += 1
        assert recovered > count // 2
        record_property("figure", f"packs: {count} damages of an unfinished pack: nothing lost")


def _check_recovery(killed: Path, again: Path, right: Reading, damage: str) -> bool:
    """Recover a copy: its payloads are right, and all bytes that it does not have are kept.

    Returns whether there was something to recover.
    """
    shutil.copytree(killed, again)
    before = {path.name: path.read_bytes() for path in again.iterdir()}
    try:
        recovered = recover(again / "pack")
    except ReliveError:
        assert {path.name: path.read_bytes() for path in again.iterdir()} == before, damage
        entries = 0
    else:
        entries = recovered.entries
        assert damage != "no damage" or entries == right["length"]
        found = read(again / "pack")
        assert found["length"] == recovered.entries, damage
        for position in range(recovered.entries):
            assert found[f"payload {position}"] == right[f"payload {position}"], damage
        (stored,) = (data for name, data in before.items() if not name.endswith(".journal"))
        rest = b"" if recovered.rest is None else Path(recovered.rest).read_bytes()
        for position in range(recovered.entries, right["length"]):
            payload = right[f"payload {position}"]
            assert payload in rest or payload not in stored, (damage, position)
    shutil.rmtree(again)
    return entries > 0
