"""Finds commits in the WAL of a database that SQLite does not use, and keeps a copy of them.

SQLite uses the frames of a WAL up to the last commit before the first frame that is wrong. The next
writer overwrites the others, so a flipped bit would remove commits without an error. The rule that
tells damage from what a kill leaves is in `docs/format/replay.md`.
"""

import itertools
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from relive.errors import AlreadyExistsError, CorruptError
from relive.replay.storage.wal import HEADER_BYTES, WalFrames, WalHeader, wal_path
from relive.store.atomic import open_reader, storage_error, whole_file

_TRIES: Final = 5
_PAUSE_S: Final = 0.02
_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class UnusedCommits:
    """Commits in a WAL that SQLite does not use, because something before them is wrong."""

    path: Path
    frame: int
    """The number of the first frame that is wrong, from 1 on; 0 is the header of the file."""
    offset: int
    commits: int

    def error(self) -> CorruptError:
        """Return what `validate` reports."""
        what = f"frame {self.frame}" if self.frame else "the header"
        commits = "1 commit" if self.commits == 1 else f"{self.commits} commits"
        return CorruptError(
            f"{what} of `{self.path}`, at byte {self.offset}, is wrong, and {commits} from there "
            "on cannot be used: the file was damaged, or the power was cut before it was synced"
        )


class KeptWal(NamedTuple):
    """A copy of a WAL with commits that SQLite does not use."""

    found: UnusedCommits
    copy: Path
    is_new: bool
    """Whether it was made by this call."""


def unused_commits(database: Path) -> UnusedCommits | None:
    """Return the commits that SQLite does not use; None if it uses all, or there is no WAL.

    Other processes may write meanwhile: what is found has to be there twice.
    """
    path = wal_path(database)
    found = _examine(path)
    for _ in range(_TRIES):
        if found is None:
            break
        time.sleep(_PAUSE_S)
        before, found = found, _examine(path)
        if found == before:
            return found
    return None


def keep_unused_commits(database: Path) -> KeptWal | None:
    """Copy a WAL with commits that SQLite does not use, before a writer overwrites them.

    None if there are none. The copy is on the disk, and never replaces another one; the same bytes
    are copied once.
    """
    found = unused_commits(database)
    if found is None:
        return None
    for number in itertools.count(1):
        copy = found.path.with_name(f"{found.path.name}.damaged-{number}")
        try:
            with whole_file(copy) as target, open_reader(found.path) as source:
                shutil.copyfileobj(source, target, _COPY_BYTES)
        except AlreadyExistsError:
            if _is_same(found.path, copy):
                return KeptWal(found, copy, is_new=False)
        except FileNotFoundError:  # another process has kept and removed it
            break
        else:
            return KeptWal(found, copy, is_new=True)
    return None


def _examine(path: Path) -> UnusedCommits | None:
    try:
        if path.stat().st_size <= HEADER_BYTES:
            return None
        with open_reader(path) as file:
            data = file.read(HEADER_BYTES)
            header = WalHeader.parse(data)
            found = _find(path, file, header)
            # Only a process that uses all commits begins a WAL again.
            is_the_same = os.pread(file.fileno(), HEADER_BYTES, 0) == data
            return found if is_the_same else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, path, "read") from error


def _find(path: Path, file: BinaryIO, header: WalHeader) -> UnusedCommits | None:
    if not header.is_right():
        commits = _count_without_header(file, header)
        return UnusedCommits(path, 0, 0, commits) if commits else None
    frames = WalFrames.read(file, header)
    are_ours = (frames.salts == header.salts).all(axis=1)
    wrong = np.flatnonzero(~(frames.are_right() & are_ours))
    if not len(wrong):
        return None
    first = int(wrong[0])
    commits = _count_from(file, header, frames, first)
    offset = HEADER_BYTES + first * header.frame_bytes
    return UnusedCommits(path, first + 1, offset, commits) if commits else None


def _count_from(file: BinaryIO, header: WalHeader, frames: WalFrames, first: int) -> int:
    """Count the commits from the first wrong frame on; 0 if a kill may have left it so."""
    are_ours, are_right = (frames.salts == header.salts).all(axis=1), frames.are_right()
    if first + 1 < len(are_right):  # what is wrong may be the checksum that the next begins with
        are_right[first + 1] |= frames.follows(header, first + 1)
    later = np.flatnonzero(are_right & are_ours & frames.are_commits)
    later = later[later > first]
    if are_right[first]:  # only its salts are wrong
        return len(later) + int(frames.are_commits[first])
    if are_ours[first]:
        is_commit = frames.is_commit_but_for_a_bit(file, header, first)
        if is_commit is not None:
            return len(later) + is_commit
    # A writer may be killed after it wrote its transaction, and before others know of it: they
    # write over its beginning, and its commit stays.
    return len(later) if len(later) > 1 else 0


def _count_without_header(file: BinaryIO, header: WalHeader) -> int:
    """Count the commits of a WAL whose header is wrong."""
    repairs = header.repairs()  # several bits may change a checksum in the same way
    most = 0
    for each in repairs or header.guesses():
        frames = WalFrames.read(file, each)
        salts = each.salts if repairs else frames.salts[:1]
        are_ours = (frames.salts == salts).all(axis=1)
        most = max(most, int((frames.are_right() & are_ours & frames.are_commits).sum()))
    return most


def _is_same(path: Path, copy: Path) -> bool:
    """Check whether a file has the bytes of another one."""
    try:
        if path.stat().st_size != copy.stat().st_size:
            return False
        with open_reader(path) as one, open_reader(copy) as other:
            while data := one.read(_COPY_BYTES):
                if other.read(_COPY_BYTES) != data:
                    return False
    except FileNotFoundError:
        return False
    return True
