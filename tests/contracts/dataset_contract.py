"""The datasets that must fulfil the `Dataset` contract.

A factory returns a dataset of n episodes: episode i has the uid `u<i>`, the static `number` i and
a signal `x` of i + 1 records. To test another kind of dataset, add one line to `DATASETS`.
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relive.episodes import (
    ArraySignal,
    ConcatDataset,
    Dataset,
    Episode,
    EpisodeList,
    EpisodeView,
    LocalDataset,
    LocalDatasetWriter,
)
from relive.replay import ReplayConfig, ReplayEpisodes, ReplayRecorder
from relive.replay.source import DatabaseSource
from tests.contracts.source_contract import folder as shared_folder


def folder() -> Path:
    """Return an empty directory that is removed when the process exits."""
    return Path(tempfile.mkdtemp(dir=shared_folder()))


def episode(number: int) -> EpisodeView:
    count = number + 1
    signal = ArraySignal(np.arange(float(count)), np.arange(count) + 10 * number, name="x")
    return EpisodeView({"x": signal}, {"number": number}, {"uid": f"u{number}"})


def episode_list(n: int) -> Dataset:
    return EpisodeList(episode(number) for number in range(n))


@functools.cache
def root(n: int) -> Path:
    """Record a root once for all tests."""
    path = folder() / "root"
    writer = LocalDatasetWriter(path)
    for number in range(n):
        with writer.new_episode(uid=f"u{number}") as recording:
            recording.set_static("number", number)
            for row in range(number + 1):
                recording.append("x", float(row), row + 10 * number)
    return path


def local(n: int) -> Dataset:
    return LocalDataset(root(n))


def edited(n: int) -> Dataset:
    """Drop the last of n + 1 episodes, and trim the others without removing records."""
    path = folder() / "root"
    writer = LocalDatasetWriter(path)
    for number in range(n + 1):
        with writer.new_episode(uid=f"u{number}") as recording:
            recording.set_static("number", -1)
            for row in range(number + 1):
                recording.append("x", float(row), row + 10 * number)
    dataset = LocalDataset(path)
    for number in range(n):
        dataset.edits.set_static(f"u{number}", "number", number)
    dataset.edits.drop(f"u{n}")
    dataset.refresh()
    return dataset


def concat(n: int) -> Dataset:
    first = n // 2
    whole = episode_list(n)
    return ConcatDataset(whole.select(range(first)), EpisodeList([]), whole.select(slice(first, n)))


def selected(n: int) -> Dataset:
    return local(2 * n).select(range(n))


def selected_by_array(n: int) -> Dataset:
    backwards = episode_list(n).select(np.arange(n)[::-1])
    return backwards.select([n - 1 - number for number in range(n)])


def _is_small(each: Episode, n: int) -> bool:
    return bool(each["number"] < n)


def filtered(n: int) -> Dataset:
    return local(2 * n).filter(functools.partial(_is_small, n=n))


def _same(each: Episode) -> Episode:
    return EpisodeView(each.signals, each.statics, each.meta)


def mapped(n: int) -> Dataset:
    return local(n).map(_same)


def split_part(n: int) -> Dataset:
    keys = [number < n for number in range(n + 3)]
    parts = episode_list(n + 3).split((0.5, 0.5), by=keys)
    return max(parts, key=lambda part: "u0" in part.uids) if n else episode_list(0)


class _RunEpisodes(ReplayEpisodes):
    """The episodes of a run with the names of the contract."""

    def episode_at(self, position: int) -> Episode:  # type: ignore[override]
        each = super().episode_at(position)
        statics = {"number": each["metadata"]["number"]}
        return EpisodeView({"x": each["extras.x"]}, statics, {"uid": self.uid_at(position)})

    def uid_at(self, position: int) -> str:
        return f"u{position}"


@functools.cache
def run_root(n: int) -> Path:
    """Record a run once for all tests; its episodes are recorded at the same time."""
    path = folder() / "root"
    config = ReplayConfig(chunk_rows=4, sync_episodes=False)
    with ReplayRecorder(path, "run", config=config, live=None) as recorder:
        for number in range(n):
            recorder.begin_episode(env=number, metadata={"number": number})
        for row in range(n):
            for number in range(row, n):
                extras = {"x": np.float64(row)}
                recorder.step(env=number, step_index=10 * number + row, extras=extras)
    return path


def replay(n: int) -> Dataset:
    return _RunEpisodes(DatabaseSource(run_root(n), "run"))


DATASETS: dict[str, Callable[[int], Dataset]] = {
    "list": episode_list,
    "local": local,
    "edited": edited,
    "concat": concat,
    "selected": selected,
    "selected-by-array": selected_by_array,
    "filtered": filtered,
    "mapped": mapped,
    "split": split_part,
    "replay": replay,
}

ON_DISK = ("local", "selected", "filtered", "mapped", "replay")
"""Those that pickle small, since their episodes are in a root."""
