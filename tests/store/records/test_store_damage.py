"""Damage, truncation and full disks raise, and never return other bytes."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import Field, RecordStore
from relive.errors import CorruptError, ReliveError, UnsupportedError
from relive.store.records import validate

FIELDS = {"x": Field("u1", (1000,)), "z": Field("u1", (1000,), "zstd"), "r": Field("i4", ragged=1),
          "t": Field("str")}  # fmt: skip
ROWS = 200


def columns(rows: int = ROWS) -> dict[str, Any]:
    """Return rows whose bytes are all different."""
    rng = np.random.default_rng(5)
    x = rng.integers(0, 255, (rows, 1000), np.uint8)
    return {"x": x, "z": x // 32, "r": [x[k].view("i4")[: k % 40] for k in range(rows)],
            "t": [f"text {k} {'x' * (k % 50)}" for k in range(rows)]}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with some changed records."""
    with RecordStore.create(tmp_path / "s", FIELDS, workers=1) as store:
        store.extend(columns())
        store["t"][3] = "changed"
        store["x"][7] = columns()["x"][8]
    return tmp_path / "s"


def chunks(path: Path) -> list[Path]:
    return sorted((path / "chunk").glob("*.zr"), key=lambda file: int(file.stem))


COLUMNS = columns()


def wanted(name: str, row: int) -> Any:
    """Return the content of the store."""
    if (name, row) == ("t", 3):
        return "changed"
    return COLUMNS[name][8 if (name, row) == ("x", 7) else row]


def read(store: RecordStore) -> int:
    """Read every value separately and count the errors; all other values must be unchanged."""
    bad = 0
    for name in FIELDS:
        values = [wanted(name, row) for row in range(len(store))]
        for row, value in enumerate(values):
            try:
                found = store.gather([row], [name])[name]
            except CorruptError:
                bad += 1
                continue
            np.testing.assert_array_equal(found[0], value)
    return bad


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_flipped_bit_is_found(path: Path, io: str) -> None:
    rng = np.random.default_rng(1)
    good = {file: file.read_bytes() for file in chunks(path)}
    assert read(RecordStore.open(path, io=io)) == 0
    for file, data in good.items():
        for offset in rng.integers(4096, len(data), 2):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << int(rng.integers(8))
            file.write_bytes(damaged)
            try:
                found = RecordStore.open(path, io=io)
            except CorruptError:
                continue
            assert (
                read(found) > 0 or damaged[offset] ^ data[offset] == 0 or is_padding(data, offset)
            )
            file.write_bytes(data)


def is_padding(data: bytes, offset: int) -> bool:
    """Return whether a byte is padding between records, which is never read."""
    return data[offset] == 0


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_truncated_chunk_is_found_at_the_next_gather(path: Path, io: str) -> None:
    for file in chunks(path):
        data = file.read_bytes()
        store = RecordStore.open(path, io=io)
        store.gather(range(len(store)))
        os.truncate(file, 4096)
        with pytest.raises(CorruptError) as caught:
            store.gather(range(len(store)))
        assert file.name in caught.value.message
        file.write_bytes(data)
        os.truncate(file, len(data) - 1)
        with pytest.raises(CorruptError):
            RecordStore.open(path, io=io).gather(range(len(store)))
        file.write_bytes(data)
    assert read(RecordStore.open(path, io=io)) == 0


def test_checksums_are_verified_on_request(path: Path) -> None:
    file = chunks(path)[0]
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    first = RecordStore.open(path)
    first.gather([0])  # its block is known to be good
    always = RecordStore.open(path, verify="always")
    always.gather([0])
    with file.open("r+b") as opened:
        opened.seek(5000)
        opened.write(data[5000:5001])
    first.gather([0])
    with pytest.raises(CorruptError):
        always.gather([0])
    with pytest.raises(CorruptError):
        RecordStore.open(path).gather([0])
    RecordStore.open(path, verify="never").gather([0])


