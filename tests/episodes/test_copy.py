"""Copies of datasets: by uid, atomic per episode, and repeatable after an interruption."""

import multiprocessing
import os
import shutil
import signal as signals_of_the_system
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest

from relive.episodes.copy import Copied, copy, merge
from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.recover import recover
from relive.episodes.write.dataset_writer import LocalDatasetWriter
from relive.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    UnfinishedError,
)
from relive.model.dataset import Dataset
from relive.model.episode import Episode, EpisodeView
from relive.model.signal import ArraySignal
from relive.store.signal.parquet_writer import ColumnsWriter
from tests.episodes.by_hand import episode_path, write_episode, write_root


def test_roots_are_merged_by_uid(tmp_path: Path) -> None:
    one, two = (write_root(tmp_path / name, 3, x=[(1.0, 1), (2.0, 2)]) for name in "ab")
    other = write_episode(episode_path(two, 3), {"x": [(5.0, 1)]}, uid="u3")
    done = merge([one, LocalDataset(two)], tmp_path / "all")
    assert done == Copied(("u0", "u1", "u2", "u3"), ("u0", "u1", "u2"))
    assert LocalDataset(tmp_path / "all").uids == ("u0", "u1", "u2", "u3")
    assert copy(other, tmp_path / "all").skipped == ("u3",)
    with pytest.raises(InvalidTypeError, match="must be a list of datasets"):
        merge(str(one), tmp_path / "all")


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def content(dataset: Dataset) -> dict[str, Any]:
    """Return everything in the episodes by uid; which must be there once."""
    assert len(set(dataset.uids)) == len(dataset)
    return {
        episode.uid: (dict(episode.statics), {k: list(v) for k, v in episode.signals.items()})
        for episode in dataset
    }


def assert_equal(one: Dataset, other: Dataset) -> None:
    assert content(one) == content(other)


