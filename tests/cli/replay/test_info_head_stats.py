"""`relive info`, `head` and `stats` of a directory of runs, and of the file of one run."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from relive.cli.replay import summary
from relive.replay import ReplayRecorder
from relive.replay.manage.runs import archive, delete
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path
from relive.replay.storage.tables import read_run, write_run
from tests.cli.conftest import Relive
from tests.replay.toy_run import STEPS, record, reward

COMMANDS = ["info", "head", "stats"]
ALL = 3 * STEPS


def damage(root: Path, run_id: str) -> None:
    """Change the row of a run."""
    with Database.create(database_path(root)) as database:
        database.rows("UPDATE runs SET env_id = 'Other-v0' WHERE run_id = ?", (run_id,))


def pairs(text: str) -> dict[str, str]:
    """Return names and values of two columns."""
    lines = [line.split("  ", maxsplit=1) for line in text.splitlines()]
    return {name: value.strip() for name, value in lines}


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return re.split(r" {2,}", line.strip())


def test_info_of_a_root(relive: Relive, root: Path) -> None:
    done = relive("info", root)
    assert (done.status, done.err) == (0, "")
    found = pairs(done.out)
    assert (found["path"], found["kind"]) == (str(root), "runs")
    assert (found["runs"], found["episodes"], found["steps"]) == ("2", "12", "51")
    assert found["status"] == "2 finished"
    assert found["run toy-1"].startswith("finished, Toy-v0, 3 episodes, 21 steps, ")
    assert found["run vector-1"].startswith("finished, 9 episodes, 30 steps, ")
    data = relive("info", root, "--json").json
    assert (data["kind"], data["episodes"], data["steps"]) == ("runs", 12, 51)
    assert data["status"] == {"finished": 2}
    assert [run["run_id"] for run in data["runs"]] == ["toy-1", "vector-1"]
    size = arrays_path(root, "toy-1").stat().st_size
    assert data["runs"][0]["file_bytes"] == size
    assert data["file_bytes"] > size + database_path(root).stat().st_size
    assert data["problems"] == {}


def test_info_lists_only_the_newest_of_many_runs(
    relive: Relive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "_MOST_RUNS", 3)
    for number in range(5):
        with ReplayRecorder(tmp_path, f"run-{number}", live=None, arrays=False) as recorder:
            recorder.step(reward=1.0)
    out = relive("info", tmp_path).out
    assert pairs(out)["2 earlier runs"] == f"`relive replay ls {tmp_path}` lists all"
    assert [line.split()[1] for line in out.splitlines()[-3:]] == ["run-2", "run-3", "run-4"]
    assert len(relive("info", tmp_path, "--json").json["runs"]) == 5


def test_info_of_a_run(relive: Relive, root: Path) -> None:
    path = arrays_path(root, "toy-1")
    done = relive("info", path)
    assert (done.status, done.err) == (0, "")
    found = pairs(done.out)
    assert (found["kind"], found["files"], found["run"]) == ("run", "1", "toy-1")
    assert (found["status"], found["env"], found["seed"]) == ("finished", "Toy-v0", "7")
    assert (found["episodes"], found["steps"]) == ("3", "21")
    image = found["array observations.image"]
    assert image.startswith("uint8 (16, 16, 4), stack along the last axis, zstd:1, ")
    assert found["array rewards"].startswith("float64, zstd:1, ")
    data = relive("info", path, "--json").json
    assert (data["kind"], data["run_id"], data["file_bytes"]) == (
        "run", "toy-1", path.stat().st_size
    )  # fmt: skip
    assert data["spaces"] == {"n": 4}
    assert data["fields"]["frames"]["codec"] == "zstd"
    assert data["fields"]["frames"]["stored_bytes"] > 0


def test_info_shows_spaces_and_the_commit(relive: Relive, tmp_path: Path) -> None:
    box = {"type": "Box", "low": 0, "high": 1, "shape": [4], "dtype": "float32"}
    inner = {"a": box, "b": {"type": "Discrete", "n": 3}, "c": 1}
    spaces = {
        "observation": {"type": "Dict", "spaces": inner},
        "action": {"type": "Tuple", "spaces": [{"type": "MultiDiscrete", "nvec": [2]}]},
    }
    with ReplayRecorder(tmp_path, "x", spaces=spaces, live=None) as recorder:
        recorder.step([0.5])
    with (
        Database.create(database_path(tmp_path)) as database,
        database.transaction() as connection,
    ):
        run = read_run(connection, "x")
        run.git = '{"commit": "abc", "branch": null, "dirty": true}'
        write_run(connection, run)
    found = pairs(relive("info", arrays_path(tmp_path, "x")).out)
    assert found["spaces"] == (
        "observation Dict(a: Box(float32 (4,)), b: Discrete(3), c: ?), "
        "action Tuple(MultiDiscrete([2]))"
    )
    assert found["git"] == "abc (no branch, with changes)"


def test_head_of_a_root_has_the_first_steps_of_each_run(relive: Relive, root: Path) -> None:
    lines = [line.split() for line in relive("head", root, "-n", 2).out.splitlines()]
    assert lines[0] == [
        "run", "row", "episode", "step", "action", "reward", "end", "observation", "frame"
    ]  # fmt: skip
    assert [line[:5] for line in lines[1:]] == [
        ["toy-1", "0", "toy-1-ep0000", "0", "0"],
        ["toy-1", "1", "toy-1-ep0000", "1", "1"],
        ["vector-1", "0", "vector-1-ep0000", "0", "[0,"],
        ["vector-1", "1", "vector-1-ep0001", "0", "[1,"],
    ]


def test_head_of_a_run(relive: Relive, root: Path) -> None:
    path = arrays_path(root, "toy-1")
    out = relive("head", path, "-n", 99).out
    lines = out.splitlines()
    assert len(lines) == 1 + ALL
    assert cells(lines[1])[-2:] == [
        "{image: uint8[16, 16, 4], pose: [0, 0]}", "uint8[12, 16, 3]"
    ]  # fmt: skip
    assert cells(lines[2])[-1] == "-"  # no frame
    assert lines[5].split()[4] == "-"  # no reward
    assert " terminated " in lines[STEPS]
    assert " truncated " in lines[2 * STEPS]
    found = relive("head", path, "-n", 1, "--json").json
    assert found[0] | {"ts_ns": 0} == {
        "run_id": "toy-1", "row": 0, "episode_id": "toy-1-ep0000", "agent_id": "", "step_index": 0,
        "action": 0, "reward": 0.0, "terminated": False, "truncated": False,
        "observation": {"image": "uint8[16, 16, 4]", "pose": [0.0, 0.0]},
        "frame": "uint8[12, 16, 3]", "info": {"row": 0}, "ts_ns": 0,
    }  # fmt: skip


def test_head_shows_agents_and_nested_actions(relive: Relive, tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "two", live=None) as recorder:
        recorder.step((1.5, {"x": 2}), {"go": 1, "turn": (0.5,)}, 1.0, agent_id="left")
    (line,) = relive("head", arrays_path(tmp_path, "two")).out.splitlines()[1:]
    assert cells(line)[2:5] == ["left", "0", "{go: 1, turn: (0.5)}"]
    assert cells(line)[-2:] == ["(1.5, {x: 2})", "-"]
    (step,) = relive("head", arrays_path(tmp_path, "two"), "--json").json
    assert (step["observation"], step["action"]) == ([1.5, {"x": 2}], {"go": 1, "turn": [0.5]})


def test_stats_of_a_run(relive: Relive, root: Path) -> None:
    path = arrays_path(root, "toy-1")
    rewards = [value for row in range(ALL) if (value := reward(row)) is not None]
    data = relive("stats", path, "--json").json
    assert (data["run_id"], data["episodes"], data["steps"]) == ("toy-1", 3, ALL)
    assert data["ended"] == {"terminated": 2, "truncated": 1}
    assert data["length"] == {"items": 3, "min": STEPS, "max": STEPS, "mean": STEPS}
    assert data["reward"] == {
        "items": len(rewards), "min": 0.0, "max": 10.0, "mean": pytest.approx(np.mean(rewards))
    }  # fmt: skip
    assert data["return"]["mean"] == pytest.approx(sum(rewards) / 3)
    assert data["actions"]["action"]["counts"] == {"0": 6, "1": 5, "2": 5, "3": 5}
    lines = relive("stats", path).out.splitlines()
    assert lines[2].split(maxsplit=1)[1] == "3: 2 terminated, 1 truncated"
    assert lines[4].split(maxsplit=1) == ["action", "0: 6, 1: 5, 2: 5, 3: 5"]
    assert [line.split()[0] for line in lines[5:]] == ["value", "return", "length", "reward"]


def test_stats_of_a_root(relive: Relive, root: Path) -> None:
    header, toy, vector = relive("stats", root).out.splitlines()
    assert header.split() == [
        "run", "episodes", "steps", "return", "length", "reward", "actions"
    ]  # fmt: skip
    assert toy.startswith("toy-1            3     21  ")
    assert toy.endswith("0: 6, 1: 5, 2: 5, 3: 5")
    assert "7 to 7, mean 7" in toy
    assert vector.endswith("0 to 2, mean 0.78125")  # actions that are not integers
    data = relive("stats", root, "--json").json
    assert [each["run_id"] for each in data["runs"]] == ["toy-1", "vector-1"]
    assert data["runs"][1]["actions"]["action"]["counts"] is None


def test_many_different_actions_have_a_range(relive: Relive, tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "x", live=None) as recorder:
        for number in range(30):
            recorder.step([0.5], {"a": number, "b": number % 2})
    lines = relive("stats", arrays_path(tmp_path, "x")).out.splitlines()
    assert lines[4].split(maxsplit=1) == ["action.b", "0: 15, 1: 15"]
    assert lines[-1].split() == ["action.a", "30", "0", "29", "14.5"]
    assert "action.a 0 to 29, mean 14.5; action.b 0: 15, 1: 15" in relive("stats", tmp_path).out


def test_run_without_arrays(relive: Relive, tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "bare", live=None, arrays=False) as recorder:
        for number in range(4):
            recorder.step(None, number % 2, number / 2, terminated=number == 3)
        recorder.step(None, {"a": 1})  # text in the database
    (step, *_) = relive("head", tmp_path, "--json").json
    assert (step["action"], step["reward"], step["observation"]) == (0, 0.0, None)
    (stats,) = relive("stats", tmp_path, "--json").json["runs"]
    assert stats["reward"] == {"items": 4, "min": 0.0, "max": 1.5, "mean": 0.75}
    assert stats["actions"]["action"]["counts"] == {"0": 2, "1": 2}
    assert pairs(relive("info", tmp_path).out)["run bare"].endswith("5 steps, 0 bytes")


def test_run_that_is_being_recorded(relive: Relive, root: Path) -> None:
    with ReplayRecorder(root, "open", live=None) as recorder:
        recorder.step([1.0], 1, 2.0)
        recorder.flush()
        assert pairs(relive("info", root).out)["status"] == "2 finished, 1 recording"
        stats = relive("stats", arrays_path(root, "open"), "--json").json
        assert (stats["status"], stats["episodes"], stats["steps"]) == ("recording", 0, 1)
        assert stats["return"] == {"items": 0, "min": None, "max": None, "mean": None}
        assert stats["reward"]["items"] == 1
        assert relive("stats", root).out.splitlines()[-1].split()[:5] == [
            "open",
            "0",
            "1",
            "-",
            "-",
        ]
        assert relive("head", arrays_path(root, "open")).status == 0


def test_archived_run_is_read_and_deleted_run_is_not(relive: Relive, root: Path) -> None:
    archive(root, "toy-1")
    path = arrays_path(root, "vector-1")
    delete(root, "vector-1")
    assert pairs(relive("info", root).out)["status"] == "1 archived"
    for command in COMMANDS:
        assert relive(command, arrays_path(root, "toy-1")).status == 0
        assert "vector-1" not in relive(command, root).out
        done = relive(command, path)
        assert (done.status, done.out) == (1, "")
        assert done.err == f"error: cannot open `{path}`: No such file or directory\n"


def test_root_without_runs(relive: Relive, tmp_path: Path) -> None:
    Database.create(database_path(tmp_path)).close()
    assert pairs(relive("info", tmp_path).out)["runs"] == "0"
    assert relive("head", tmp_path).out == "no steps\n"
    assert relive("stats", tmp_path).out == "no runs\n"
    assert relive("stats", tmp_path, "--json").json == {"runs": []}


@pytest.mark.parametrize("command", COMMANDS)
def test_copy_of_a_closed_run(relive: Relive, root: Path, command: str) -> None:
    copy = shutil.copy(arrays_path(root, "toy-1"), root.parent / "copy.h5")
    done, original = relive(command, copy), relive(command, arrays_path(root, "toy-1"))
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[-5:] == original.out.splitlines()[-5:]


@pytest.mark.parametrize("command", [*COMMANDS, "validate", "recover"])
def test_what_is_not_a_run_fails(relive: Relive, tmp_path: Path, command: str) -> None:
    import h5py

    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1, 2]
    (tmp_path / "broken.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    for name in ("other.h5", "broken.h5", "no.h5"):
        done = relive(command, tmp_path / name)
        assert done.status == 1
        assert name in done.out + done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize("command", [*COMMANDS, "validate"])
def test_parts_of_a_root_hint_at_it(relive: Relive, root: Path, command: str) -> None:
    for name in ("replay", "telemetry"):
        done = relive(command, root / name)
        assert (done.status, done.out) == (1, "")
        assert done.err.endswith(f"hint: open the directory above it, `{root}`\n")
    done = relive(command, database_path(root))
    assert done.status == 1
    assert "open the directory of the runs" in done.err


@pytest.mark.parametrize("command", COMMANDS)
def test_database_that_is_damaged(relive: Relive, root: Path, command: str) -> None:
    database_path(root).write_bytes(b"no database".ljust(8192, b"!"))
    done = relive(command, root)
    assert (done.status, done.out) == (1, "")
    assert "telemetry.sqlite` is damaged" in done.err


def test_damaged_run_is_listed_by_info(relive: Relive, root: Path) -> None:
    damage(root, "toy-1")
    done = relive("info", root)
    assert done.status == 1
    found = pairs(done.out)
    assert found["status"] == "1 damaged, 1 finished"
    assert found["run toy-1"] == "damaged: run 'toy-1' has a wrong checksum in the database"
    assert list(relive("info", root, "--json").json["problems"]) == ["toy-1"]


@pytest.mark.parametrize("command", ["head", "stats"])
def test_damaged_run_is_left_out_on_request(relive: Relive, root: Path, command: str) -> None:
    damage(root, "toy-1")
    done = relive(command, root)
    assert (done.status, done.out) == (1, "")
    assert "run 'toy-1' has a wrong checksum" in done.err
    done = relive(command, root, "--errors", "skip")
    assert done.status == 3
    assert "vector-1" in done.out
    assert done.err.startswith(f"warning: `{arrays_path(root, 'toy-1')}` was left out: ")
    done = relive(command, arrays_path(root, "toy-1"), "--errors", "skip")
    assert done.status == 2
    assert "directories of runs" in done.err


@pytest.mark.parametrize("command", COMMANDS)
def test_several_runs_are_not_opened_as_one(relive: Relive, root: Path, command: str) -> None:
    record(root.parent / "runs2", "other", 1)
    for pattern in (f"{root}/replay/*.h5", f"{root.parent}/runs*"):
        done = relive(command, pattern)
        assert (done.status, done.out) == (1, "")
        assert "cannot be opened as one" in done.err
        assert done.err.endswith("hint: open them one by one\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_names_cannot_send_terminal_codes(relive: Relive, tmp_path: Path, command: str) -> None:
    with ReplayRecorder(tmp_path, "x", env_id="\x1b[2J", live=None) as recorder:
        recorder.begin_episode("\x1b[4J")
        recorder.step({"\x1b[5J": 1.0}, {"\x1b[6J": 1})
    for path in (tmp_path, arrays_path(tmp_path, "x")):
        done = relive(command, path)
        assert done.status == 0
        assert "\x1b" not in done.out + done.err
