"""Fills the disk under a recorder, and checks that it reports that and loses nothing.

`python full.py HOW FOLDER ROOM`: with HOW `mount` a small disk in memory is mounted that has so
many bytes left, which takes the right to mount one; with `limit` no file may be longer than that.
Steps are recorded until that is refused. Prints how many were safe, and how many there are.

With HOW `compact` such a disk is mounted, and the run is compacted in the layout for training.
"""

import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from relive.errors import ClosedError, ReliveError, StorageError
from relive.replay import ReplayConfig, ReplayRecorder, compact, validate
from tests.faults.replay.programs.check import opens_in_h5py, steps_of
from tests.faults.replay.programs.steps import record

RUN: Final = "run"
BEFORE: Final = 50
MOST: Final = 20_000
CONFIG: Final = ReplayConfig(chunk_rows=8, flush_s=3600)


def record_some(root: Path, count: int) -> int:
    """Record steps; return how many the run has."""
    with ReplayRecorder(root, RUN, config=CONFIG, live=None) as recorder:
        first = recorder.stats.steps
        for number in range(first, first + count):
            record(recorder, 0, number)
    return first + count


def record_until_full(root: Path) -> int:
    """Record steps until that is refused; return how many are safe."""
    safe = BEFORE
    try:
        recorder = ReplayRecorder(root, RUN, config=CONFIG, live=None)
    except StorageError:
        return safe
    try:
        for number in range(safe, MOST):
            record(recorder, 0, number)
            if number % 7 == 0:
                recorder.flush()
                safe = number + 1
    except StorageError:
        _must_stay_failed(recorder)
        return safe
    raise AssertionError("the disk was never full")


def _must_stay_failed(recorder: ReplayRecorder) -> None:
    for call in (recorder.flush, recorder.close):
        try:
            call()
        except ClosedError as error:
            raise AssertionError(f"{call} found it closed") from error
        except ReliveError:
            continue
        raise AssertionError(f"{call} did not fail")


def compact_on_full_disk(root: Path) -> int:
    """Compact a run, which the disk has no room for; return how many steps are safe."""
    path = root / "replay" / f"{RUN}.h5"
    before, names = path.read_bytes(), sorted(path.parent.iterdir())
    try:
        compact(root, RUN, layout="train")
    except StorageError:
        assert path.read_bytes() == before
        assert sorted(path.parent.iterdir()) == names
        assert validate(root, "full").problems == ()
        return BEFORE
    raise AssertionError("the disk was not full")


def main(how: str, folder: Path, room: int) -> None:
    """Do it."""
    root = folder / "root"
    ballast = None
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if how != "limit":
        tmpfs = ["mount", "-t", "tmpfs", "-o", f"size={16 << 20}", "none", str(folder)]
        subprocess.run(tmpfs, check=True)
    record_some(root, BEFORE)
    if how != "limit":
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(folder).free - room))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, unlimited[1]))
    safe = compact_on_full_disk(root) if how == "compact" else record_until_full(root)
    # It can be read while the disk is full, and continued when there is room again.
    found = steps_of(root, RUN, 1)
    assert safe <= found, (safe, found)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    if ballast is not None:
        ballast.unlink()
    assert steps_of(root, RUN, 1) == found
    if how == "compact":
        assert compact(root, RUN, layout="train").is_changed
    now = record_some(root, 10)
    assert now == found + 10
    assert steps_of(root, RUN, 1) == now
    assert opens_in_h5py(root / "replay" / f"{RUN}.h5", 1) == now
    assert validate(root, "full").problems == ()
    sys.stdout.write(f"{safe} {found}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
