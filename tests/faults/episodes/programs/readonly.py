"""Episodes where nothing may be written: what is there is read, and everything else is told.

`python episodes_readonly.py HOW FOLDER`: with HOW `mount` the folder is a disk that becomes
read-only, which takes the right to mount one; with `mode` folders lose their mode to be written to
by a user who is not root.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive import episodes as record
from relive.episodes import LocalDataset, LocalDatasetWriter, recover, validate
from relive.episodes.write.episode_writer import DiskEpisodeWriter
from relive.errors import AccessDeniedError, StorageError
from tests.faults.episodes.programs.robot import frame, number_of

GUEST: Final = 65_534
ROWS: Final = 6


def fill(writer: DiskEpisodeWriter, numbers: range) -> None:
    """Append records."""
    for number in numbers:
        writer.append("state", np.full(3, number, np.float64), number)
        writer.append("cam", frame(number), number)


def refused(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """See that a call says that nothing may be written there."""
    try:
        call(*args, **options)
    except (AccessDeniedError, StorageError) as error:
        # What is written by the extension is refused by a StorageError on a read-only disk.
        reasons = ("Permission denied", "Read-only file system")
        assert any(reason in error.message for reason in reasons), error  # noqa: PT017 - a script
    else:
        raise AssertionError(f"{call} was not refused")


def check_rows(episode: record.Episode, rows: int) -> None:
    """See that the first records are there."""
    assert len(episode["state"]) == len(episode["cam"]) == rows
    for number, (got, _) in enumerate(episode["state"]):
        assert (got == number).all()
    for number, (got, _) in enumerate(episode["cam"]):
        assert number_of(got) == number


def prepare(root: Path) -> str:
    """Make a root with a committed and an unfinished episode; gives the uid of the first."""
    writer = LocalDatasetWriter(root)
    with writer.new_episode() as episode:
        fill(episode, range(ROWS))
    left = writer.new_episode()
    fill(left, range(ROWS))
    left.leave()
    return episode.uid


def check_closed(root: Path, uid: str) -> None:
    """See that all that writes is refused, and all that reads is not."""
    before = sorted(root.rglob("*"))
    refused(LocalDatasetWriter(root).new_episode)
    refused(DiskEpisodeWriter, root / "one")
    refused(record.SimpleSignalWriter(root / "x.parquet").append, 1.0)
    refused(record.VideoSignalWriter(root / "x.mp4").append, frame(1))
    dataset = LocalDataset(root)
    refused(dataset.edits.drop, uid)
    refused(record.copy, root, root / "copy")
    assert record.copy(root, root).skipped == (uid,)
    found = recover(root)
    assert len(found.problems) == 1
    assert "cannot recover" in found.problems[0]
    assert len(dataset) == 1
    check_rows(dataset[0], ROWS)
    assert validate(root, level="full").ok
    assert sorted(root.rglob("*")) == before


def check_half_way(root: Path) -> None:
    """A folder that may not be written to any more, while an episode is recorded there."""
    writer = LocalDatasetWriter(root).new_episode()
    writer.set_static("task", "pick")
    fill(writer, range(3))
    folder = Path(writer.path)
    folder.chmod(0o555)
    fill(writer, range(3, ROWS))  # what is open goes on
    writer.flush()
    refused(writer.append, "late", 1.0)
    refused(writer.append, "late cam", frame(1))
    refused(writer.set_static, "late", 1)
    fill(writer, range(ROWS, ROWS + 1))
    refused(writer.close)
    refused(recover, folder)
    folder.chmod(0o755)
    (found,) = recover(root).episodes
    assert not found.problems
    (episode,) = LocalDataset(root)
    assert dict(episode.statics) == {"task": "pick"}
    check_rows(episode, ROWS + 1)
    assert validate(root, level="full").ok


def main(how: str, folder: Path) -> None:
    """Do it."""
    if how == "mount":
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
        uid = prepare(folder / "root")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        check_closed(folder / "root", uid)
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
        assert not recover(folder / "root").problems
        assert len(LocalDataset(folder / "root")) == 2
        return
    uid = prepare(folder / "root")
    if os.getuid() == 0:  # for whom modes do not count
        for path in (folder, *folder.rglob("*")):
            os.chown(path, GUEST, GUEST)
        os.setgroups([])
        os.setgid(GUEST)
        os.setuid(GUEST)
    folders = [path for path in (folder, *folder.rglob("*")) if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    check_closed(folder / "root", uid)
    for path in folders:
        path.chmod(0o755)
    assert not recover(folder / "root").problems
    assert len(LocalDataset(folder / "root")) == 2
    check_half_way(folder / "half")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
