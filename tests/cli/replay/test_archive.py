"""`relive replay archive`."""

from pathlib import Path

import pytest

from relive.errors import ReadOnlyError
from relive.replay import ReplayRecorder, ReplayRun
from tests.cli.conftest import Relive
from tests.replay.toy_run import record


def test_archived_runs_are_read_only(relive: Relive, root: Path) -> None:
    done = relive("replay", "archive", root, "toy-1", "vector-1", "toy-1")
    assert (done.status, done.out) == (0, "toy-1: archived\nvector-1: archived\n")
    assert ReplayRun(root, "toy-1").status == "archived"
    with pytest.raises(ReadOnlyError, match="toy-1"):
        ReplayRecorder(root, "toy-1")
    done = relive("replay", "prune", root, "--keep", 0)
    assert done.out == "no runs\n2 runs kept: toy-1 (archived), vector-1 (archived)\n"
    assert relive("replay", "archive", root, "toy-1", "--json").json == ["toy-1"]


@pytest.mark.parametrize("run_id", ["nope", "toy", "-1"])
def test_nothing_is_archived_if_a_run_is_unknown(relive: Relive, root: Path, run_id: str) -> None:
    done = relive("replay", "archive", root, "toy-1", run_id)
    assert (done.status, done.out) == (1, "")
    assert f"has no run {run_id!r}" in done.err
    assert done.err.endswith(f"hint: `relive replay ls {root}` lists the runs\n")
    assert ReplayRun(root, "toy-1").status == "finished"


def test_only_closed_runs_are_archived(relive: Relive, root: Path) -> None:
    record(root, "left", 1, end="leave")
    done = relive("replay", "archive", root, "left")
    assert done.status == 1
    assert "was interrupted" in done.err
    assert "relive recover" in done.err
    with ReplayRecorder(root, "open", live=None) as recorder:
        recorder.step([1.0])
        recorder.flush()
        done = relive("replay", "archive", root, "open")
        assert done.status == 1
        assert "is being recorded" in done.err
