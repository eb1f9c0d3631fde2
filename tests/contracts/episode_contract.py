"""The episodes that must fulfil the `Episode` contract; all have the same content.

To test another kind of episode, add one line to `EPISODES`.
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from relive.episodes import (
    ArraySignal,
    DiskEpisode,
    EditedEpisode,
    Episode,
    EpisodeView,
    LocalDataset,
    LocalDatasetWriter,
    copy,
    transforms,
)
from relive.episodes.edit.edited_episode import Segment
from tests.contracts.source_contract import folder as shared_folder

UID = "u7"
STATICS: dict[str, Any] = {"task": "pick", "pose": [1, {"x": 2.5}], "key": b"\xff", "none": None}
TIMES: dict[str, list[int]] = {"arm/state": [10, 20, 30, 40], "note": [25, 35]}
FIRST, START, LAST = 10, 25, 40


def folder() -> Path:
    """Return an empty directory that is removed when the process exits."""
    return Path(tempfile.mkdtemp(dir=shared_folder()))


def value(name: str, row: int) -> Any:
    """Return the value of a record."""
    if name == "note":
        return f"note {row}"
    return np.arange(3.0) + row


def signal(name: str, times: list[int], first: int = 0) -> ArraySignal:
    values = [value(name, first + row) for row in range(len(times))]
    if name == "note":
        return ArraySignal(np.array([*values, None], dtype=object)[:-1], times, name=name)
    return ArraySignal(np.array(values, dtype=np.float64).reshape(-1, 3), times, name=name)


def view() -> Episode:
    signals = {name: signal(name, times) for name, times in TIMES.items()}
    return EpisodeView(signals, STATICS, {"uid": UID, "created_ts_ns": 5})


def record(
    root: Path, *, before: int = 0, after: int = 0, suffix: str = "", **statics: Any
) -> Path:
    """Record the episode with additional records before and after; return its directory."""
    with LocalDatasetWriter(root).new_episode(uid=UID, created_ts_ns=5) as writer:
        for name, item in (STATICS | statics).items():
            writer.set_static(name + suffix, item)
        for name, times in TIMES.items():
            for row in range(-before, len(times) + after):
                ts = times[row] if 0 <= row < len(times) else row if row < 0 else 100 + row
                writer.append(name + suffix, value(name, row), ts)
    return writer.path


@functools.cache
def recorded(before: int = 0, after: int = 0, suffix: str = "") -> Path:
    """Record the episode once for all tests."""
    return record(folder(), before=before, after=after, suffix=suffix)


def disk() -> Episode:
    return DiskEpisode(recorded())


def copied() -> Episode:
    root = folder() / "copy"
    copy(view(), root)
    return LocalDataset(root)[0]


def edited() -> Episode:
    return EditedEpisode(DiskEpisode(recorded(after=2)), Segment(UID, stop=100))


def edited_in_root() -> Episode:
    root = folder()
    record(root, after=2, task="other")
    dataset = LocalDataset(root)
    dataset.edits.set_static(UID, "task", "pick")
    dataset.edits.trim(UID, stop=100)
    dataset.refresh()
    return dataset[0]


def transformed() -> Episode:
    names = {f"{name}.old": name for name in (*TIMES, *STATICS)}
    return transforms.rename(names)(DiskEpisode(recorded(suffix=".old")))


def window() -> Episode:
    return DiskEpisode(recorded(before=3)).time[0:100]


EPISODES: dict[str, Callable[[], Episode]] = {
    "view": view,
    "disk": disk,
    "copied": copied,
    "edited": edited,
    "edited-in-root": edited_in_root,
    "transformed": transformed,
    "window": window,
}

ON_DISK = tuple(name for name in EPISODES if name != "view")
"""Those that pickle small, since their records are in files."""
