"""A disk that is full when a writer of any part is opened: a `StorageError`."""

import subprocess
from pathlib import Path

import pytest

from tests.faults import full_at_open
from tests.faults.records.programs.syscalls import environment, python

pytestmark = pytest.mark.timeout(300)


@pytest.mark.needs("mounts")
def test_writers_that_are_opened_on_a_full_disk_fail_with_a_storage_error(tmp_path: Path) -> None:
    command = ["unshare", "-m", *python(Path(full_at_open.__file__), tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len(full_at_open.WRITERS)