@pytest.mark.parametrize("mode", ["r", "a"])
def test_damaged_meta_raises(path: Path, mode: str) -> None:
    meta = path / "meta.json"
    text = meta.read_bytes()
    for damaged in (b"", b"{}", text[:-5], text.replace(b'"length": 200', b'"length": 201'), b"\0"):
        meta.write_bytes(damaged)
        with pytest.raises(CorruptError, match=r"meta\.json"):
            RecordStore.open(path, mode)
    meta.write_bytes(text)
    assert len(RecordStore.open(path)) == ROWS
    assert json.loads(text)["format"] == "relive-records"


def test_later_version_raises_with_an_upgrade_hint(path: Path) -> None:
    meta = path / "meta.json"
    text = meta.read_text().replace('"version": 1', '"version": 2')
    before = text[: text.rindex(',\n  "crc"')]
    meta.write_text(f'{before},\n  "crc": "{crc32c(before.encode()):08x}"\n}}\n')
    with pytest.raises(UnsupportedError, match=r"version is 2.*upgrade"):
        RecordStore.open(path)


def crc32c(data: bytes) -> int:
    """Return the checksum of docs/format/records.md, computed bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_missing_files_raise(path: Path) -> None:
    for file in [*chunks(path), *path.glob("*.offset")]:
        moved = file.rename(file.with_suffix(".moved"))
        with pytest.raises(ReliveError) as caught:
            RecordStore.open(path).gather(range(ROWS))
        assert caught.value.kind in {"corrupt", "not-found"}
        moved.rename(file)
    assert read(RecordStore.open(path)) == 0


def test_truncated_journal_ends_at_the_cut(tmp_path: Path) -> None:
    store = RecordStore.create(tmp_path / "s", {"n": Field("i4"), "t": Field("str")})
    for number in range(6):
        store.append({"n": number, "t": str(number)})
        store.flush()
    (journal,) = (tmp_path / "s").glob("*.journal")
    data = journal.read_bytes()
    seen = set()
    for cut in range(0, len(data), 7):
        journal.write_bytes(data[:cut])
        try:
            reader = RecordStore.open(tmp_path / "s")
        except CorruptError:
            continue
        assert reader["n"][:].tolist() == list(range(len(reader)))
        assert reader["t"][:].tolist() == [str(k) for k in range(len(reader))]
        seen.add(len(reader))
    assert seen >= {0, 2, 5}
    journal.write_bytes(data)
    assert len(RecordStore.open(tmp_path / "s")) == 6
    store.close()


def test_damage_before_a_sync_raises_instead_of_shortening_the_store(tmp_path: Path) -> None:
    store = RecordStore.create(tmp_path / "s", {"n": Field("i4")})
    for number in range(3):
        store.append({"n": number})
        store.sync()
    (journal,) = (tmp_path / "s").glob("*.journal")
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    with pytest.raises(CorruptError, match="journal"):
        RecordStore.open(tmp_path / "s")
    store.abort()


FULL = """
import itertools, resource, signal, sys, time
import numpy as np
from relive import Field, RecordStore
from relive.errors import ReliveError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
seconds = 0.05 if sys.argv[2] == "timer" else None
store = RecordStore.open(sys.argv[1], mode="a", autoflush_s=seconds)
rows = np.random.default_rng(3).integers(0, 255, (400, 5000), np.uint8)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
failed = 0
end = time.monotonic() + 60  # other threads write: an error comes some appends later
for row in itertools.cycle(rows):
    assert time.monotonic() < end, failed
    try:
        store.append({sys.argv[3]: row})
        if sys.argv[2] == "flush":
            store.flush()
    except ReliveError as error:
        failed += 1
        kind = error.kind
        if failed == 3:
            break
def add():
    store.add_field("q", Field("i4"))
for call in (store.flush, store.sync, store.rebalance, add):
    try:
        call()
    except ReliveError as error:
        failed += 1
