"""The episodes that must fulfil the `Episode` contract; all have the same content.

To test another kind of episode, add one line to `EPISODES`.
"""

import base64
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping
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
from relive.model.schema import DType
from relive.model.signal import Signal
from relive.model.source import Rows
from relive.replay import ReplayConfig, ReplayEpisode, ReplayRecorder, ReplaySignal
from relive.replay.source import DatabaseSource
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


class _Note(ReplaySignal):
    """A signal of a run, whose numbers stand for texts."""

    kind = "text"
    dtype: DType = "str"

    def values_at(self, rows: Rows, out: Any = None) -> Any:
        numbers = super().values_at(rows).tolist()
        texts = np.array([*(f"note {number}" for number in numbers), None], dtype=object)[:-1]
        if out is None:
            return texts
        out[...] = texts
        return out


class _RunEpisode(ReplayEpisode):
    """An episode of a run with the names of the contract."""

    @property
    def signals(self) -> Mapping[str, Signal[Any]]:
        found = super().signals
        rows = {name: found[f"extras.{name}"]._rows for name in ("arm", "note")}  # type: ignore[attr-defined]
        columns = self._source.arrays.columns
        return {
            "arm/state": ReplaySignal(
                self._source, columns["extras.arm"], "arm/state", rows["arm"]
            ),
            "note": _Note(self._source, columns["extras.note"], "note", rows["note"]),
        }

    @property
    def statics(self) -> Mapping[str, Any]:
        found: dict[str, Any] = super().statics["metadata"]
        return {**found, "key": base64.b64decode(found["key"])}

    @property
    def meta(self) -> dict[str, Any]:
        return {**super().meta, "uid": super().statics["episode_id"]}


@functools.cache
def run_root() -> Path:
    """Record the episode between two others, once for all tests."""
    root = folder()
    config = ReplayConfig(chunk_rows=2, sync_episodes=False)
    statics = {**STATICS, "key": base64.b64encode(STATICS["key"]).decode()}
    rows = {name: {ts: row for row, ts in enumerate(times)} for name, times in TIMES.items()}
    with ReplayRecorder(root, "run", config=config, live=None) as recorder:
        recorder.begin_episode(UID, metadata=statics)
        for ts in sorted({ts for times in TIMES.values() for ts in times}):
            extras: dict[str, Any] = {}
            if ts in rows["arm/state"]:
                extras["arm"] = value("arm/state", rows["arm/state"][ts])
            if ts in rows["note"]:
                extras["note"] = rows["note"][ts]
            recorder.step(step_index=ts, extras=extras)
            recorder.step(extras={"arm": np.zeros(3)}, env=1)
        recorder.step(truncated=True)
    return root


def replay() -> Episode:
    source = DatabaseSource(run_root(), "run")
    return _RunEpisode(source, dataclasses.replace(source.episodes[0], started_ns=5))


EPISODES: dict[str, Callable[[], Episode]] = {
    "view": view,
    "disk": disk,
    "copied": copied,
    "edited": edited,
    "edited-in-root": edited_in_root,
    "transformed": transformed,
    "window": window,
    "replay": replay,
}

ON_DISK = tuple(name for name in EPISODES if name != "view")
"""Those that pickle small, since their records are in files."""
