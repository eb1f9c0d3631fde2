"""Transforms of recorded vectors and video, in this process and in spawned ones."""

import pickle
from typing import Any

import numpy as np
import pytest

from relive.episodes import LocalDatasetWriter, nearest
from relive.episodes import transforms as tf
from relive.episodes.read.local_dataset import LocalDataset
from relive.model.dataset import Dataset
from relive.model.episode import Episode
from tests.episodes.processes import in_process

pytestmark = pytest.mark.needs("av")

LEVELS = range(0, 240, 8)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LocalDataset:
    root = tmp_path_factory.mktemp("robot")
    with LocalDatasetWriter(root) as writer, writer.new_episode() as episode:
        episode.set_static("task", "pick")
        for number, level in enumerate(LEVELS):
            episode.append("q", np.full(3, level, np.float32), ts_ns=number * 10)
            frame = np.full((32, 48, 3), level, np.uint8)
            episode.append("cam", frame, ts_ns=number * 10 + 1)
            episode.append("note", f"frame {number}", ts_ns=number * 10 + 2)
    return LocalDataset(root)


def brightness(frames: Any) -> Any:
    return frames.mean(axis=(1, 2, 3)).astype(np.float32)


def state(episode: Episode) -> Any:
    return tf.join(episode["q"], tf.map_values(episode["cam"], brightness))


PREPARE = (
    tf.derive(state=state)
    | tf.rename({"note": "text"})
    | tf.change(cam=tf.record_times)
    | tf.drop("q")
)


def levels(frames: Any) -> list[float]:
    found: list[float] = np.asarray(frames).mean(axis=(-1, -2, -3)).ravel().tolist()
    return found


def test_images_are_computed_from_video(dataset: Dataset) -> None:
    cam = dataset[0]["cam"]
    bright = tf.map_values(cam, brightness)
    assert bright.values().tolist() == pytest.approx(list(LEVELS), abs=3)
    assert [value for value, _ in bright] == pytest.approx(list(LEVELS), abs=3)
    part = tf.crop(cam, top=2, height=5, left=10)
    assert part.kind == "image"
    assert levels(part.time[101:131].values()) == pytest.approx([80, 88, 96], abs=3)


def test_offsets_of_video_frames(dataset: Dataset) -> None:
    cam = dataset[0]["cam"]
    history = tf.index_offsets(cam, [-2, 0])
    assert levels(history[20][0]) == pytest.approx([144, 160], abs=3)
    batch = history.gather([[20, 0]])["value"]
    assert levels(batch) == pytest.approx([144, 160, 0, 0], abs=3)
    before = tf.time_offsets(cam, [-15, 0], policy=nearest(5))
    assert levels(before.time[101][0]) == pytest.approx([64, 80], abs=3)
    assert levels([value for value, _ in history]) == pytest.approx(
        [level for k in range(30) for level in (LEVELS[max(0, k - 2)], LEVELS[k])], abs=3
    )


def test_signals_of_different_kinds_combined(dataset: Dataset) -> None:
    episode = dataset[0]
    text = tf.combine(
        [episode["note"], episode["q"]], lambda note, q: f"{note}: {q[0]:g}", batched=False
    )
    assert text.time[55][0] == "frame 5: 40"
    assert tf.join(episode["q"], at=episode["cam"]).timestamps[0] == 1
    both = tf.stack(episode["cam"], tf.shift(episode["cam"], 10))
    assert levels(both.time[55][0]) == pytest.approx([40, 32], abs=3)


def read(dataset: Dataset) -> list[Any]:
    episode = dataset[0]
    window = episode.time[100:130]
    return [
        window["state"].values().tolist(),
        episode["text"].time[105],
        episode["cam"].time[105],
        episode["task"],
        sorted(episode),
    ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_reads_in_another_process(dataset: Dataset, method: str) -> None:
    mapped = dataset.map(PREPARE)
    assert len(pickle.dumps(mapped)) < 2000
    here = read(mapped)
    assert len(here[0]) == 6
    assert here[1:] == [("frame 10", 102), (101, 101), "pick", ["cam", "state", "task", "text"]]
    assert in_process(method, read, mapped) == here