assert failed == 7, failed
try:
    store.close()
except ReliveError as error:
    print(kind, error.kind)
"""


@pytest.mark.parametrize("field", ["x", "z", "r"])
@pytest.mark.parametrize("how", ["append", "flush", "timer"])
def test_full_disk_error_persists(tmp_path: Path, how: str, field: str) -> None:
    fields = {"x": Field("u1", (5000,)), "z": Field("u1", (5000,), "zstd"),
              "r": Field("u1", ragged=True)}  # fmt: skip
    row = np.arange(5000, dtype="u2").view("u1")[:5000]
    with RecordStore.create(tmp_path / "s", fields) as store:
        store.extend({field: [row] * 5})
    command = [sys.executable, "-c", FULL, str(tmp_path / "s"), how, field]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "io", done.stdout
    with RecordStore.open(tmp_path / "s", "a") as store:
        assert len(store) >= 5
        np.testing.assert_array_equal(np.asarray(store[field][:5].tolist() if field != "r" else [
            r.tolist() for r in store[field][:5]]), np.stack([row] * 5))  # fmt: skip
        assert store.validate("full").ok
        store.append({field: row})
    assert RecordStore.open(tmp_path / "s").validate("full").ok


def hostile(text: str) -> Callable[[str], str]:
    """Return a function that writes a number to meta.json, with a valid checksum."""

    def change(meta: str) -> str:
        key = text.partition(":")[0]
        lines = [text + "," if line.strip().startswith(key) else line for line in meta.splitlines()]
        return "\n".join(lines)

    return change


@pytest.mark.parametrize(
    "line", ['"length": 18446744073709551615', '"length": 9223372036854775807', '"length": 201',
             '"next": 0', '"generation": 99', '"physical": 999999999', '"bytes": 0', '"rows": 1'],
)  # fmt: skip
def test_hostile_numbers_raise_or_are_harmless(path: Path, line: str) -> None:
    meta = path / "meta.json"
    before = meta.read_text()
    before = hostile(line)(before[: before.rindex(',\n  "crc"')])
    meta.write_text(f'{before},\n  "crc": "{crc32c(before.encode()):08x}"\n}}\n')
    # The result must be an error of relive, or the written values.
    with contextlib.suppress(ReliveError, MemoryError):
        store = RecordStore.open(path)
        for row in (0, 7, ROWS - 1, len(store) // 2, len(store) - 1):
            found = store.gather([row], ["x"])["x"]
            if row < ROWS:
                np.testing.assert_array_equal(found[0], wanted("x", row))


def test_damage_of_values_that_no_record_has_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s"
    fields = {"x": Field("u1", (1000,)), "big": Field("u1", ragged=1)}
    with RecordStore.create(path, fields, workers=1) as store:
        big = [np.full(2 << 20 if row == 0 else 1, 7, np.uint8) for row in range(ROWS)]
        store.extend({"x": columns()["x"], "big": big})
        for _ in range(ROWS - 2):
            store.delete(1)
        store["big"][0] = np.zeros(1, np.uint8)
    assert validate(path, "full").ok
    dense, heap, crcs = path / "chunk/0.zr", path / "chunk/1.zr", path / "chunk/0.crc"
    assert crcs.stat().st_size == ROWS * 1000 // 65536 * 4
    damages = (dense, 4096 + 70_000, dense), (crcs, 5, dense), (heap, 4096 + (1 << 20), heap)
    for file, offset, reported in damages:
        data = bytearray(file.read_bytes())
        data[offset] ^= 1
        file.write_bytes(data)
        assert read_all(path) == 2
        (problem,) = validate(path, "full").problems
        assert f"`{reported}`" in problem.message
        data[offset] ^= 1
        file.write_bytes(data)
    assert validate(path, "full").ok


def read_all(path: Path) -> int:
    """Return the number of records of a store, all of which are read."""
    with RecordStore.open(path) as store:
        return len(store.gather(range(len(store)))["x"])
