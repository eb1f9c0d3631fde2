"""A process that records one episode after the other into a root which others share."""

import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive import episodes as record
from tests.faults.episodes.programs.robot import frame, number_of

SIGNALS: Final = ("state", "note", "cam")
SPEC: Final = record.VideoSpec(profile="record", gop=4)
ENDS: Final = ("commit", "commit", "commit", "abort", "leave")


def value(name: str, seed: int, number: int) -> Any:
    """Give what an episode records: it follows from its seed."""
    if name == "cam":
        return frame((seed + number) % 65536)
    return np.full(5, seed * 1000.0 + number) if name == "state" else f"{seed} {number}"


def write(root: Path, seed: int, count: int, said: Connection) -> None:
    """Record so many episodes, each ended in some way, and be killed in the last."""
    rng = random.Random(seed)  # noqa: S311 - moments, not secrets
    writer = record.LocalDatasetWriter(root, signals={"cam": SPEC})
    for turn in range(count + 1):
        rows, one = rng.randint(1, 25), seed + turn
        end = "die" if turn == count else rng.choice(ENDS)
        episode = writer.new_episode()
        episode.set_static("rows", rows)
        episode.set_static("seed", one)
        for number in range(rows):
            for name in SIGNALS:
                episode.append(name, value(name, one, number), number)
            time.sleep(rng.choice([0, 0, 0.002]))
        episode.flush()
        if end == "commit":
            episode.close()
        elif end == "abort":
            episode.abort()
        elif end == "leave":
            episode.leave()
        said.send((end, episode.uid, one, rows))
        if end == "die":
            os.kill(os.getpid(), signal.SIGKILL)


def check(episode: record.Episode) -> None:
    """See that an episode is whole, and is what its writer recorded."""
    rows, seed = episode["rows"], episode["seed"]
    assert [*episode.signals] == sorted(SIGNALS)
    outcome = episode.meta["outcome"]
    assert outcome["ended"] in {"committed", "recovered"}
    for name in SIGNALS:
        found = episode[name]
        assert found.timestamps.tolist() == [*range(rows)]
        assert outcome["signals"][name]["rows"] == rows
        for number, (got, _) in enumerate(found):
            wanted = value(name, seed, number)
            if name == "cam":
                assert number_of(got) == number_of(wanted)
            else:
                np.testing.assert_array_equal(got, wanted)


def edit(root: Path, end: Any, said: Connection) -> None:
    """Edit episodes as they come, until `end`; sends how many edits were made."""
    dataset = record.LocalDataset(root)
    edited: set[str] = set()
    while not end.is_set():
        dataset.refresh()
        for episode in dataset:
            if episode.uid not in edited:
                dataset.edits.set_static(episode.uid, "seen", len(edited))
                edited.add(episode.uid)
        time.sleep(0.01)
    said.send(len(edited))
