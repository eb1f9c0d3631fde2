"""What must hold of a folder of episodes, whatever happened to the process that wrote there."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import episodes as record
from relive.episodes import LocalDataset, recover, validate
from relive.errors import UnfinishedError
from tests.faults.episodes.programs.robot import number_of
from tests.faults.episodes.programs.script import (
    COPY,
    EDITS,
    LONE,
    MERGED,
    OLD_ROWS,
    OTHER,
    ROOT,
    ROWS,
    SIGNALS,
    STATICS,
    copied_from,
    sensor_time_of,
    time_of,
    value,
)
from tests.faults.episodes.programs.syscalls import Done

Files = dict[str, bytes]


def files_of(folder: Path) -> Files:
    """Give a digest of every file below a folder, and of each folder that there is one."""
    return {
        os.fspath(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b"folder"
        )
        for path in sorted(folder.rglob("*"))
    }


def check(act: str, folder: Path, done: Done, before: Files) -> None:
    """See that nothing is broken, and nothing lost of what the process said that it had done."""
    _committed_before(folder, before)
    if act in {"record", "abort"}:
        _check_recorded(folder / ROOT, done, before)
    elif act == "recover":
        _check_recovered(folder / ROOT, before)
    elif act == "edit":
        _check_edited(folder / ROOT, done)
    elif act == "replace":
        _check_replaced(folder / LONE, done)
    else:
        sources: list[Any] = [folder / ROOT, folder / OTHER]
        if act == "copy":
            sources = [copied_from(folder)]
        _check_copied(sources, folder / (COPY if act == "copy" else MERGED), done)
    _committed_before(folder, before)


def _committed_before(folder: Path, before: Files) -> None:
    """See that no byte of what was committed before is another one now."""
    now = files_of(folder)
    folders = {_folder(name) for name in before if name.endswith("meta.json")}
    committed = {each for each in folders if f"{each}/.unfinished" not in before}
    assert committed
    for name, digest in before.items():
        if _folder(name) in committed:
            assert now.get(name) == digest, name


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _check_recorded(root: Path, done: Done, before: Files) -> None:
    old = sum(name.startswith(ROOT) and name.endswith("meta.json") for name in before)
    dataset = LocalDataset(root)
    left = [each for each in dataset.unfinished if each.reason != "empty"]
    fresh = len(dataset) - old
    assert len(left) + fresh <= 1
    began, aborting = done.last("began"), done.last("aborting") is not None
    for each in left:
        assert each.reason == "left"
        with pytest.raises(UnfinishedError, match="relive recover"):
            record.DiskEpisode(each.path)
    assert not fresh or done.last("closing") is not None
    assert fresh == 1 or done.last("closed") is None
    if done.last("aborted") is not None:
        assert not left
        assert not list(root.rglob(".*"))
    if began is not None and not aborting:
        assert len(left) + fresh == 1
    has_movie = [(each.path / "cam.mp4").exists() for each in left]
    recover_all(root)
    dataset = LocalDataset(root)
    assert len(dataset) - old == len(left) + fresh
    for episode in list(dataset)[old:]:
        assert began is None or [episode.uid] == began
        least = ROWS if done.last("closed") is not None else done.number("safe")
        assert has_movie != [True] or len(episode["cam"]) == ROWS
        _check_episode(episode, least, ROWS, done.all("static"))
        _check_tidy(_place(episode))


def recover_all(root: Path) -> None:
    """Recover twice: nothing is wrong, and the second time there is nothing to do."""
    found = recover(root)
    assert not found.problems
    assert not found.locked
    again = recover(root)
    assert not again.episodes
    files = files_of(root)
    assert not recover(root).episodes
    assert files_of(root) == files
    assert not LocalDataset(root).unfinished
    assert not [*root.glob("*/.aborted.*")]
    check_valid(root)


def check_valid(root: Path) -> None:
    """See that every byte is as it should be."""
    report = validate(root, level="full")
    assert not report.problems
    assert not report.unfinished


def _check_tidy(folder: Path) -> None:
    names = sorted(each.name for each in folder.iterdir())
    assert not [name for name in names if name.startswith(".")], names


def _check_episode(
    episode: record.Episode, safe: int, most: int, statics: list[str], first: int = 0
) -> None:
    for name, static in STATICS.items():
        assert name not in statics or episode[name] == static
    # The one that was being set may be there.
    assert len(statics) <= len(episode.statics) <= len(statics) + 1
    assert all(STATICS[name] == static for name, static in episode.statics.items())
    for name in SIGNALS:
        if name not in episode.signals:
            assert not safe, f"{name} is gone"
            continue
        signal = episode[name]
        assert safe <= len(signal) <= most, (name, len(signal), safe)
        check_signal(signal, name, range(first, first + len(signal)))
        outcome = episode.meta["outcome"]["signals"][name]
        assert outcome["rows"] == len(signal)
    if "state" in episode.signals:
        signal = episode["state"]
        clock = signal.clock("sensor").tolist()
        assert clock == [sensor_time_of(number) for number in range(first, first + len(signal))]
        assert signal.attrs == {"unit": "rad"}


def check_signal(signal: record.Signal[Any], name: str, numbers: range) -> None:
    """See that a signal holds the records of these numbers."""
    assert signal.timestamps.tolist() == [time_of(number) for number in numbers], name
    for number, (got, _) in zip(numbers, signal, strict=True):
        if name == "cam":
            assert number_of(got) == number
        else:
            np.testing.assert_array_equal(got, value(name, number))


def _check_recovered(root: Path, before: Files) -> None:
    LocalDataset(root)
    recover_all(root)
    dataset = LocalDataset(root)
    begun = {
        _folder(name)
        for name in before
        if name.startswith(f"{ROOT}/") and name.endswith("/meta.json") and "/.aborted" not in name
    }
    assert len(dataset) == len(begun)
    for episode in dataset:
        path = os.fspath(_place(episode).relative_to(root.parent))
        was_committed = f"{path}/.unfinished" not in before
        rows = OLD_ROWS if was_committed else ROWS
        _check_episode(episode, rows, rows, [*STATICS])
        _check_tidy(_place(episode))


def _check_edited(root: Path, done: Done) -> None:
    raw = [episode.uid for episode in LocalDataset(root, edits=False)]
    dataset = LocalDataset(root)
    edits = [edit.op for uid in raw for edit in dataset.edits.history(uid)]
    count = len(edits)
    assert edits == [*EDITS[:count]]
    assert len(done.all("edited")) <= count <= len(done.all("edited")) + 1
    _check_overlay(dataset, raw, count)
    # It goes on from there.
    dataset.edits.set_static(raw[0], "task", "once more")
    dataset.refresh()
    assert dataset[0]["task"] == "once more"
    assert len(dataset.edits.history(raw[0])) == min(count, 2) + 1
    check_valid(root)


def _check_overlay(dataset: LocalDataset, raw: list[str], count: int) -> None:
    made = set(EDITS[:count])
    cut = [f"{raw[1]}#0", f"{raw[1]}#1"] if "cut" in made else [raw[1]]
    assert [episode.uid for episode in dataset] == [
        *(raw[0], *cut, *([] if "drop" in made else [raw[2]])),
    ]
    first = dataset[0]
    assert first["task"] == (b"other" if "set_static" in made else STATICS["task"])
    numbers = range(1, 5) if "trim" in made else range(OLD_ROWS)
    for name in SIGNALS:
        check_signal(first[name], name, numbers)
    if "cut" in made:
        check_signal(dataset[1]["cam"], "cam", range(2))
        check_signal(dataset[2]["cam"], "cam", range(2, OLD_ROWS))


def _check_copied(sources: list[Any], target: Path, done: Done) -> None:
    wanted = [
        episode
        for source in sources
        for episode in (LocalDataset(source) if isinstance(source, Path) else source)
    ]
    uids = [episode.uid for episode in wanted]
    if done.last("copied") is not None:
        assert done.last("copied") == uids
    if target.is_dir():
        there = LocalDataset(target)
        found = [episode.uid for episode in there]
        assert found == uids[: len(found)]
        assert len(found) == len(uids) or done.last("copied") is None
        for episode, other in zip(there, wanted, strict=False):
            _check_same(episode, other)
        check_valid_but_unfinished(target)
    # Whoever runs it again, and recovers before or after, has all of them once.
    again = record.merge(sources, target)
    assert [*again.skipped, *again.copied] == uids
    recover_all(target)
    assert [episode.uid for episode in LocalDataset(target)] == uids
    for episode, other in zip(LocalDataset(target), wanted, strict=True):
        _check_same(episode, other)
        _check_tidy(_place(episode))


def check_valid_but_unfinished(root: Path) -> None:
    """See that every byte that is committed is as it should be."""
    assert not validate(root, level="full").problems


def _place(episode: record.Episode) -> Path:
    assert isinstance(episode, record.DiskEpisode)
    return episode.path


def _check_same(episode: record.Episode, other: record.Episode) -> None:
    assert dict(episode.statics) == dict(other.statics)
    assert [*episode.signals] == [*other.signals]
    for name, signal in episode.signals.items():
        numbers = range(number_at(other[name], 0), number_at(other[name], -1) + 1)
        check_signal(signal, name, numbers)


def number_at(signal: record.Signal[Any], row: int) -> int:
    """Give the number of the record in a row."""
    return (int(signal.timestamps[row]) - time_of(0)) // (time_of(1) - time_of(0))


def _check_replaced(folder: Path, done: Done) -> None:
    closed = done.all("closed")
    files: dict[str, tuple[str, ...]] = {
        "state": ("state.parquet",),
        "cam": ("cam.mp4", "cam.frames.parquet"),
    }
    for name, places in files.items():
        tape = folder / f".{places[0]}.tape"
        if tape.exists():
            assert name not in closed
            recover(folder / places[0])
        recover(folder / places[0])
        signal: record.Signal[Any]
        if name == "cam":
            signal = record.VideoSignal(*(folder / each for each in places))
        else:
            signal = record.SimpleSignal(folder / places[0])
        least = 6 if name in closed else done.number("safe")
        is_new = len(signal) == 0 or number_at(signal, 0) == 100
        assert is_new or not least, f"{name} is as it was before"
        if is_new:
            assert least <= len(signal) <= 6
            check_signal(signal, name, range(100, 100 + len(signal)))
        else:
            check_signal(signal, name, range(OLD_ROWS))
    assert not [each.name for each in folder.iterdir() if each.name.endswith(".tape")]
