"""`relive replay rm` and `prune`."""

import io
import os
import sys
from pathlib import Path

import pytest

from relive.cli import main
from relive.replay.manage import runs as manage
from relive.replay.manage.runs import archive, list_runs, run_ids
from relive.replay.recorder import ReplayRecorder
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path
from tests.cli.conftest import Relive
from tests.replay.toy_run import record


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_rm(relive: Relive, root: Path) -> None:
    done = relive("replay", "rm", root, "toy-1", "--yes")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("toy-1: deleted, 21 steps, ")
    assert run_ids(root) == ["vector-1"]
    done = relive("replay", "rm", root, "vector-1", "vector-1", "-y", "--json")
    assert [each["run_id"] for each in done.json] == ["vector-1"]
    assert done.json[0]["steps"] == 30
    assert relive("replay", "ls", root).out == "no runs\n"


def test_rm_needs_consent(relive: Relive, root: Path) -> None:
    for more in ([], ["--json"]):
        done = relive("replay", "rm", root, "toy-1", *more)
        assert (done.status, done.out) == (1, "")
        assert done.err.endswith("hint: pass --yes\n")
    assert run_ids(root) == ["toy-1", "vector-1"]


@pytest.mark.parametrize(
    ("answer", "left"), [("y\n", ["vector-1"]), ("n\n", None), ("\n", None), ("", None)]
)
def test_rm_asks_in_a_terminal(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    left: list[str] | None,
) -> None:
    asked = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", asked)
    assert main(["replay", "rm", str(root), "toy-1"]) == 0
    question, _, _ = asked.getvalue().partition("[y/N]")
    assert question.startswith("delete toy-1 with 21 steps and ")
    assert run_ids(root) == (left or ["toy-1", "vector-1"])
    if left is None:
        assert capsys.readouterr().out == "nothing was deleted\n"


def test_rm_wants_the_whole_id(relive: Relive, root: Path) -> None:
    for which in ("toy-", "-1", "no"):
        done = relive("replay", "rm", root, "vector-1", which, "--yes")
        assert (done.status, done.out) == (1, "")
        assert f"has no run {which!r}" in done.err
    assert run_ids(root) == ["toy-1", "vector-1"]  # none, if one is unknown
    assert relive("replay", "rm", root, "--yes").status == 2


def test_rm_of_a_run_that_is_being_recorded(relive: Relive, root: Path) -> None:
    with ReplayRecorder(root, "open", live=None) as recorder:
        recorder.step(reward=1.0)
        recorder.flush()
        done = relive("replay", "rm", root, "open", "--yes")
        assert (done.status, done.out) == (1, "")
        assert f"process {os.getpid()}" in done.err
    assert list_runs(root)[-1].steps == 1


def test_rm_of_an_archived_run(relive: Relive, root: Path) -> None:
    archive(root, "toy-1")
    done = relive("replay", "rm", root, "toy-1", "--yes")
    assert (done.status, done.err.splitlines()[0]) == (1, "error: run 'toy-1' is archived")
    assert "--archived" in done.err
    assert relive("replay", "rm", root, "toy-1", "--yes", "--archived").status == 0


def test_rm_of_a_damaged_run(relive: Relive, root: Path) -> None:
    with Database.create(database_path(root)) as database:
        database.rows("UPDATE runs SET env_id = 'other' WHERE run_id = 'toy-1'")
    done = relive("replay", "rm", root, "toy-1", "--yes")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "error: run 'toy-1' has a wrong checksum in the database\n"
        "hint: pass --damaged to delete the run anyway\n"
    )
    done = relive("replay", "rm", root, "toy-1", "--yes", "--damaged")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("toy-1: deleted, 21 steps, ")
    assert relive("replay", "ls", root).status == 0


