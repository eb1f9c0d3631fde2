"""`relive replay ls` and `show`."""

import shutil
from pathlib import Path

import pytest

from relive.replay.manage.runs import archive, delete
from relive.replay.recorder import ReplayRecorder
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path
from tests.cli.conftest import Relive
from tests.replay.toy_run import STEPS, record, reward


def table(text: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in text.splitlines()]


def test_ls(relive: Relive, root: Path) -> None:
    done = relive("replay", "ls", root)
    assert (done.status, done.err) == (0, "")
    header, toy, vector = table(done.out)
    assert header == ["run", "status", "env", "episodes", "steps", "return", "size", "age"]
    assert toy[:5] == ["toy-1", "finished", "Toy-v0", "3", "21"]
    assert vector[:5] == ["vector-1", "finished", "-", "9", "30"]
    found = relive("replay", "ls", root, "--json").json
    assert [each["run_id"] for each in found] == ["toy-1", "vector-1"]
    size = arrays_path(root, "toy-1").stat().st_size
    assert (found[0]["file_bytes"], found[0]["problem"]) == (size, None)
    last = sum(reward(row) or 0.0 for row in range(2 * STEPS, 3 * STEPS))
    found = relive("replay", "ls", root, "--last", 1, "--json").json
    assert found[0]["mean_return"] == pytest.approx(last)


def test_ls_accepts_the_database(relive: Relive, root: Path) -> None:
    found = relive("replay", "ls", database_path(root), "--json").json
    assert [each["run_id"] for each in found] == ["toy-1", "vector-1"]


def test_ls_shows_every_status(relive: Relive, root: Path) -> None:
    record(root, "left", 1, end="leave")
    archive(root, "toy-1")
    delete(root, "vector-1")
    with ReplayRecorder(root, "open", live=None) as recorder:
        recorder.step(reward=1.0)
        recorder.flush()
        done = relive("replay", "ls", root)
    assert [line[:2] for line in table(done.out)[1:]] == [
        ["toy-1", "archived"], ["left", "interrupted"], ["open", "recording"],
    ]  # fmt: skip
    assert done.err == (
        f"1 run interrupted; `relive recover {root}` finishes such runs, and a recorder with the "
        "same run_id continues one\n"
    )


def test_ls_of_an_empty_root(relive: Relive, tmp_path: Path) -> None:
    Database.create(database_path(tmp_path)).close()
    done = relive("replay", "ls", tmp_path)
    assert (done.status, done.out) == (0, "no runs\n")
    assert relive("replay", "ls", tmp_path, "--json").json == []


def test_ls_lists_a_damaged_run(relive: Relive, root: Path) -> None:
    database = Database.create(database_path(root))
    database.rows("UPDATE runs SET env_id = 'Other-v0' WHERE run_id = 'toy-1'")
    database.close()
    done = relive("replay", "ls", root)
    assert done.status == 1
    _, toy, vector = done.out.splitlines()
    assert toy.startswith("toy-1     damaged")
    assert toy.endswith("wrong checksum in the database")
    assert vector.startswith("vector-1  finished")
    assert "checksum" in relive("replay", "show", root, "toy-1").err


def test_show(relive: Relive, root: Path) -> None:
    done = relive("replay", "show", root, "toy-1")
    assert (done.status, done.err) == (0, "")
    about, arrays, episodes = done.out.split("\n\n")
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in about.splitlines()}
    assert lines["run"] == "toy-1"
    assert lines["status"] == "finished"
    assert lines["path"] == str(arrays_path(root, "toy-1"))
    assert (lines["env"], lines["seed"], lines["steps"]) == ("Toy-v0", "7", "21")
    assert (lines["metadata"], lines["spaces"]) == ('{"lr": 0.5}', '{"n": 4}')
    fields = {line[0]: line[1:] for line in table(arrays)}
    image = ["uint8", "16", "x", "16", "x", "4", "steps", "zstd:1", "last"]
    assert fields["observations.image"][:9] == image
    assert fields["rewards"][:4] == ["float64", "-", "steps", "zstd:1"]
    header, *rows = table(episodes)
    assert header == ["number", "id", "steps", "return", "status"]
    assert rows[0] == ["0", "toy-1-ep0000", "7", "8.5", "terminated"]
    assert rows[1][-1] == "truncated"


def test_show_as_json(relive: Relive, root: Path) -> None:
    found = relive("replay", "show", root, "toy-1", "--json").json
    assert (found["steps"], found["episode_count"], found["status"]) == (21, 3, "finished")
    assert found["fields"]["observations.pose"]["shape"] == [2]
    assert found["fields"]["observations.image"]["stack"] == "last"
    assert found["fields"]["frames"]["stored_bytes"] > 0
    assert found["episodes"][2]["episode_id"] == "toy-1-ep0002"
    returns = [each["return"] for each in found["episodes"]]
    assert found["mean_return"] == pytest.approx(sum(returns) / 3)


def test_show_prints_the_newest_episodes(relive: Relive, root: Path) -> None:
    done = relive("replay", "show", root, "vector-1", "-n", 2)
    assert table(done.out)[-3] == ["number", "id", "env", "steps", "return", "status"]
    assert [line[:3] for line in table(done.out)[-2:]] == [
        ["7", "vector-1-ep0007", "1"], ["8", "vector-1-ep0008", "0"]
    ]  # fmt: skip
    assert done.err == "7 earlier episodes not printed; --rows prints more\n"
    found = relive("replay", "show", root, "vector-1", "-n", 2, "--json").json
    assert [each["number"] for each in found["episodes"]] == [7, 8]
    assert found["episode_count"] == 9


