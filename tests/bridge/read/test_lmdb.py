"""LMDB databases are converted to record stores."""

import os
from pathlib import Path

import pytest

from relive.bridge import convert
from relive.errors import CorruptError, NotFoundError
from tests.bridge.sample_files import contents

lmdb = pytest.importorskip("lmdb")


def write_database(path: Path, entries: dict[bytes, bytes], *, folder: bool = True) -> Path:
    with (
        lmdb.open(str(path), map_size=1 << 24, subdir=folder) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in entries.items():
            transaction.put(key, value)
    return path


ENTRIES = {f"{number:05}".encode(): b"v" * number for number in range(300)}


@pytest.mark.parametrize("folder", [True, False])
def test_lmdb_entries(tmp_path: Path, folder: bool) -> None:  # noqa: FBT001
    path = write_database(tmp_path / ("db" if folder else "db.mdb"), ENTRIES, folder=folder)
    made = convert(path, tmp_path / "store", batch=70)
    assert [(row["key"], row["value"]) for row in contents(made.path)] == [*ENTRIES.items()]


def test_lmdb_values_through_a_function(tmp_path: Path) -> None:
    path = write_database(tmp_path / "db", ENTRIES)
    made = convert(path, tmp_path / "store", decode=len, limit=5)
    assert contents(made.path)[4] == {"key": b"00004", "value": 4}
    made = convert(path, tmp_path / "rows", decode=lambda value: {"n": len(value)}, fields=["n"])
    assert [row["n"] for row in contents(made.path)] == list(range(300))


def test_lmdb_without_entries(tmp_path: Path) -> None:
    made = convert(write_database(tmp_path / "db", {}), tmp_path / "store")
    assert (made.rows, [*made.fields]) == (0, ["key", "value"])


def test_damaged_lmdb_databases_raise(tmp_path: Path) -> None:
    path = write_database(tmp_path / "db", ENTRIES)
    whole = (path / "data.mdb").read_bytes()
    for size in (0, 100, 8192, len(whole) // 2):
        (path / "data.mdb").write_bytes(whole[:size])
        with pytest.raises(CorruptError, match=r"data\.mdb"):
            convert(path, tmp_path / "store")
    (path / "data.mdb").unlink()
    with pytest.raises(NotFoundError):
        convert(path, tmp_path / "store", kind="lmdb")


def test_path_that_is_not_utf8(tmp_path: Path) -> None:
    path = write_database(tmp_path / "db", ENTRIES).rename(tmp_path / os.fsdecode(b"\xff"))
    assert convert(path, tmp_path / "store").rows == len(ENTRIES)
