"""Acts on episodes, in a process of their own that says what it did; stopped by its tests.

`python episodes_script.py ACT FOLDER LOG`. A line of the log is said when a call returned:
`began UID`, `static NAME`, `safe N` (the first N records of every signal survive the end of the
process), `taken N`, and what each act says at its end; `failed CLASS KIND` for an error that was
raised as it should be.
"""

import itertools
import os
import secrets
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive import episodes as record
from relive.episodes.write import signal_writer
from relive.errors import ReliveError
from tests.episodes.lazy_tape import LazyTape
from tests.faults.episodes.programs import robot as episodes_robot

ROOT: Final = "root"
OTHER: Final = "other"
COPY: Final = "copy"
MERGED: Final = "merged"
LONE: Final = "lone"
STATICS: Final = {"task": "pick \N{SNOWMAN}", "key": b"\x00\xff", "arms": [1, {"$bytes": None}]}
SIGNALS: Final = ("state", "note", "cam", "big")
ROWS: Final = 8
SPEC: Final = record.VideoSpec(profile="record", fps=30, gop=3)
# A root has this when an act begins: so many rows in each episode.
OLD_ROWS: Final = 6
EDITS: Final = ("set_static", "trim", "cut", "drop")


def value(name: str, number: int) -> Any:
    """Give what is recorded under a name as its record of that number."""
    if name == "big":  # so long that a thread makes its file while it is recorded
        return np.full((190, 190), number, np.uint16)
    return episodes_robot.value(name, number)


def time_of(number: int) -> int:
    """Give when a record of that number was."""
    return 1_000_000_000 + number * 33_000_000


def sensor_time_of(number: int) -> int:
    """Give when it was on the further clock that the states have."""
    return 7 * number - 3


def append(writer: record.DiskEpisodeWriter, numbers: range) -> None:
    """Append records to every signal."""
    for number in numbers:
        for name in SIGNALS:
            clocks = {"sensor": sensor_time_of(number)} if name == "state" else None
            writer.append(name, value(name, number), time_of(number), clocks)


def copied_from(folder: Path) -> list[record.Episode]:
    """Give what is copied."""
    return record.LocalDataset(folder / ROOT)[:-1]


class Act:
    """What is done in a folder, and where it is said."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(self, *words: object) -> None:
        """Write a line."""
        os.write(self._log, (" ".join(map(str, words)) + "\n").encode())

    def begin(self) -> record.DiskEpisodeWriter:
        """Begin an episode with statics and some records that are safe."""
        dataset = record.LocalDatasetWriter(self.folder / ROOT, signals={"cam": SPEC})
        self.say("begin")
        writer = dataset.new_episode()
        self.say("began", writer.uid)
        for name, static in STATICS.items():
            writer.set_static(name, static)
            self.say("static", name)
        writer.describe("state", unit="rad")
        append(writer, range(3))
        self.say("taken", 3)
        writer.flush()
        self.say("safe", 3)
        return writer

    def more(self, writer: record.DiskEpisodeWriter) -> None:
        """Record the rest."""
        writer.describe("note", said="later")
        append(writer, range(3, 6))
        self.say("taken", 6)
        writer.sync()
        self.say("safe", 6)
        append(writer, range(6, ROWS))
        self.say("taken", ROWS)

    def record(self) -> None:
        """Record an episode and commit it; the tapes lack the last records when it is closed."""
        vars(signal_writer)["TapeWriter"] = LazyTape
        writer = self.begin()
        self.more(writer)
        self.say("closing")
        writer.close()
        self.say("closed")

    def abort(self) -> None:
        """Record an episode and have it removed."""
        writer = self.begin()
        self.say("aborting")
        writer.abort()
        self.say("aborted")

    def leave(self) -> None:
        """Record and die, just after the last record is safe."""
        writer = self.begin()
        self.more(writer)
        writer.flush()
        self.say("safe", ROWS)
        os.kill(os.getpid(), signal.SIGKILL)

    def recover(self) -> None:
        """Finish what others left."""
        self.say("begin")
        found = record.recover(self.folder / ROOT)
        for problem in found.problems:  # told, so that others are recovered all the same
            self.say("failed", "StorageError", "io", problem)
        self.say("recovered", len(found.episodes))

    def edit(self) -> None:
        """Edit the episodes of a root, one after the other."""
        dataset = record.LocalDataset(self.folder / ROOT)
        first, second, third = (episode.uid for episode in dataset)
        self.say("begin")
        dataset.edits.set_static(first, "task", b"other")
        self.say("edited", "set_static")
        dataset.edits.trim(first, time_of(1), time_of(5))
        self.say("edited", "trim")
        dataset.edits.cut(second, time_of(2))
        self.say("edited", "cut")
        dataset.edits.drop(third)
        self.say("edited", "drop")

    def copy(self) -> None:
        """Copy a root, except for its last episode."""
        self.say("begin")
        copied = record.copy(copied_from(self.folder), self.folder / COPY)
        self.say("copied", *copied.copied)

    def merge(self) -> None:
        """Merge two roots, one of which has edits."""
        self.say("begin")
        sources = [self.folder / ROOT, self.folder / OTHER]
        merged = record.merge(sources, self.folder / MERGED)
        self.say("copied", *merged.copied)

    def replace(self) -> None:
        """Record signals that belong to no episode, over others."""
        place = self.folder / LONE
        self.say("begin")
        with (
            record.SimpleSignalWriter(place / "state.parquet", overwrite=True) as state,
            record.VideoSignalWriter(place / "cam.mp4", spec=SPEC, overwrite=True) as cam,
        ):
            for number in range(100, 103):
                state.append(value("state", number), time_of(number))
                cam.append(value("cam", number), time_of(number))
            state.flush()
            cam.flush()
            self.say("safe", 3)
            for number in range(103, 106):
                state.append(value("state", number), time_of(number))
                cam.append(value("cam", number), time_of(number))
            self.say("taken", 6)
            cam.close()
            self.say("closed", "cam")
            state.close()
            self.say("closed", "state")


ACTS: Final = ("record", "abort", "recover", "edit", "copy", "merge", "replace")


def play(act: str, folder: Path, log: Path, wait: Callable[[], object] | None = None) -> None:
    """Do it; names that are made up are the same every time, so that its calls are."""
    counts = itertools.count(1)
    secrets.token_hex = lambda nbytes=None: f"{next(counts):0{2 * (nbytes or 32)}x}"
    # Others in the same root have other uids.
    first = int.from_bytes(log.name.encode()[:15], "big") << 8
    uuid.uuid4 = lambda: uuid.UUID(int=first + next(counts))
    os.chdir(folder)  # which is in no repository, whose state would be asked for
    played = Act(folder, log)
    if wait is not None:
        wait()
    try:
        getattr(played, act)()
        played.say("done")
    except ReliveError as error:
        played.say("failed", type(error).__name__, error.kind, " ".join(str(error).split()))


if __name__ == "__main__":
    play(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
