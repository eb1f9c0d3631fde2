"""Values returned by an episode are copies: changing them has no effect on later results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.episodes import LocalDataset, LocalDatasetWriter, transforms
from relive.model.episode import Episode, EpisodeView
from relive.model.signal import ArraySignal, copied

STATICS = {"board": {"size": [7, 5]}, "task": "pick"}
ATTRS: dict[str, Any] = {"names": ["x"], "K": [[1, 2]]}


@pytest.fixture
def dataset(tmp_path: Path) -> LocalDataset:
    """Record one episode with nested statics, and two signals with nested attributes."""
    with LocalDatasetWriter(tmp_path / "root", signals={"b": "array"}).new_episode() as writer:
        for name, value in STATICS.items():
            writer.set_static(name, value)
        writer.describe("a", **ATTRS)
        writer.append("a", [1.0], 10)
        writer.append("a", [2.0], 20)
        before = dict(writer.meta["writer"])
        writer.meta["writer"]["name"] = "somebody"
        assert writer.meta["writer"] == before
    return LocalDataset(tmp_path / "root")


VIEWS: dict[str, Callable[[LocalDataset], Episode]] = {
    "disk": lambda dataset: dataset[0],
    "window": lambda dataset: dataset[0].time[:15],
    "samples": lambda dataset: dataset[0].time[[12, 13]],
    "resampled": lambda dataset: dataset[0].resample([12], "linear"),
    "transformed": lambda dataset: transforms.select("a", "board", "task")(dataset[0]),
    "derived": lambda dataset: transforms.derive({"c": lambda _: {"x": []}})(dataset[0]),
    "in memory": lambda _: EpisodeView(
        {"a": ArraySignal([1.0, 2.0], [10, 20], attrs=ATTRS)},
        {"board": {"size": [7, 5]}, "task": "pick"},
        {"writer": {"name": "me"}},
    ),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_returned_values_are_not_shared(
    dataset: LocalDataset, make: Callable[..., Episode]
) -> None:
    episode = make(dataset)
    wanted = copied(dict(episode.statics)), episode.meta, dict(episode["a"].attrs)
    assert episode.statics["board"] == STATICS["board"]
    now: Any = episode.time[14]
    now["board"]["size"].append(1)
    now["board"].clear()
    episode.statics["board"]["size"].append(2)
    episode["board"]["size"].append(3)
    episode.meta["writer"]["name"] = "somebody"
    episode["a"].attrs["K"][0].append(4)
    assert (dict(episode.statics), episode.meta, dict(episode["a"].attrs)) == wanted
    assert episode.time[14]["board"] == episode["board"] == STATICS["board"]
    if "c" in episode:
        episode["c"]["x"].append(1)
        assert episode["c"] == {"x": []}


def test_edits_are_not_shared(dataset: LocalDataset) -> None:
    dataset.edits.set_static(dataset[0].uid, "board", {"size": [1]})
    dataset.refresh()
    dataset[0].statics["board"]["size"].append(2)
    dataset[0].time[10]["board"]["size"].append(2)
    assert dataset[0].statics["board"] == {"size": [1]}


@pytest.mark.needs("av")
def test_attributes_of_a_camera_are_not_shared(tmp_path: Path) -> None:
    with LocalDatasetWriter(tmp_path).new_episode() as writer:
        writer.describe("cam", K=[[1]])
        writer.append("cam", np.zeros((16, 16, 3), np.uint8), 1)
    camera = LocalDataset(tmp_path)[0]["cam"]
    camera.attrs["K"][0].append(2)
    assert camera.attrs["K"] == [[1]]


def test_values_that_are_not_json_are_not_copied() -> None:
    thing = object()
    given = {"a": [thing, {"b": (thing,)}]}
    found = copied(given)
    assert found == given
    assert found["a"][0] is thing
    found["a"][1]["b"] = 1
    assert given["a"][1] == {"b": (thing,)}
