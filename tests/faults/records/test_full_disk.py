"""A disk that is really full, at any step: an error that sticks, and a store that is whole.

With `RELIVE_KILLS=all` (`make faults`) with more room and with less.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.records.programs import full as records_full
from tests.faults.records.programs import script as records_script
from tests.faults.records.programs.script import STORE
from tests.faults.records.programs.syscalls import environment, python

pytestmark = pytest.mark.timeout(1800)

SCRIPT = Path(records_full.__file__)
IS_LONG = os.environ.get("RELIVE_KILLS") == "all"
ROOMS = (0, 20_000, 90_000, 2_500_000) if IS_LONG else (20_000,)
LIMITS = (1000, 20_000, 70_000) if IS_LONG else (8000,)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with some records."""
    folder = tmp_path_factory.mktemp("begun")
    done = _run(python(Path(records_script.__file__), "write", folder))
    assert done.stdout.endswith("done\n"), done
    return folder / STORE


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("act", records_full.ACTS)
@pytest.mark.parametrize("room", ROOMS)
def test_a_full_disk(act: str, room: int, begun: Path, tmp_path: Path) -> None:
    store = shutil.copytree(begun, tmp_path / "store")
    done = _run(["unshare", "-m", *python(SCRIPT, "mount", act, store, room)])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("act", records_full.ACTS)
@pytest.mark.parametrize("room", LIMITS)
def test_files_that_may_not_grow(act: str, room: int, begun: Path, tmp_path: Path) -> None:
    store = shutil.copytree(begun, tmp_path / "store")
    done = _run(python(SCRIPT, "limit", act, store, room))
    assert done.returncode == 0, done.stderr


def _run(program: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program, capture_output=True, text=True, env=environment())