def test_rm_finishes_a_deletion(
    relive: Relive, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(manage, "_unlink", killed)
        assert relive("replay", "rm", root, "toy-1", "--yes").status == 130
    done = relive("replay", "ls", root)
    assert "toy-1" not in done.out
    assert f"`relive replay rm {root} toy-1 --yes`" in done.err
    assert relive("replay", "rm", root, "toy-1", "--yes").status == 0
    assert not arrays_path(root, "toy-1").exists()
    assert relive("replay", "ls", root).err == ""
    assert "has no run" in relive("replay", "rm", root, "toy-1", "--yes").err


def test_prune_only_lists_by_default(relive: Relive, root: Path) -> None:
    done = relive("replay", "prune", root, "--keep", 1)
    assert done.status == 0
    *listed, kept = done.out.splitlines()
    assert [line.split()[0] for line in listed] == ["run", "toy-1"]
    assert kept == "1 run kept: vector-1"
    assert done.err == "nothing was deleted; pass --yes to delete the runs\n"
    found = relive("replay", "prune", root, "--keep", 0, "--json").json
    assert [each["run_id"] for each in found["runs"]] == ["toy-1", "vector-1"]
    assert (found["deleted"], found["kept"]) == ([], [])
    assert run_ids(root) == ["toy-1", "vector-1"]
    done = relive("replay", "prune", root, "--keep", 2)
    assert (done.out, done.err) == ("no runs\n2 runs kept: toy-1, vector-1\n", "")


def test_prune(relive: Relive, root: Path) -> None:
    record(root, "left", 1, end="leave")
    record(root, "kept", 1)
    archive(root, "kept")
    done = relive("replay", "prune", root, "--keep", 1, "--yes")
    assert (done.status, done.err) == (0, "")
    first, *last = done.out.splitlines()
    assert first.startswith("toy-1: deleted, 21 steps, ")
    assert last == ["1 run deleted", "3 runs kept: vector-1, left (interrupted), kept (archived)"]
    found = relive("replay", "prune", root, "--keep", 0, "--interrupted", "--yes", "--json").json
    assert [each["run_id"] for each in found["deleted"]] == ["vector-1", "left"]
    assert [each["run_id"] for each in found["kept"]] == run_ids(root) == ["kept"]
    done = relive("replay", "prune", root, "--keep", 0, "--yes")
    assert done.out == "0 runs deleted\n1 run kept: kept (archived)\n"


def test_prune_names_only_some_of_many_runs_that_it_keeps(relive: Relive, tmp_path: Path) -> None:
    for number in range(22):
        with ReplayRecorder(tmp_path, f"r{number:02d}", live=None, arrays=False) as recorder:
            recorder.step(action=1)
    done = relive("replay", "prune", tmp_path, "--keep", 21)
    assert done.out.splitlines()[-1].startswith("21 runs kept: r01, r02, ")
    assert done.out.endswith(", r20 and 1 more\n")
    assert len(relive("replay", "prune", tmp_path, "--keep", 21, "--json").json["kept"]) == 21


def test_prune_leaves_out_a_run_that_is_continued_meanwhile(
    relive: Relive, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = manage.prunable
    recorders = []

    def continued(*arguments: object, **options: bool) -> list[manage.RunSummary]:
        found = listed(*arguments, **options)  # type: ignore[arg-type]
        recorders.append(ReplayRecorder(root, "toy-1", live=None))
        return found

    monkeypatch.setattr(manage, "prunable", continued)
    done = relive("replay", "prune", root, "--keep", 0, "--yes")
    assert done.status == 3
    assert "run 'toy-1' is being recorded" in done.err
    assert done.out.splitlines()[-2:] == ["1 run deleted", "1 run kept: toy-1"]
    recorders[0].close()
    assert run_ids(root) == ["toy-1"]


def test_prune_finishes_a_deletion(
    relive: Relive, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(manage, "_unlink", killed)
        assert relive("replay", "rm", root, "toy-1", "--yes").status == 130
    found = relive("replay", "prune", root, "--keep", 9, "--json").json
    assert (found["runs"], found["unfinished"]) == ([], ["toy-1"])
    done = relive("replay", "prune", root, "--keep", 9)
    assert done.out.splitlines() == [
        "no runs",
        "toy-1: its deletion was interrupted, and is finished with --yes",
        "1 run kept: vector-1",
    ]
    assert done.err == "nothing was deleted; pass --yes to delete the runs\n"
    done = relive("replay", "prune", root, "--keep", 9, "--yes")
    assert done.out.splitlines()[-2:] == ["1 run deleted", "1 run kept: vector-1"]
    assert not arrays_path(root, "toy-1").exists()


@pytest.mark.parametrize("more", [[], ["--keep", "-1"], ["--keep", "x"], ["--keep"]])
def test_prune_needs_a_number(relive: Relive, root: Path, more: list[str]) -> None:
    done = relive("replay", "prune", root, *more)
    assert (done.status, done.out) == (2, "")
    assert "error: " in done.err