@pytest.mark.parametrize("change", ["value", "time", "static", "signal", "more"])
def test_different_episode_with_the_same_uid_raises(tmp_path: Path, change: str) -> None:
    write_root(tmp_path / "a", 1, x=[(1.0, 1), (2.0, 2)])
    x = {
        "value": [(1.0, 1), (2.5, 2)],
        "time": [(1.0, 1), (2.0, 3)],
        "more": [(1.0, 1), (2.0, 2), (3.0, 3)],
    }.get(change, [(1.0, 1), (2.0, 2)])
    statics = {"number": 1 if change == "static" else 0}
    signals = {"y" if change == "signal" else "x": x}
    write_episode(episode_path(tmp_path / "b", 0), signals, statics, uid="u0")
    with pytest.raises(AlreadyExistsError, match="'u0'"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert len(LocalDataset(tmp_path / "all")) == 0
    copy(tmp_path / "a", tmp_path / "all")
    before = files(tmp_path / "all")
    with pytest.raises(AlreadyExistsError, match=r"000` holds another .* 'u0', which has other"):
        copy(tmp_path / "b", tmp_path / "all")
    assert files(tmp_path / "all") == before
    assert copy(tmp_path / "b", tmp_path / "all", replace=True) == Copied(("u0",), removed=("u0",))
    assert_equal(LocalDataset(tmp_path / "all"), LocalDataset(tmp_path / "b"))


def test_interrupted_copy_leaves_no_partial_episode(tmp_path: Path) -> None:
    write_root(tmp_path / "root", 3, x=[(1.0, 1)])

    def stop(done: int, total: int | None) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(tmp_path / "root", tmp_path / "copy", progress=stop)
    assert LocalDataset(tmp_path / "copy").uids == ("u0", "u1")

    class Breaks(ArraySignal):
        def values_at(self, rows: Any, out: Any = None) -> npt.NDArray[Any]:
            raise KeyboardInterrupt

    broken = EpisodeView({"a": ArraySignal([1.0], [1]), "b": Breaks([1.0], [1])}, {}, {"uid": "b"})
    with pytest.raises(KeyboardInterrupt):
        copy(broken, tmp_path / "copy")
    copied = LocalDataset(tmp_path / "copy")
    assert copied.unfinished == []
    assert sorted(p.name for p in (tmp_path / "copy" / "000000000000").iterdir()) == [
        "000000000000",
        "000000000001",
    ]
    assert copy(tmp_path / "root", tmp_path / "copy") == Copied(("u2",), ("u0", "u1"))


RECORDS = [(float(n), 10 * n) for n in range(6)]


def test_copy_after_edits_refuses_or_replaces(tmp_path: Path) -> None:
    root, target = write_root(tmp_path / "root", 4, x=RECORDS), tmp_path / "copy"
    write_root(tmp_path / "other", 6, x=RECORDS)
    copy(root, target)
    others = LocalDataset(tmp_path / "other").select([4, 5])
    copy(others, target)
    edits = LocalDataset(root).edits
    cases: list[tuple[str, Any, str, tuple[str, ...]]] = [
        ("cut", lambda: edits.cut("u0", 25), "'u0', which was cut into segments", ("u0",)),
        ("cut again", lambda: edits.cut("u0#1", 35), "'u0#1', which was cut", ("u0#1",)),
        ("trim", lambda: edits.trim("u1", 15), "'u1', which has other content", ("u1",)),
        ("set", lambda: edits.set_static("u0#0", "a", 1), "'u0#0', which has other", ("u0#0",)),
        ("drop", lambda: edits.drop("u2"), "'u2', which was dropped", ("u2",)),
        ("drop a part", lambda: edits.drop("u0#1#0"), "'u0#1#0', which was", ("u0#1#0",)),
    ]
    for name, edit, message, removed in cases:
        edit()
        view = LocalDataset(root)
        before = files(target)
        with pytest.raises(AlreadyExistsError, match=message) as caught:
            copy(view, target)
        assert "replace=True" in str(caught.value), name
        assert files(target) == before
        done = copy(view, target, replace=True)
        assert done.removed == removed
        assert_equal(LocalDataset(target), view + others)
        assert copy(view, target) == Copied((), view.uids)
    # The source as it was recorded: the whole replaces its segments.
    raw = LocalDataset(root, edits=False)
    with pytest.raises(
        AlreadyExistsError, match="which is a segment of one that is copied, and 1 more"
    ):
        copy(raw.select([0]), target)
    copy(raw, target, replace=True)
    assert_equal(LocalDataset(target), raw + others)
    recover(target)
    assert not [path for path in target.rglob("*") if path.name.startswith(".")]


def test_selections_are_added_to_a_root(tmp_path: Path) -> None:
    root, target = write_root(tmp_path / "root", 3, x=RECORDS), tmp_path / "copy"
    dataset = LocalDataset(root)
    dataset.edits.drop("u0")
    copy(LocalDataset(root, edits=False).select([0]), target)
    dataset.edits.cut("u1", 25)
    dataset.refresh()
    for position in (2, 1, 0):
        copy(dataset.select([position]), target)
    assert LocalDataset(target).uids == ("u0", "u2", "u1#1", "u1#0")


def test_recordings_are_not_replaced_by_their_own_copies(tmp_path: Path) -> None:
    root = write_root(tmp_path / "root", 3, x=RECORDS)
    dataset = LocalDataset(root)
    assert copy(dataset, root).skipped == ("u0", "u1", "u2")
    (tmp_path / "link").symlink_to(root)
    for number in range(2):
        if number == 0:
            dataset.edits.drop("u2")
        else:
            dataset.edits.trim("u0", 15)
        before = files(root)
        for source in (root, LocalDataset(root), [*LocalDataset(root)]):
            for target in (root, tmp_path / "link"):
                if isinstance(source, list) and number == 0:
                    continue  # a list does not say what was dropped
                with pytest.raises(InvalidError, match="to itself"):
                    copy(source, target, replace=True)
        assert files(root) == before


def test_killed_replacement_keeps_one_state_and_can_be_repeated(tmp_path: Path) -> None:
    root, target = write_root(tmp_path / "root", 6, x=RECORDS), tmp_path / "copy"
    copy(root, target)
    edits = LocalDataset(root).edits
    for number in range(5):
        edits.cut(f"u{number}", 25)
    view = LocalDataset(root)
    context = multiprocessing.get_context("spawn")
    for calls in (1, 7, 0, 2):  # two copies, eight, one removal, three
        worker = context.Process(target=replace_until, args=(root, target, calls))
        worker.start()
        worker.join()
        assert worker.exitcode == -signals_of_the_system.SIGKILL
        there = LocalDataset(target).uids
        for uid in ("u0", "u1", "u2", "u3", "u4"):
            assert uid in there or {f"{uid}#0", f"{uid}#1"} <= set(there)
    copy(view, target, replace=True)
    assert_equal(LocalDataset(target), view)


def replace_until(source: Path, target: Path, calls: int) -> None:
    """Copy with `replace`, and end the process at a number of renames."""
    real, left = Path.rename, iter(range(calls))

    def counted(path: Path, name: Path) -> Path:
        made = real(path, name)
        if next(left, None) is None:
            os.kill(os.getpid(), signals_of_the_system.SIGKILL)
        return made

    Path.rename = counted  # type: ignore[method-assign, assignment]
    copy(source, target, replace=True)


def copy_slowly(source: Path, target: Path) -> None:
    real = ColumnsWriter.close

    def slow(writer: ColumnsWriter) -> None:
        time.sleep(0.02)
        real(writer)

    ColumnsWriter.close = slow  # type: ignore[method-assign, assignment]
    copy(source, target)


def test_killed_copy_leaves_whole_episodes_and_can_be_repeated(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "copy"
    write_root(root, 20, x=[(1.0, 1)], y=[(1.0, 1)])
    target.mkdir()
    context = multiprocessing.get_context("spawn")
    for tried in range(4):
        worker = context.Process(target=copy_slowly, args=(root, target))
        worker.start()
        before = len(LocalDataset(target))
        while len(LocalDataset(target)) < before + 2 and worker.is_alive():
            time.sleep(0.001)
        time.sleep(0.005 * tried)
        os.kill(worker.pid or 0, signals_of_the_system.SIGKILL)
        worker.join()
        for episode in LocalDataset(target):
            assert len(episode["x"]) == len(episode["y"]) == 1
            assert episode.meta["outcome"]["signals"].keys() == {"x", "y"}
    recover(target)
    assert not [path for path in target.rglob("*") if path.name.startswith(".")]
    copy(root, target)
    copied = LocalDataset(target)
    assert sorted(copied.uids) == sorted(f"u{n}" for n in range(20))
    assert copied.unfinished == []


def test_copy_errors_are_explained(tmp_path: Path) -> None:
    root = write_root(tmp_path / "root", 1, x=[(1.0, 1)])
    with pytest.raises(InvalidError, match=r"'x': record \d has the time 2, which is not after"):
        copy(EpisodeView({"x": ArraySignal([1.0, 2.0], [3, 2])}), tmp_path / "copy")
    with pytest.raises(NotFoundError):
        copy(tmp_path / "none", tmp_path / "copy")
    with pytest.raises(InvalidTypeError):
        copy([1, 2], tmp_path / "copy")  # type: ignore[list-item]
    (episode_path(root, 0) / ".unfinished").touch()
    with pytest.raises(UnfinishedError):
        copy(episode_path(root, 0), tmp_path / "copy")
    assert copy(root, tmp_path / "copy") == Copied((), ())


def test_generators_and_filtered_datasets_are_copied(tmp_path: Path) -> None:
    def episodes() -> Iterator[Episode]:
        for n in range(3):
            yield EpisodeView({"x": ArraySignal([float(n)], [n])}, {}, {"uid": f"e{n}"})

    assert copy(episodes(), tmp_path / "copy").copied == ("e0", "e1", "e2")
    dataset = LocalDataset(tmp_path / "copy").filter(lambda each: each["x"][0][0] > 0)
    assert copy(dataset, tmp_path / "two").copied == ("e1", "e2")


def test_damaged_episodes_can_be_left_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for number in range(4):
        with LocalDatasetWriter(root).new_episode(uid=f"u{number}") as episode:
            for row in range(100):
                episode.append("x", float(row), row)
    (episode_path(root, 0) / "meta.json").write_bytes(b"")
    values = episode_path(root, 2) / "x.parquet"  # its footer is whole
    data = bytearray(values.read_bytes())
    data[len(data) // 3] ^= 1
    values.write_bytes(data)
    for source in (root, LocalDataset(root, errors="skip")):
        with pytest.raises(CorruptError):
            copy(source, tmp_path / "a")
        shutil.rmtree(tmp_path / "a")
    for target, done in (
        (tmp_path / "b", copy(root, tmp_path / "b", errors="skip")),
        (tmp_path / "c", merge([root, tmp_path / "b"], tmp_path / "c", errors="skip")),
    ):
        assert done.copied == ("u1", "u3")
        assert [each.path for each in done.damaged] == [
            *(episode_path(root, 0), episode_path(root, 2))
        ]
        assert LocalDataset(target).uids == ("u1", "u3")
        assert not list(target.rglob(".*"))
    with pytest.raises(InvalidError, match="errors"):
        copy(root, tmp_path / "d", errors="ignore")
