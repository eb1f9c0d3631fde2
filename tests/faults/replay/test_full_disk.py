"""A disk that is really full while a run is recorded: a typed error, and nothing safe is lost.

With `RELIVE_KILLS=all` (`make faults`) with more room and with less.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.records.programs.syscalls import environment, python
from tests.faults.replay.programs import full as program

Note = Callable[[str, object], None]
SCRIPT = Path(program.__file__)
IS_LONG = os.environ.get("RELIVE_KILLS") == "all"
ROOMS = (0, 4096, 40_000, 90_000, 300_000, 1_200_000, 3_000_000) if IS_LONG else (90_000,)
LIMITS = (30_000, 100_000, 400_000, 2_000_000) if IS_LONG else (400_000,)
COMPACTIONS = (0, 4096, 20_000, 60_000, 150_000) if IS_LONG else (60_000,)
pytestmark = pytest.mark.timeout(600)


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("room", ROOMS)
def test_full_disk(room: int, tmp_path: Path, record_property: Note) -> None:
    _run("mount", room, tmp_path, record_property)


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("room", COMPACTIONS)
def test_full_disk_while_a_run_is_compacted(
    room: int, tmp_path: Path, record_property: Note
) -> None:
    _run("compact", room, tmp_path, record_property)


@pytest.mark.parametrize("room", LIMITS)
def test_files_that_may_not_grow(room: int, tmp_path: Path, record_property: Note) -> None:
    _run("limit", room, tmp_path, record_property)


def _run(how: str, room: int, folder: Path, note: Note) -> None:
    command = [*(["unshare", "-m"] if how != "limit" else []), *python(SCRIPT, how, folder, room)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, (done.returncode, done.stderr)
    safe, found = done.stdout.split()
    note("figure", f"replay: {room:,} bytes left ({how}): {safe} steps safe, {found} there")
