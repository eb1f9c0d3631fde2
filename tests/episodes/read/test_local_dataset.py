"""Datasets in a directory list the committed episodes and ignore everything else."""

import multiprocessing
import os
import pickle
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import relive
from relive.episodes import LocalDatasetWriter, recover
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.read.local_dataset import LocalDataset
from relive.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    ReliveError,
    TooLargeError,
    UnfinishedError,
    UnknownNameError,
)
from relive.model.dataset import ConcatDataset, Dataset
from relive.model.episode import Episode
from relive.store.locks import FileLock
from tests.episodes.by_hand import episode_path, write_episode, write_root
from tests.episodes.processes import in_process

if TYPE_CHECKING:
    from collections.abc import Callable

X = [(float(n), 10 * n) for n in range(4)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_root(tmp_path / "root", 3, x=X)


def numbers(dataset: Dataset | list[Episode]) -> list[int]:
    return [each["number"] for each in dataset]


def test_episodes_are_in_order_of_their_numbers(root: Path) -> None:
    for number in (1000, 12_345, 999, 1_000_000):
        write_episode(episode_path(root, number), {"x": X}, {"number": number}, uid=f"u{number}")
    dataset = LocalDataset(root)
    assert numbers(dataset) == [0, 1, 2, 999, 1000, 12_345, 1_000_000]
    assert all(isinstance(each, DiskEpisode) for each in dataset)
    assert dataset.uids[-1] == "u1000000"
    assert dataset[-1].uid == "u1000000"
    assert numbers(dataset[::3]) == [0, 999, 1_000_000]
    assert dataset.by_uid("u999")["number"] == 999
    assert repr(dataset) == f"LocalDataset({str(root)!r}, 7 episodes)"


def test_only_committed_episodes_are_listed(root: Path) -> None:
    left = write_episode(episode_path(root, 3), {"x": X}, uid="left")
    (left / ".unfinished").write_text("{}")
    being = write_episode(episode_path(root, 4), {}, uid="being")
    (being / ".unfinished").write_text("{}")
    lock = FileLock.take(being / ".unfinished")
    episode_path(root, 5).mkdir()  # an episode directory that is only reserved
    torn = episode_path(root, 6)  # the writer died before it wrote metadata
    torn.mkdir()
    (torn / ".unfinished").touch()
    dataset = LocalDataset(root)
    assert numbers(dataset) == [0, 1, 2]
    found = {each.path: each.reason for each in dataset.unfinished}
    assert found == {left: "left", being: "locked", episode_path(root, 5): "empty", torn: "left"}
    lock.release()
    assert {each.reason for each in dataset.unfinished} == {"left", "empty"}
    with pytest.raises(UnknownNameError):
        dataset.by_uid("left")


def test_root_with_other_files_opens(root: Path) -> None:
    (root / "README.md").write_text("hello")
    (root / "000000000007").touch()  # a file with the name of a block directory
    (root / "1234").mkdir()
    (root / "x00000000000").mkdir()
    (root / "٠١٢٣٤٥٦٧٨٩٠١").mkdir()  # a numeric name in another form
    (root / ".hidden").mkdir()
    block = root / "000000000000"
    (block / "notes").mkdir()
    (block / "000000000009").touch()
    (block / ".aborted.000000000003.x").mkdir()
    (block / "000000000010").symlink_to("nowhere")
    (root / "000000009000").mkdir()
    dataset = LocalDataset(root)
    assert numbers(dataset) == [0, 1, 2]
    assert dataset.unfinished == []


def test_damaged_episode_does_not_hide_the_rest(root: Path) -> None:
    (episode_path(root, 1) / "meta.json").write_bytes(b"")
    (episode_path(root, 2) / "x.parquet").write_bytes(b"PAR1")
    LocalDataset(root).edits.drop("u0")
    dataset = LocalDataset(root)
    assert len(dataset) == 2
    with pytest.raises(CorruptError, match=r"meta\.json"):
        dataset[0].uid  # noqa: B018
    assert dataset[1].uid == "u2"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return a root in which episodes 1, 2, 4, 6, 7 and 9 of ten cannot be read."""
    root = write_root(tmp_path / "root", 10, x=X)
    (episode_path(root, 1) / "meta.json").write_bytes(b"")
    (episode_path(root, 2) / "x.parquet").write_bytes(b"PAR1")
    (episode_path(root, 4) / "static.json").write_text("[]")
    (episode_path(root, 6) / "outcome.json").write_text("{")
    for number in (7, 9):
        (episode_path(root, number) / "meta.json").unlink()
    (episode_path(root, 7) / "meta.json").symlink_to("meta.json")  # it cannot even be examined
    (episode_path(root, 9) / "meta.json").mkdir()
    return root


READABLE = [0, 3, 5, 8]
UIDS = tuple(f"u{number}" for number in READABLE)


def test_error_of_a_damaged_episode_names_it_and_the_option(damaged: Path) -> None:
    dataset = LocalDataset(damaged)
    assert len(dataset) == 10
    assert dataset.damaged == []
    failing: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: dataset.uids),
        (1, lambda: dataset.by_uid("u5")),
        (1, lambda: dataset.split((0.5, 0.5))),
        (1, lambda: dataset[1].uid),
        (1, dataset.table),
        (2, lambda: dataset.select([0, 2]).table()),
        (2, lambda: (dataset + dataset).select([0, 12]).table()),
        (4, lambda: dataset[4].statics),
        (4, lambda: len(dataset.select([0, 4]).filter(lambda episode: episode["number"] > 1))),
        (6, lambda: dataset[6].meta),
        (7, lambda: dataset[7]),
        (7, lambda: dataset.uid_at(7)),
        (9, lambda: dataset[9].uid),
    ]
    for number, read in failing:
        with pytest.raises(ReliveError, match=f"{number:012}") as error:
            read()
        assert 'errors="skip"' in (error.value.hint or "")


def test_damaged_episodes_can_be_skipped(damaged: Path) -> None:
    dataset = LocalDataset(damaged, errors="skip")
    assert len(dataset) == 4
    assert numbers(dataset) == numbers(list(dataset)) == READABLE
    assert dataset.uids == UIDS
    assert dataset[-1].uid == "u8"
    assert numbers(dataset[1:3]) == [3, 5]
    assert dataset.by_uid("u5")["number"] == 5
    with pytest.raises(UnknownNameError):
        dataset.by_uid("u2")
    table = dataset.table()
    assert table["position"].to_pylist() == [0, 1, 2, 3]
    assert table["uid"].to_pylist() == list(UIDS)
    assert numbers(dataset.filter(lambda episode: episode["number"] > 3)) == [5, 8]
    assert dataset.select([3, 0]).uids == ("u8", "u0")
    views = dataset.split((0.5, 0.5))
    assert sorted(uid for view in views for uid in view.uids) == sorted(UIDS)
    assert len(dataset + dataset) == 8
    assert [len(episode["x"]) for episode in dataset] == [4] * 4
    found = {int(each.path.name): each.reason for each in dataset.damaged}
    assert list(found) == [1, 2, 4, 6, 7, 9]
    assert "meta.json" in found[1]
    assert "x.parquet" in found[2]
    assert "static.json" in found[4]
    assert "outcome.json" in found[6]
    assert dataset.unfinished == []
    with pytest.raises(InvalidError, match="'raise', 'skip'"):
        LocalDataset(damaged, errors="ignore")


def test_skipped_episodes_stay_skipped_in_a_pickle_until_refresh(damaged: Path) -> None:
    dataset = LocalDataset(damaged, errors="skip")
    copied: LocalDataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    reasons = dataset.damaged
    shutil.copy(episode_path(damaged, 0) / "x.parquet", episode_path(damaged, 2) / "x.parquet")
    (episode_path(damaged, 8) / "meta.json").write_bytes(b"")
    again: LocalDataset = pickle.loads(pickle.dumps(copied))  # noqa: S301
    for each in (copied, again, dataset.snapshot()):
        assert len(each) == 4
        assert each.damaged == reasons
    for each in (copied, dataset):
        each.refresh()
        assert each.uids == ("u0", "u2", "u3", "u5")
        assert [int(one.path.name) for one in each.damaged] == [1, 4, 6, 7, 8, 9]


def test_damaged_episodes_can_be_skipped_with_edits(damaged: Path) -> None:
    edits = LocalDataset(damaged).edits
    edits.cut("u5", 20)
    edits.drop("u0")
    edits.drop("u4")
    edits.set_static("u2", "task", "pick")
    dataset = LocalDataset(damaged, errors="skip")
    assert dataset.uids == ("u3", "u5#0", "u5#1", "u8")
    assert dataset.table()["uid"].to_pylist() == list(dataset.uids)
    # An episode that was dropped is neither listed nor damaged.
    assert [int(each.path.name) for each in dataset.damaged] == [1, 2, 6, 7, 9]
    (episode_path(damaged, 8) / "x.parquet").write_bytes(b"")
    assert LocalDataset(damaged, errors="skip").uids == ("u3", "u5#0", "u5#1")
    raw = LocalDataset(damaged, errors="skip", edits=False)
    assert raw.uids == ("u0", "u3", "u5")


def test_table_refuses_an_episode_whose_duration_exceeds_64_bits(tmp_path: Path) -> None:
    writer = LocalDatasetWriter(tmp_path)
    uids = []
    for last in (2**63 - 1, 5):
        with writer.new_episode() as episode:
            episode.append("joint", 0.5, ts_ns=-2)
            episode.append("joint", 0.5, ts_ns=last)
            uids.append(episode.uid)
    dataset = LocalDataset(tmp_path)
    assert dataset[0].duration_ns == 2**63 + 1
    for each in (dataset, dataset + dataset, dataset.map(lambda episode: episode)):
        with pytest.raises(TooLargeError, match=f"`duration_ns` of episode '{uids[0]}' is 922337"):
            each.table()
    assert dataset.select([1]).table()["duration_ns"].to_pylist() == [7]
    rest = LocalDataset(tmp_path, errors="skip")
    assert rest.table()["uid"].to_pylist() == uids[1:]
    (skipped,) = rest.damaged
    assert skipped.path.name == "000000000000"
    dataset.edits.trim(uids[0], -2, 0)
    assert len(LocalDataset(tmp_path, errors="skip").table()) == 2
    # It is whole, so recovery leaves it alone.
    found = recover(tmp_path, set_aside=True)
    assert (found.problems, found.set_aside) == ((), ())


def test_open_passes_errors_to_datasets(damaged: Path) -> None:
    assert relive.open(damaged, errors="skip").uids == UIDS
    shutil.copytree(damaged, damaged.with_name("root2"), symlinks=True)
    assert relive.open(f"{damaged.parent}/root*", errors="skip").uids == UIDS * 2


def test_what_was_set_aside_is_not_listed(damaged: Path) -> None:
    relive.episodes.recover(damaged, set_aside=True)
    dataset = LocalDataset(damaged)
    assert dataset.uids == UIDS
    assert dataset.unfinished == []
    assert relive.episodes.validate(damaged).ok
    assert relive.open(damaged).uids == UIDS


def test_missing_root_raises_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        LocalDataset(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        LocalDataset(tmp_path / "none", edits=False)
    (tmp_path / "file").touch()
    with pytest.raises(NotFoundError):
        LocalDataset(tmp_path / "file")
    assert len(LocalDataset(tmp_path)) == 0


def test_dataset_is_a_snapshot_until_refresh(root: Path) -> None:
    dataset = LocalDataset(root)
    view, joined = dataset.select(slice(None)), dataset + dataset
    assert dataset.by_uid("u0").uid == "u0"
    write_episode(episode_path(root, 3), {"x": X}, {"number": 3}, uid="u3")
    (episode_path(root, 0) / ".unfinished").touch()
    dataset.edits.drop("u1")
    assert list(dataset.uids) == ["u0", "u1", "u2"]
    with pytest.raises(UnfinishedError):
        dataset[0]
    dataset.refresh()
    assert list(dataset.uids) == ["u2", "u3"]
    assert numbers(dataset) == [2, 3]
    with pytest.raises(UnknownNameError):
        dataset.by_uid("u0")
    assert view.uids == ("u0", "u1", "u2")
    assert len(joined) == 6
    assert [each.path for each in dataset.unfinished] == [episode_path(root, 0)]


def test_removed_episode_raises_not_found(root: Path) -> None:
    dataset = LocalDataset(root)
    shutil.rmtree(episode_path(root, 1))
    assert dataset[2]["number"] == 2
    with pytest.raises(NotFoundError):
        dataset[1]


def test_pickle_is_small_and_keeps_the_snapshot(root: Path) -> None:
    for number in range(3, 300):
        write_episode(episode_path(root, number), {}, uid=f"u{number}")
    dataset = LocalDataset(root)
    dataset.edits.drop("u7")
    dataset.edits.set_static("u8", "task", b"\x00")
    edited = LocalDataset(root)
    views = [dataset, edited, edited.select([5, 1]), edited.filter(lambda e: e.uid > "u8")]
    data = [pickle.dumps(view) for view in views]
    assert max(map(len, data)) < 1500
    uids = [view.uids for view in views]
    write_episode(episode_path(root, 300), {}, uid="u300")
    dataset.edits.drop("u9")
    again = [pickle.loads(each) for each in data]  # noqa: S301 - our own data
    assert [view.uids for view in again] == uids
    assert again[1].by_uid("u8")["task"] == b"\x00"
    assert again[1][7].uid == "u8"
    again[1].refresh()
    assert set(again[1].uids) == set(uids[1]) - {"u9"} | {"u300"}
    assert pickle.loads(pickle.dumps(again[1])).uids == again[1].uids  # noqa: S301


def read_in_worker(dataset: Dataset, position: int) -> tuple[str, list[float], int]:
    episode = dataset[position]
    return episode.uid, episode["x"].values().tolist(), len(dataset)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_reads_in_other_processes(root: Path, method: str) -> None:
    LocalDataset(root).edits.trim("u1", 10, 30)
    dataset = LocalDataset(root)
    assert dataset[0]["x"][0][0] == 0.0  # used in this process before the child uses it
    view = dataset.filter(lambda each: each["number"] > 0)
    whole = in_process(method, read_in_worker, dataset, 0)
    assert whole == ("u0", [0.0, 1.0, 2.0, 3.0], 3)
    assert in_process(method, read_in_worker, view, 0) == ("u1", [1.0, 2.0], 2)


def record(root: Path, name: str, count: int) -> None:
    from relive.episodes import LocalDatasetWriter

    writer = LocalDatasetWriter(root)
    for number in range(count):
        with writer.new_episode() as episode:
            episode.set_static("who", f"{name}{number}")
            episode.append("x", np.arange(3.0), 5)


def test_several_writers_share_a_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=record, args=(root, name, 10)) for name in "ab"]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        for episode in LocalDataset(root):  # every listed episode is whole
            assert episode["who"]
            assert episode["x"][0][0].tolist() == [0.0, 1.0, 2.0]
            assert episode.meta["outcome"]["ended"] == "committed"
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    dataset = LocalDataset(root)
    assert sorted(each["who"] for each in dataset) == sorted(
        f"{n}{i}" for n in "ab" for i in range(10)
    )
    assert len(set(dataset.uids)) == 20
    assert dataset.unfinished == []


def test_relative_root_is_resolved_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = LocalDataset("root")
    monkeypatch.chdir("/")
    assert numbers(dataset) == [0, 1, 2]
    assert dataset.path == root
    dataset.refresh()


def test_open_recognizes_a_dataset(root: Path, tmp_path: Path) -> None:
    dataset = relive.open(root)
    assert isinstance(dataset, LocalDataset)
    assert len(dataset) == 3
    dataset.edits.drop("u0")
    assert len(relive.open(os.fspath(root))) == 2
    assert len(relive.open(root, edits=False)) == 3
    write_root(tmp_path / "root2", 1)
    joined = relive.open(tmp_path / "root*")
    assert isinstance(joined, ConcatDataset)
    assert joined.uids == ("u1", "u2", "u0")


def test_opening_a_thousand_episodes_is_quick(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for number in range(1000):
        folder = episode_path(root, number)
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text('{"schema_version": 1, "created_ts_ns": 1, "uid": "u"}')
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        assert len(LocalDataset(root)) == 1000
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.05


def test_episode_folder_is_not_a_root(root: Path) -> None:
    folder = episode_path(root, 0)
    with pytest.raises(InvalidError, match="is a single episode") as caught:
        LocalDataset(folder)
    assert caught.value.hint == f"DiskEpisode({str(folder)!r}) opens it"
    (folder / ".unfinished").touch()
    with pytest.raises(InvalidError, match="is a single episode"):
        LocalDataset(folder)
    (root / "meta.json").write_text("somebody else's")
    assert len(LocalDataset(root)) > 0
