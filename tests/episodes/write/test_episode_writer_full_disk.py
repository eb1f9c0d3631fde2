"""A full disk raises at this call or the next, and earlier records are kept."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.episodes import full_disk

ROOT = Path(__file__).resolve().parents[3]


def run(*program: object) -> None:
    done = subprocess.run(
        [*map(str, program)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("what", ["state", "cam", "depth", "close"])
def test_full_disk(what: str, tmp_path: Path) -> None:
    script = ["unshare", "-m", sys.executable, full_disk.__file__]
    run(*script, "mount", what, tmp_path / "disk")


@pytest.mark.parametrize("what", ["state", "cam", "depth", "close"])
def test_file_size_limit(what: str, tmp_path: Path) -> None:
    run(sys.executable, full_disk.__file__, "limit", what, tmp_path)
