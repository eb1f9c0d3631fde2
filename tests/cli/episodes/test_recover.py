"""`relive recover` of episodes, roots and single signals."""

import subprocess
import sys
from pathlib import Path

import pytest

from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.write.dataset_writer import LocalDatasetWriter
from tests.cli.conftest import Relive
from tests.cli.recordings import leave_unfinished

KILLED = """
import os, signal, sys
from relive.episodes import LocalDatasetWriter, SimpleSignalWriter
with LocalDatasetWriter(sys.argv[1]).new_episode() as episode:
    for step in range(100):
        episode.append("q", float(step), step)
    episode.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
ALONE = """
import os, signal, sys
from relive.episodes import SimpleSignalWriter
with SimpleSignalWriter(sys.argv[1]) as force:
    for step in range(9):
        force.append(float(step), step)
    force.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(program: str, path: Path) -> None:
    """Run a program that kills itself."""
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr


def test_episode_of_a_killed_writer(relive: Relive, tmp_path: Path) -> None:
    root = tmp_path / "arm"
    killed(KILLED, root)
    assert len(LocalDataset(root)) == 0
    folder = root / "000000000000" / "000000000000"
    done = relive("recover", folder)
    assert (done.status, done.err) == (0, "")
    (uid,) = LocalDataset(root).uids
    assert done.out == f"{folder}: {uid}, 1 signal, 100 records\n"
    assert len(LocalDataset(root)[0]["q"]) == 100
    again = relive("recover", folder)
    assert (again.status, again.out) == (0, f"{folder}: nothing is unfinished\n")


def test_root_is_recovered_except_the_episode_being_recorded(
    relive: Relive, tmp_path: Path
) -> None:
    root = tmp_path / "arm"
    left = [leave_unfinished(root), leave_unfinished(root, 3)]
    with LocalDatasetWriter(root).new_episode() as going:
        going.append("q", 1.0)
        done = relive("recover", root)
        assert done.status == 0
        assert [line.partition(":")[0] for line in done.out.splitlines()] == list(map(str, left))
        assert done.err == f"`{going.path}` is being recorded and was not changed\n"
        alone = relive("recover", going.path)
        assert (alone.status, alone.out) == (1, "")
        found = relive("recover", root, "--json").json
        assert (found["episodes"], found["locked"]) == ([], [str(going.path)])
    assert [len(episode["q"]) for episode in LocalDataset(root)] == [7, 3, 1]


def test_damage_is_reported_and_the_rest_recovered(relive: Relive, tmp_path: Path) -> None:
    root = tmp_path / "arm"
    folder = leave_unfinished(root)
    (folder / "static.json").write_text("{")
    done = relive("recover", root)
    assert done.status == 3
    assert done.out.endswith("1 signal, 7 records\n")
    assert done.err.startswith("warning: ")
    assert "static.json" in done.err


def test_single_signal(relive: Relive, tmp_path: Path) -> None:
    path = tmp_path / "force.parquet"
    killed(ALONE, path)
    assert not path.exists()
    done = relive("recover", path)
    assert (done.status, done.out, done.err) == (0, f"{path}: force, 9 records\n", "")
    assert path.exists()


@pytest.mark.parametrize("args", [["--output", "x"], ["--overwrite"]])
def test_output_directory_is_refused(relive: Relive, tmp_path: Path, args: list[str]) -> None:
    done = relive("recover", tmp_path, *args)
    assert done.status == 2
    assert "in place" in done.err


def test_missing_path_fails(relive: Relive, tmp_path: Path) -> None:
    done = relive("recover", tmp_path / "no.parquet")
    assert done.status == 1
    done = relive("recover", tmp_path)
    assert (done.status, done.out) == (0, f"{tmp_path}: nothing is unfinished\n")


def test_root_with_only_an_episode_being_recorded(relive: Relive, tmp_path: Path) -> None:
    with LocalDatasetWriter(tmp_path).new_episode() as going:
        going.append("q", 1.0)
        done = relive("recover", tmp_path)
        assert done.out == f"{tmp_path}: nothing to recover; 1 episode being recorded\n"
        assert done.err == f"`{going.path}` is being recorded and was not changed\n"
    assert relive("recover", tmp_path).out == f"{tmp_path}: nothing is unfinished\n"


def test_what_cannot_be_recovered_is_set_aside(relive: Relive, tmp_path: Path) -> None:
    root = tmp_path / "arm"
    with LocalDatasetWriter(root).new_episode() as whole:
        whole.append("q", 1.0)
    with LocalDatasetWriter(root).new_episode() as damaged:
        damaged.append("q", 1.0)
    (damaged.path / "meta.json").write_text("{")
    left = leave_unfinished(root)
    done = relive("recover", root)
    assert done.status == 3
    assert done.out.startswith(f"{left}: ")
    warning, hint = done.err.splitlines()
    assert warning.startswith(f"warning: `{damaged.path}` is damaged: ")
    assert "--set-aside" in hint
    again = relive("recover", root)
    assert (again.status, again.out, again.err) == (3, "", done.err)
    done = relive("recover", root, "--set-aside")
    target = root / ".set-aside" / "000000000000" / "000000000001"
    assert (done.status, done.out) == (0, f"{damaged.path}: moved to {target}\n")
    assert done.err.startswith(f"`{damaged.path}` was moved: ")
    assert len(LocalDataset(root).uids) == 2
    again = relive("recover", root, "--set-aside", "--json")
    assert again.status == 0
    assert (again.json["damaged"], again.json["set_aside"]) == ([], [])


def test_set_aside_of_a_file_is_refused(relive: Relive, tmp_path: Path) -> None:
    for name in ("x.parquet", "x.a2pack"):
        done = relive("recover", tmp_path / name, "--set-aside")
        assert done.status == 2
        assert "only to a dataset" in done.err