def test_show_a_run_that_is_being_recorded(relive: Relive, root: Path) -> None:
    with ReplayRecorder(root, "open", live=None) as recorder:
        recorder.step([1.0], reward=1.0, agent_id="left")
        recorder.flush()
        found = relive("replay", "show", root, "open", "--json").json
        assert (found["status"], found["episodes"][0]["status"]) == ("recording", "recording")
        done = relive("replay", "show", root, "open")
        assert table(done.out)[-1] == ["0", "open-ep0000", "left", "1", "1", "recording"]


@pytest.mark.parametrize("which", ["toy-1", "toy-", "t", "-2"])
def test_run_is_named_by_its_id_its_beginning_or_its_place(
    relive: Relive, root: Path, which: str
) -> None:
    assert relive("replay", "show", root, which, "--json").json["run_id"] == "toy-1"


def test_run_is_named_by_its_file(relive: Relive, root: Path) -> None:
    found = relive("replay", "show", root / "replay" / "vector-1.h5", "--json").json
    assert found["run_id"] == "vector-1"
    copy = shutil.copy(root / "replay" / "vector-1.h5", root.parent / "copy.h5")
    copied = relive("replay", "show", copy, "--json").json
    assert (copied["path"], copied["episodes"]) == (str(copy), found["episodes"])
    assert copied["fields"] == found["fields"]


def test_id_that_looks_like_a_place_is_an_id(relive: Relive, root: Path) -> None:
    record(root, "-1", 1)
    record(root, "last", 1)
    assert relive("replay", "show", root, "-1", "--json").json["run_id"] == "-1"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nope"], "has no run 'nope'"),
        (["oy"], "has no run 'oy'"),
        ([""], "has no run ''"),
        (["-9"], "has no run '-9'"),
        ([], "no run was named"),
    ],
)
def test_unknown_run_fails(relive: Relive, root: Path, args: list[str], message: str) -> None:
    done = relive("replay", "show", root, *args)
    assert (done.status, done.out) == (1, "")
    assert message in done.err
    assert done.err.splitlines()[-1].startswith("hint: ")


def test_file_and_run_are_not_named_together(relive: Relive, root: Path) -> None:
    done = relive("replay", "show", root / "replay" / "toy-1.h5", "toy-1")
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith("hint: pass the file alone, or the directory of the runs and a run\n")
    done = relive("replay", "show", root / "replay" / "no.h5")
    assert done.err == f"error: `{root / 'replay' / 'no.h5'}` does not exist\n"


def test_ambiguous_beginning_fails(relive: Relive, root: Path) -> None:
    record(root, "toy-10", 1)
    record(root, "toy-11", 1)
    done = relive("replay", "show", root, "toy-")
    assert done.status == 1
    assert done.err.endswith("hint: use one of toy-1, toy-10, toy-11\n")
    assert relive("replay", "show", root, "t").err == done.err.replace("'toy-'", "'t'")
    assert relive("replay", "show", root, "toy-1", "--json").json["run_id"] == "toy-1"


def test_ambiguous_beginning_names_only_some_of_many_runs(relive: Relive, tmp_path: Path) -> None:
    for number in range(12):
        with ReplayRecorder(tmp_path, f"r{number:02d}", live=None, arrays=False) as recorder:
            recorder.step(action=1)
    done = relive("replay", "show", tmp_path, "r")
    assert "'r' matches 12 runs" in done.err
    assert done.err.startswith("error: ")
    assert done.err.endswith("r08, r09 and 2 more\n")
    assert "r00, r01" in done.err


def test_deleted_run_is_unknown(relive: Relive, root: Path) -> None:
    delete(root, "toy-1")
    assert "has no run 'toy-1'" in relive("replay", "show", root, "toy-1").err


@pytest.mark.parametrize("command", ["ls", "show", "query", "play", "rm", "prune"])
def test_path_without_runs_fails(relive: Relive, tmp_path: Path, command: str) -> None:
    more = {"query": ["SELECT 1"], "rm": ["x"], "prune": ["--keep", "1"], "ls": []}
    (tmp_path / "a.txt").write_text("hello")
    for path in (tmp_path / "no", tmp_path, tmp_path / "a.txt"):
        done = relive("replay", command, path, *more.get(command, ["x"]))
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt"]


def test_names_cannot_send_terminal_codes(relive: Relive, tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "x", env_id="\x1b[2J", metadata={"a": "\x1b[3J"}) as recorder:
        recorder.begin_episode("\x1b[4J")
        recorder.step({"\x1b[5J": 1.0}, agent_id="")
    for args in (["ls", tmp_path], ["show", tmp_path, "x"]):
        done = relive("replay", *args)
        assert done.status == 0
        assert "\x1b" not in done.out


def test_show_prints_the_sessions_of_a_run_that_was_continued(
    relive: Relive, tmp_path: Path
) -> None:
    for seed, note in ((7, "first"), (8, "again")):
        with ReplayRecorder(
            tmp_path, "run", live=None, seed=seed, metadata={"note": note}, resume=True
        ) as recorder:
            recorder.step([0.5], 1, 1.0, terminated=True)
    shown = relive("replay", "show", tmp_path, "run")
    assert shown.status == 0, shown.err
    (header,) = (line.split() for line in shown.out.splitlines() if line.startswith("session"))
    assert header == ["session", "started", "first", "row", "steps", "seed", "commit", "metadata"]
    assert '{"note": "again"}' in shown.out
    found = relive("replay", "show", tmp_path, "run", "--json").json["sessions"]
    assert [(each["seed"], each["first_row"], each["steps"]) for each in found] == [
        (7, 0, 1),
        (8, 1, 1),
    ]
    assert [each["metadata"]["note"] for each in found] == ["first", "again"]
