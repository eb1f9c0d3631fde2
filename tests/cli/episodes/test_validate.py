"""`relive episodes validate`, and `relive validate` of episodes."""

from pathlib import Path

import pytest

from tests.cli.conftest import Relive
from tests.cli.recordings import leave_unfinished, record

pytestmark = pytest.mark.needs("av")


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    """Return a dataset of two episodes."""
    return record(tmp_path / "kitchen", 2)


def test_undamaged_episodes_are_valid(relive: Relive, kitchen: Path) -> None:
    done = relive("episodes", "validate", kitchen)
    assert (done.status, done.err) == (0, "")
    assert done.out == f"{kitchen}: ok (sample, 2 episodes, 8 signals read)\n"
    assert relive("validate", kitchen).out == done.out
    full = relive("episodes", "validate", kitchen, "--level", "full")
    assert full.out == f"{kitchen}: ok (full, 2 episodes, 8 signals read)\n"
    assert relive("validate", kitchen, "--level", "full").out == full.out
    folder = kitchen / "000000000000" / "000000000001"
    found = relive("validate", folder, "--json").json
    assert found == {
        "level": "sample", "ok": True, "checked": {"episodes": 1, "signals": 4}, "problems": [],
        "unfinished": [], "unchecked": [],
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
    assert last.startswith(f"{kitchen}: {len(problems)} problems (sample, 2 episodes")
    found = relive("episodes", "validate", kitchen, "--json").json
    assert found["ok"] is False
    assert "q" in {problem["field"] for problem in found["problems"]}
    assert all(Path(problem["path"]).is_absolute() for problem in found["problems"])


def test_unfinished_episodes_are_reported_and_not_checked(relive: Relive, kitchen: Path) -> None:
    folder = leave_unfinished(kitchen)
    done = relive("episodes", "validate", kitchen)
    assert done.status == 0
    assert "2 episodes" in done.out
    assert done.err == f"`{folder}` is not finished and was not checked\n"
    (found,) = relive("episodes", "validate", kitchen, "--json").json["unfinished"]
    assert found == {"path": str(folder), "reason": "left"}


def test_missing_paths_fail(relive: Relive, tmp_path: Path) -> None:
    done = relive("episodes", "validate", tmp_path / "no")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: ")
