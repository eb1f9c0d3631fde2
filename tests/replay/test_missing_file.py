"""A file of arrays that is missing is called missing; rows of the database stay readable."""

from pathlib import Path

import numpy as np
import pytest

import relive
from relive.cli import main
from relive.errors import InvalidError, NotFoundError
from relive.replay import (
    FrameResolver,
    ReplayReader,
    ReplayRecorder,
    ReplayRun,
    TelemetryStore,
    compact,
    delete,
    list_runs,
    recover,
    validate,
)
from relive.replay.export import export_h5, export_mp4, export_parquet
from relive.replay.storage.layout import arrays_path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with a run whose file is missing, and a complete one."""
    for run_id in ("lost", "whole"):
        with ReplayRecorder(tmp_path, run_id, live=None) as recorder:
            for number in range(3):
                frame = np.full((32, 32, 3), number, np.uint8)
                recorder.step([0.5], number, 1.0, terminated=number == 2, frame=frame)
    arrays_path(tmp_path, "lost").unlink()
    return tmp_path


def test_arrays_are_missing(root: Path) -> None:
    run = relive.open(root)["lost"]
    path = arrays_path(root, "lost")
    for read in (
        lambda: run.read("frames", [0]),
        run.episodes[0].arrays,
        run.episodes[0].load,
        lambda: run.transitions().sample(1),
        lambda: ReplayReader("lost", root / "replay").get_frame(0),
        lambda: FrameResolver(root / "replay").resolve("h5://lost/frames/0"),
        lambda: TelemetryStore(root, read_only=True).recent_steps(resolve=True, run_id="lost"),
        lambda: ReplayRecorder(root, "lost"),
        lambda: compact(root, "lost"),
        lambda: compact(root, "lost", dry_run=True),
        lambda: export_h5(root, "lost", root / "target.h5"),
        lambda: export_mp4(root, "lost", root / "target.mp4"),
        lambda: export_parquet(root, root / "target.parquet", arrays=["frames"]),
    ):
        with pytest.raises(NotFoundError, match=f"`{path}` is missing: run 'lost' has arrays") as e:
            read()
        assert "restore the file, or remove the run" in str(e.value.hint)
    assert {each.name for each in root.iterdir()} == {"replay", "telemetry"}


def test_rows_stay_readable(root: Path) -> None:
    run = ReplayRun(root, "lost")
    assert (run.status, len(run), run.steps.num_rows, run.step(1).action) == ("finished", 3, 3, 1)
    assert run.episodes[0].statics["return"] == 3.0
    assert "frames" in run.fields
    assert len(ReplayRun(arrays_path(root, "lost")).steps) == 3
    with TelemetryStore(root, read_only=True) as store:
        assert len(store.steps(run_id="lost")) == 3
    assert export_parquet(root, root / "steps.parquet") == 6
    with FrameResolver(root / "replay") as resolver:
        assert resolver.list_runs() == ["lost", "whole"]
        info = resolver.get_run_info("lost")
    assert info is not None
    assert info["total_steps"] == 3


def test_lists_and_checks_name_the_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost, whole = list_runs(root)
    assert (lost.status, lost.steps, lost.file_bytes) == ("missing", 3, 0)
    assert "lost.h5` is missing" in str(lost.problem)
    assert (whole.status, whole.problem) == ("finished", None)
    (problem,) = validate(root, "full").problems
    assert (problem.kind, "lost.h5" in problem.path) == ("not-found", True)
    assert problem.message == lost.problem
    (text,) = recover(root).problems
    assert text.startswith(f"run 'lost': {lost.problem}\nhint: restore the file, or remove the run")
    assert main(["recover", str(root)]) == 3
    warning, hint = capsys.readouterr().err.splitlines()
    assert warning == f"warning: run 'lost': {lost.problem}"
    assert hint.startswith("hint: restore the file")
    assert main(["replay", "ls", str(root)]) == 1
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["lost", "missing"]
    assert second.split()[:2] == ["whole", "finished"]
    assert main(["replay", "show", str(root), "lost"]) == 0
    assert "size         missing" in capsys.readouterr().out


def test_run_can_be_deleted(root: Path) -> None:
    assert delete(root, "lost").steps == 3
    assert [run.run_id for run in list_runs(root)] == ["whole"]


def test_run_without_steps_needs_no_file(tmp_path: Path) -> None:
    ReplayRecorder(tmp_path, "run", live=None).close()
    arrays_path(tmp_path, "run").unlink()
    assert (recover(tmp_path).problems, validate(tmp_path).problems) == ((), ())


def test_directory_in_place_of_the_file_is_the_same_error_everywhere(root: Path) -> None:
    path = arrays_path(root, "lost")
    path.mkdir()
    for use in (
        lambda: relive.open(root)["lost"].read("frames", [0]),
        lambda: ReplayRecorder(root, "lost"),
    ):
        with pytest.raises(InvalidError, match=f"`{path}` is a directory, expected a file"):
            use()
    (problem,) = validate(root).problems
    assert (problem.kind, f"`{path}` is a directory" in problem.message) == ("invalid", True)
    assert f"`{path}` is a directory, expected a file" in recover(root).problems[0]


def test_run_without_chunks_needs_no_file(tmp_path: Path) -> None:
    recorder = ReplayRecorder(tmp_path, "run", live=None)
    recorder.step([0.5], 1, 1.0)
    recorder.flush()
    recorder.leave()
    arrays_path(tmp_path, "run").unlink()
    assert [run.status for run in list_runs(tmp_path)] == ["interrupted"]
    assert ReplayRun(tmp_path, "run").read("observations", [0]).tolist() == [[0.5]]
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step([0.5], 1, 1.0, terminated=True)
    assert len(ReplayRun(tmp_path, "run").episodes[0].arrays()) > 1


def test_reader_that_has_the_file_open_goes_on(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step([0.5], 1, 1.0)
        recorder.flush()
        run = ReplayRun(tmp_path, "run")
        assert run.read("observations", [0]).tolist() == [[0.5]]
    run.refresh()
    assert run.read("observations", [0]).tolist() == [[0.5]]
    arrays_path(tmp_path, "run").unlink()
    assert run.read("actions", [0]).tolist() == [1]
