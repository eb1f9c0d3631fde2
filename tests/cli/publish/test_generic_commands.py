"""`relive info`, `head`, `stats` and `validate` of published datasets."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Relive
from tests.cli.publish.conftest import latest


def test_info(relive: Relive, root: Path) -> None:
    found = relive("info", "lab/kitchen@v1", "--json").json
    assert (found["kind"], found["dataset"]) == ("published", "lab/kitchen")
    assert found["message"] == "two episodes"
    assert (found["rows"], found["files"]) == (200, 2)
    assert found["tables"]["main"]["rows"] == 200
    assert found["tables"]["main"]["columns"]["reward"] == "double"
    assert found["tags"] == {"v1": found["digest"]}
    assert [each["digest"] for each in found["versions"]] == [found["digest"], latest(relive)]
    lines = relive("info", "lab/kitchen").out.splitlines()
    assert lines[0].split() == ["path", "lab/kitchen"]
    assert lines[1].split() == ["kind", "published"]
    assert any(line.split()[:2] == ["table", "main"] for line in lines)


def test_head(relive: Relive, root: Path) -> None:
    assert relive("head", "lab/kitchen", "-n", 2).out.splitlines() == [
        "row  episode  step  reward  note",
        "  0        0     0       0  step 0",
        "  1        0     1       0  -",
    ]
    rows = relive("head", "lab/kitchen@v1", "--json").json
    assert rows[1] == {"row": 1, "episode": 0, "step": 1, "reward": 0.0, "note": None}
    assert len(rows) == 5


def test_stats(relive: Relive, root: Path) -> None:
    assert relive("stats", "lab/kitchen@v1").out.splitlines() == [
        "rows  200",
        "column   values  nulls  min  max   mean",
        "episode     200      0    0    1    0.5",
        "step        200      0    0   99   49.5",
        "reward      200      0    0  9.9  2.475",
        "note        100    100    -    -      -",
    ]
    found = relive("stats", "lab/kitchen", "--table", "main", "--json").json
    assert found["rows"] == 300
    assert found["columns"]["note"] == {
        "values": 150, "nulls": 150, "min": None, "max": None, "mean": None
    }  # fmt: skip


@pytest.mark.parametrize("level", ["index", "sample", "full"])
def test_validate(relive: Relive, root: Path, level: str) -> None:
    done = relive("validate", "lab/kitchen", "--level", level)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"lab/kitchen: ok ({level}, 3 blobs")
    found = relive("validate", "lab/kitchen", "--level", level, "--json").json
    assert (found["ok"], found["checked"]["blobs"]) == (True, 3)


@pytest.mark.parametrize("level", ["index", "sample", "full"])
def test_validate_a_missing_blob(relive: Relive, root: Path, level: str) -> None:
    blob = next(path for path in (root / "blobs").rglob("*") if path.is_file())
    blob.unlink()
    done = relive("validate", "lab/kitchen", "--level", level)
    assert done.status == 1
    assert blob.name in done.out
    assert done.out.splitlines()[-1].startswith("lab/kitchen: 1 problem")


def test_validate_a_damaged_blob(relive: Relive, root: Path) -> None:
    blob = next(path for path in (root / "blobs").rglob("*") if path.is_file())
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    assert relive("validate", "lab/kitchen", "--level", "index").status == 0
    for level in ("sample", "full"):
        found = relive("validate", "lab/kitchen", "--level", level, "--json").json
        (problem,) = found["problems"]
        assert (problem["kind"], problem["field"]) == ("corrupt", "main")
        assert blob.name in problem["path"]


def test_root_option(relive: Relive, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIVE_ROOT")
    monkeypatch.setenv("XDG_DATA_HOME", str(root.parent / "home"))
    for command in ("info", "head", "stats", "validate", "schema", "stream"):
        assert relive(command, "lab/kitchen").status == 1
        assert relive(command, "lab/kitchen", "--root", root).status == 0
        assert relive(command, "lab/kitchen", "--root", root.as_uri()).status == 0


@pytest.mark.parametrize("command", ["info", "head", "stats", "validate"])
def test_what_is_not_there(relive: Relive, root: Path, command: str) -> None:
    for reference in ("lab/kitchne", "lab/kitchen@v9", "relive://lab/no", "lab/kitchen@deadbeef00"):
        done = relive(command, reference)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(("error: the root `", "error: the dataset `lab/kitchen`"))
        assert "no such file" not in done.err or reference == "lab/kitchne"
        assert "Traceback" not in done.err
    done = relive(command, "lab/kitchne")
    assert "there is no such file or directory either" in done.err


def test_options_of_published_datasets_alone(relive: Relive, root: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    for args in (
        ("info", tmp_path / "a.npy", "--root", root),
        ("head", tmp_path / "a.npy", "--table", "main"),
        ("stats", tmp_path / "a.npy", "--root", root),
        ("validate", tmp_path / "a.npy", "--root", root),
    ):
        done = relive(*args)
        assert done.status == 2
        assert "only published datasets have --" in done.err


def test_name_that_is_also_a_path(relive: Relive, root: Path, tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "kitchen").mkdir()
    done = relive("info", "lab/kitchen")
    assert done.status == 1
    assert "relive://lab/kitchen" in done.err
    assert relive("info", "relive://lab/kitchen").status == 0
