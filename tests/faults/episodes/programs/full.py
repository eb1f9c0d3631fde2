"""Fills a real disk in mid-recording, and sees that it is told and that nothing before is lost.

`python episodes_full.py DISK ROOM PROFILE`: a small disk in memory is mounted over the folder DISK,
which takes the right to mount one; an episode with a camera is begun there, and then all but ROOM
bytes are taken away.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive.episodes import (
    DiskEpisode,
    LocalDataset,
    LocalDatasetWriter,
    VideoSpec,
    recover,
    validate,
)
from relive.errors import ReliveError, StorageError, UnfinishedError

SIZE: Final = 24 << 20
SAFE: Final = 5
SIGNALS: Final = ("state", "note", "cam")
MOST: Final = 100_000


def value(name: str, number: int) -> Any:
    """Give what is recorded under a name as its record of that number."""
    if name == "cam":
        rng = np.random.default_rng(number)
        return rng.integers(0, 255, (96, 128, 3), dtype=np.uint8)
    return np.full(7, number, np.float64) if name == "state" else f"note {number}"


class Life:
    """An episode on a disk that will be full."""

    def __init__(self, disk: Path, profile: str) -> None:
        self.root = disk / "root"
        self.writer = LocalDatasetWriter(
            self.root, signals={"cam": VideoSpec(profile=profile)}
        ).new_episode()
        self.writer.set_static("task", "pick")
        self.taken = dict.fromkeys(SIGNALS, 0)

    def append(self, name: str) -> None:
        """Append the next record."""
        number = self.taken[name]
        self.writer.append(name, value(name, number), 10**9 + number)
        self.taken[name] += 1

    def fill(self) -> str:
        """Record until it is refused; gives the signal that was."""
        for _ in range(MOST):
            for name in SIGNALS:
                try:
                    self.append(name)
                except StorageError as error:
                    assert _names(error, name, self.root), error  # noqa: PT017 - a script
                    return name
            time.sleep(0.0005)
        raise AssertionError("it was never full")

    def refused(self, call: Any, *args: Any) -> bool:
        """Whether a call raises that the disk is full."""
        try:
            call(*args)
        except StorageError:
            return True
        return False


def _names(error: ReliveError, name: str, root: Path) -> bool:
    return f"'{name}'" in error.message or f"`{name}`" in error.message or str(root) in str(error)


def main(disk: Path, room: int, profile: str) -> None:
    """Do it; says which signal was refused, how many went on, and how many records were kept."""
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(disk)], check=True)
    life = Life(disk, profile)
    for _ in range(SAFE):
        for name in SIGNALS:
            life.append(name)
    life.writer.flush()
    ballast = disk / "ballast"
    _leave(ballast, room)
    name = life.fill()
    # It is told again, and neither is it closed while the disk is full.
    assert life.refused(life.append, name)
    assert len(LocalDataset(life.root)) == 0
    went_on = 0
    if room:
        # There is room again: what did not fail goes on.
        ballast.unlink()
        for other in SIGNALS:
            went_on += other != name and not life.refused(life.append, other)
        life.writer.set_static("late", 1)
    try:
        life.writer.close()
    except StorageError as error:
        assert "relive recover" in "".join(error.__notes__)  # noqa: PT017 - a script
    else:
        raise AssertionError("an episode without all its records was committed")
    if not room:
        # Nothing is lost by a recovery that finds no room either.
        found = recover(life.root)
        assert found.problems
        assert len(LocalDataset(life.root)) == 0
        ballast.unlink()
    _check(life, late=bool(room))
    kept = {each: len(LocalDataset(life.root)[0][each]) for each in SIGNALS}
    sys.stdout.write(f"{name} was refused, {went_on} went on, kept {kept} of {life.taken}\n")


def _leave(ballast: Path, room: int) -> None:
    """Take all of the disk but so many bytes."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
        file.truncate(max(0, file.tell() - room))


def _check(life: Life, *, late: bool) -> None:
    (left,) = LocalDataset(life.root).unfinished
    try:
        DiskEpisode(left.path)
    except UnfinishedError:
        pass
    else:
        raise AssertionError("it looks committed")
    (found,) = recover(life.root).episodes
    assert not found.problems, found.problems
    assert not recover(life.root).episodes
    assert validate(life.root, level="full").ok
    (episode,) = LocalDataset(life.root)
    assert episode["task"] == "pick"
    assert ("late" in episode.statics) == late
    for name, taken in life.taken.items():
        signal = episode[name]
        assert SAFE <= len(signal) <= taken, (name, len(signal), taken)
        assert signal.timestamps.tolist() == [10**9 + number for number in range(len(signal))]
        for number, (got, _) in enumerate(signal):
            wanted = value(name, number)
            if name == "cam":
                assert np.abs(got.astype(int) - wanted).mean() < 60
            else:
                np.testing.assert_array_equal(got, wanted)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
