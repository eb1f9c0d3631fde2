"""Records until the disk is full, and checks that the error is raised and no record is lost.

`python full_disk.py HOW WHAT FOLDER`: with HOW `mount` a small in-memory disk is mounted over the
folder, which needs the right to mount; with `limit` the file size is limited. WHAT is the signal
that fills the disk, or `close`: then the disk is full just before the close.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from relive.episodes import DiskEpisodeWriter, recover
from relive.episodes.read.episode import DiskEpisode
from relive.errors import StorageError

ROOM = 3 << 20
SMALL = 20_000
RNG = np.random.default_rng(0)


def value(name: str, number: int) -> Any:
    """Return the value that is recorded for a signal."""
    if name == "cam":
        return RNG.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    if name == "depth":
        return np.full((60, 80), number, np.uint16)
    return np.full(7, number, np.float64)


def fill(writer: DiskEpisodeWriter, what: str) -> dict[str, int]:
    """Record until an error is raised; return the number of recorded rows of each signal."""
    taken = dict.fromkeys(("state", "cam", "depth"), 0)
    try:
        for number in range(1_000_000):
            for name in taken:
                if name == what or number < 5:
                    writer.append(name, value(name, number), number)
                    taken[name] += 1
            if number < 5:
                writer.sync()
            elif what == "cam":
                time.sleep(0.0005)
    except StorageError as error:
        assert isinstance(error, OSError)  # noqa: PT017 - a script
        return taken
    raise AssertionError("the disk was never full")


def check_errors_repeat(writer: DiskEpisodeWriter, what: str, number: int) -> None:
    """Check that every later call for that signal, and the close, raise the error again."""
    errors = 0
    for again in (True, False):
        try:
            if again:
                writer.append(what, value(what, number), number)
            else:
                writer.close()
        except StorageError:
            errors += 1
    assert errors == 2


def check_kept(folder: Path, taken: dict[str, int]) -> None:
    """Check that all synced records are present, and none that were not appended."""
    (one,) = recover(folder).episodes
    assert not one.problems, one.problems
    episode = DiskEpisode(folder)
    assert episode["task"] == "pick"
    for name, rows in taken.items():
        found = len(episode[name])
        assert 5 <= found <= rows, (name, found, rows)
        assert episode[name].timestamps.tolist() == list(range(found))
        if name != "cam":
            for number, (got, _) in enumerate(episode[name]):
                assert (got == number).all()


def main(how: str, what: str, folder: Path) -> None:
    """Run the program."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if how == "mount":
        folder.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", str(folder)], check=True
        )
    writer = DiskEpisodeWriter(folder / "ep")
    writer.set_static("task", "pick")
    ballast = folder / "ballast"
    if what == "close":
        taken = dict.fromkeys(("state", "cam", "depth"), 5)
        for number in range(5):
            for name in taken:
                writer.append(name, value(name, number), number)
        writer.sync()
        block(how, ballast)
        try:
            writer.close()
        except StorageError:
            pass
        else:
            raise AssertionError("close() succeeded on a full disk")
    else:
        if how == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, unlimited[1]))
        taken = fill(writer, what)
        check_errors_repeat(writer, what, taken[what])
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    ballast.unlink(missing_ok=True)
    if how == "mount":  # there is free space again
        subprocess.run(["mount", "-o", f"remount,size={8 * ROOM}", str(folder)], check=True)
    check_kept(folder / "ep", taken)


def block(how: str, ballast: Path) -> None:
    """Fill the disk."""
    if how == "limit":
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, limit))
        return
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
