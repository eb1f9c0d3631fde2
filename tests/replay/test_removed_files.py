"""The files of a run are removed or replaced while it is recorded: `sync` and `close` notice it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from relive.errors import NotFoundError
from relive.replay import ReplayRecorder, ReplayRun


def database(root: Path) -> Path:
    return root / "telemetry/telemetry.sqlite"


def replace_root(root: Path) -> None:
    shutil.copytree(root, root.with_name("copy"))
    shutil.rmtree(root)
    root.with_name("copy").rename(root)


REMOVALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "root": (shutil.rmtree, "telemetry.sqlite` was moved, removed or"),
    "moved root": (
        lambda root: root.rename(root.with_name("moved")),
        "sqlite` was moved, removed or",
    ),
    "database": (lambda root: database(root).unlink(), "telemetry.sqlite` was moved, removed or"),
    "log": (
        lambda root: database(root).with_name("telemetry.sqlite-wal").unlink(),
        "telemetry.sqlite-wal` was moved, removed or",
    ),
    "arrays": (lambda root: (root / "replay/run.h5").unlink(), "run.h5` was moved, removed or"),
    "copied root": (replace_root, "telemetry.sqlite` was moved, removed or replaced"),
}


@pytest.mark.parametrize(("remove", "text"), REMOVALS.values(), ids=REMOVALS)
def test_files_that_were_removed_are_noticed(
    tmp_path: Path, remove: Callable[[Path], object], text: str
) -> None:
    for method in ("sync", "flush", "close", "leave"):
        root = tmp_path / method
        recorder = ReplayRecorder(root, "run", live=None)
        recorder.step([0.0])
        recorder.sync()
        remove(root)
        recorder.step([1.0])
        with pytest.raises(NotFoundError, match=text) as caught:
            getattr(recorder, method)()
        assert caught.value.hint is not None
        if method in {"sync", "flush"}:
            with pytest.raises(NotFoundError, match=text):
                recorder.step([2.0])
            with pytest.raises(NotFoundError, match=text):
                recorder.close()
        shutil.rmtree(tmp_path / "moved", ignore_errors=True)


def test_other_runs_of_the_root_may_come_and_go(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step([0.0])
        recorder.sync()
        for _ in range(2):
            with ReplayRecorder(tmp_path, "other", live=None) as other:
                other.step([1.0])
                other.sync()
        other = ReplayRecorder(tmp_path, "third", live=None)
        other.step([2.0])
        other.abort()
        recorder.sync()
    assert len(ReplayRun(tmp_path, "run")) == 1
