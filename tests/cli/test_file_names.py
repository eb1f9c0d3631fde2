"""File names that are not UTF-8 are printed escaped, or a typed error names them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relive.episodes import (
    LocalDataset,
    LocalDatasetWriter,
    SimpleSignal,
    SimpleSignalWriter,
    VideoSignal,
    VideoSignalWriter,
    recover,
    validate,
)
from relive.errors import InvalidError
from relive.store.records import RecordStore
from tests.cli.conftest import Relive
from tests.cli.recordings import leave_unfinished, record
from tests.episodes.by_hand import list_files

BAD = os.fsdecode(b"\xff")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a dataset whose path, and the file of one of its signals, is not UTF-8."""
    root = record(tmp_path / f"set{BAD}", episodes=1)
    (episode,) = root.glob("*/*")
    shutil.copy(episode / "q.parquet", episode / f"q{BAD}.parquet")
    list_files(episode)
    return root


@pytest.mark.parametrize(
    "command",
    [
        "info",
        "head",
        "stats",
        "validate",
        "recover",
        "episodes ls",
        "episodes ls --json",
        "episodes show ROOT 0",
        "episodes show ROOT 0 --json",
        "episodes validate",
        "episodes edit ROOT 0 history",
    ],
)
def test_commands_for_datasets_escape_names(relive: Relive, root: Path, command: str) -> None:
    words = command.split()
    line = [root if word == "ROOT" else word for word in words]
    done = relive(*line) if "ROOT" in words else relive(*line, root)
    assert done.status == 0, done.err
    assert BAD not in done.out + done.err


def test_datasets_are_read_and_copied(relive: Relive, root: Path, tmp_path: Path) -> None:
    dataset = LocalDataset(root)
    assert {"cam", "q", r"q\xff"} <= set(dataset[0].signals)
    assert np.array_equal(dataset[0][r"q\xff"].values(), dataset[0]["q"].values())
    assert dataset[0]["cam"][3][0].shape == (32, 48, 3)
    assert dataset.table()["path"][0].as_py().startswith(rf"{tmp_path}/set\xff/")
    target = tmp_path / f"copy{BAD}"
    assert relive("episodes", "copy", root, target).status == 0
    assert r"q\xff" in LocalDataset(target)[0].signals
    assert not validate(target, "full").problems
    assert relive("episodes", "plot", root, "0", "-o", tmp_path / f"p{BAD}.png").status == 0


def test_unfinished_episodes_are_recovered(tmp_path: Path) -> None:
    root = tmp_path / f"set{BAD}"
    leave_unfinished(root)
    recover(root)
    assert len(LocalDataset(root)) == 1
    assert not validate(root, "full").problems


def test_signals_have_escaped_names(relive: Relive, tmp_path: Path) -> None:
    columns, video = tmp_path / f"x{BAD}.parquet", tmp_path / f"cam{BAD}.mp4"
    with SimpleSignalWriter(columns) as numbers:
        numbers.append(1.5, ts_ns=1)
    with VideoSignalWriter(video) as frames:
        frames.append(np.zeros((32, 32, 3), np.uint8), ts_ns=1)
    assert (SimpleSignal(columns).name, SimpleSignal(columns)[0]) == (r"x\xff", (1.5, 1))
    assert (VideoSignal(video).name, VideoSignal(video)[0][1]) == (r"cam\xff", 1)
    for path in (columns, video):
        done = relive("info", path)
        assert done.status == 0
        assert r"\udcff" in done.out


def test_process_prints_escaped_names(root: Path) -> None:
    # As a process, which has a real standard output.
    for line in (["episodes", "ls", root], ["info", root], ["info", f"{root}/{BAD}"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "relive", *map(str, line)],
            capture_output=True,
            check=False,
        )
        assert b"Traceback" not in done.stderr
        assert b"\xff" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["a.parquet", "a.npy", "a"])
def test_converted_files_are_read_again(relive: Relive, tmp_path: Path, name: str) -> None:
    source, target = tmp_path / f"{BAD}{name}", tmp_path / f"store{BAD}"
    np.save(tmp_path / f"x{BAD}.npy", np.arange(5))
    assert relive("convert", tmp_path / f"x{BAD}.npy", source).status == 0
    done = relive("convert", source, target, "--json")
    assert (done.status, done.json["path"]) == (0, str(target))
    with RecordStore.open(target) as store:
        assert len(store) == 5


def test_text_that_no_path_can_have_raises(tmp_path: Path) -> None:
    for path in (f"{tmp_path}/\ud800", "\ud800"):
        for taker in (LocalDataset, LocalDatasetWriter, RecordStore.open, SimpleSignal):
            with pytest.raises(InvalidError, match="is not a valid path"):
                taker(path)
