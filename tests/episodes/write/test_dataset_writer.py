"""Recording into a root: episode numbers, options, and several processes."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest

from relive.episodes import LocalDatasetWriter, VideoSpec
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.read.local_dataset import LocalDataset
from relive.errors import AccessDeniedError, InvalidError, NotFoundError
from relive.store.atomic import storage_error

FRAME = np.zeros((16, 16, 3), np.uint8)


def folders_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob("*/*"))


def test_episodes_are_numbered_in_blocks(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "root"
    writer = LocalDatasetWriter(root)
    for number in range(3):
        with writer.new_episode() as episode:
            episode.append("x", float(number), 1)
    (root / "000000000000" / "000000000998").mkdir()
    for _ in range(2):
        writer.new_episode().close()
    assert folders_in(root) == [
        "000000000000/000000000000",
        "000000000000/000000000001",
        "000000000000/000000000002",
        "000000000000/000000000998",
        "000000000000/000000000999",
        "000000001000/000000001000",
    ]
    values = [episode["x"][0][0] for episode in LocalDataset(root)[:3]]
    assert values == [0.0, 1.0, 2.0]


def test_numbers_continue_after_existing_episodes(tmp_path: Path) -> None:
    for name in ("000000003000/000000003007", "notes", "12", "000000004000", "edits"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "edits.jsonl").write_text("")
    writer = LocalDatasetWriter(tmp_path).new_episode()
    assert writer.path == tmp_path / "000000003000" / "000000003008"
    writer.close()


def test_aborted_number_is_reused(tmp_path: Path) -> None:
    writer = LocalDatasetWriter(tmp_path)
    first = writer.new_episode()
    first.append("x", 1.0)
    first.abort()
    second = writer.new_episode()
    assert (second.path, second.uid != first.uid) == (first.path, True)
    second.close()


def test_options_apply_to_all_episodes_and_can_be_overridden(tmp_path: Path) -> None:
    spec = VideoSpec(profile="lossless", fps=30)
    writer = LocalDatasetWriter(tmp_path, signals={"cam.wrist": spec}, overload="drop", queue=5)
    with writer.new_episode() as episode:
        episode.append("cam.wrist", FRAME, 1)
        episode.append("cam.scene", FRAME, 1)
        assert episode.stats.signals["cam.wrist"].queue_capacity == 5
    with writer.new_episode(
        video="array", signals={"cam.top": "fast"}, overload="block", queue=7
    ) as episode:
        for name in ("cam.wrist", "cam.scene", "cam.top"):
            episode.append(name, FRAME, 1)
        assert episode.stats.signals["cam.top"].queue_capacity == 7
    first, second = (
        sorted(path.name for path in folder.glob("*.mp4"))
        for folder in sorted(tmp_path.glob("*/*"))
    )
    assert first == ["cam.scene.mp4", "cam.wrist.mp4"]
    assert second == ["cam.top.mp4", "cam.wrist.mp4"]
    with pytest.raises(InvalidError, match="on_error"):
        writer.new_episode(on_error="shrug")
    assert len(folders_in(tmp_path)) == 2


def test_writer_pickles(tmp_path: Path) -> None:
    writer = LocalDatasetWriter(tmp_path, signals={"a": "array"})
    again = pickle.loads(pickle.dumps(writer))  # noqa: S301 - our own data
    with again.new_episode() as episode:
        episode.append("a", FRAME, 1)
    assert DiskEpisode(tmp_path / "000000000000" / "000000000000")["a"].kind == "vector"
    assert repr(again) == f"LocalDatasetWriter({tmp_path})"


def test_root_that_is_a_file_raises(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(FileExistsError):
        LocalDatasetWriter(tmp_path / "root")
    assert isinstance(storage_error(PermissionError(13, "no"), "a", "write"), AccessDeniedError)


def test_root_that_vanishes(tmp_path: Path) -> None:
    writer = LocalDatasetWriter(tmp_path / "root")
    (tmp_path / "root").rmdir()
    with pytest.raises(NotFoundError):
        writer.new_episode()


def record_many(root: str, mark: int, count: int) -> None:
    writer = LocalDatasetWriter(root)
    for number in range(count):
        episode = writer.new_episode()
        episode.set_static("mark", [mark, number])
        episode.append("x", np.full(3, mark), 1)
        if number % 4 == 3:
            episode.abort()
        else:
            episode.close()


def test_several_processes_never_share_an_episode(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["relive.episodes"])
    processes = [context.Process(target=record_many, args=(tmp_path, n, 12)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    dataset = LocalDataset(tmp_path)
    assert len(dataset) == 36
    marks = sorted(tuple(episode["mark"]) for episode in dataset)
    assert marks == [(mark, number) for mark in range(4) for number in range(12) if number % 4 != 3]
    for episode in dataset:
        assert episode["x"][0][0].tolist() == [episode["mark"][0]] * 3
    assert len({episode.uid for episode in dataset}) == 36
