"""`relive episodes validate`, and `relive validate` of episodes."""

from pathlib import Path

import pytest

from tests.cli.conftest import Relive
from tests.cli.recordings import leave_unfinished, record

pytestmark = pytest.mark.needs("av")


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    """Give a dataset of two episodes."""
    return record(tmp_path / "kitchen", 2)


def test_what_is_whole_is_valid(relive: Relive, kitchen: Path) -> None:
    done = relive("episodes", "validate", kitchen)
    assert (done.status, done.err) == (0, "")
    assert done.out == f"{kitchen}: ok (2 episodes, 8 signals, no frame decoded)\n"
    assert relive("validate", kitchen).out == done.out
    deep = relive("episodes", "validate", kitchen, "--deep")
    assert deep.out == f"{kitchen}: ok (2 episodes, 8 signals, every frame decoded)\n"
    assert relive("validate", kitchen, "--level", "full").out == deep.out
    folder = kitchen / "000000000000" / "000000000001"
    found = relive("validate", folder, "--json").json
    assert found == {
        "deep": False, "ok": True, "episodes": 1, "signals": 4, "unfinished": [], "problems": []
    }  # fmt: skip


def test_damage_is_found_and_named(relive: Relive, kitchen: Path) -> None:
    folder = kitchen / "000000000000" / "000000000001"
    data = bytearray((folder / "q.parquet").read_bytes())
    data[len(data) // 8] ^= 255
    (folder / "q.parquet").write_bytes(data)
    (folder / "static.json").write_text("{")
    done = relive("episodes", "validate", kitchen)
    assert (done.status, done.err) == (1, "")
    *problems, last = done.out.splitlines()
    assert any("q.parquet" in line for line in problems)
    assert any("static.json" in line for line in problems)
    assert last.startswith(f"{kitchen}: {len(problems)} problems (2 episodes")
    found = relive("episodes", "validate", kitchen, "--json").json
    assert found["ok"] is False
    assert "q" in {problem["signal"] for problem in found["problems"]}
    assert all(Path(problem["path"]).is_absolute() for problem in found["problems"])


def test_what_is_unfinished_is_told_and_not_read(relive: Relive, kitchen: Path) -> None:
    folder = leave_unfinished(kitchen)
    done = relive("episodes", "validate", kitchen)
    assert done.status == 0
    assert "2 episodes" in done.out
    assert done.err == f"`{folder}` is not finished, and was not read\n"
    assert relive("episodes", "validate", kitchen, "--json").json["unfinished"] == [str(folder)]


def test_what_is_not_there(relive: Relive, tmp_path: Path) -> None:
    done = relive("episodes", "validate", tmp_path / "no")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: ")
