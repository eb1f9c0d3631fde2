"""A signal exists with its first record or not at all, even with Ctrl-C."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.episodes import DiskEpisodeWriter
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.write.background_columns_writer import BackgroundColumnsWriter
from relive.episodes.write.simple_writer import ColumnsSignalWriter
from relive.episodes.write.video_writer import CameraWriter
from relive.store.video import Encoder, Movie
from tests.episodes.ctrl_c import handling, interrupt

FRAME = np.zeros((32, 48, 3), np.uint8)
SEED = int(os.environ.get("RELIVE_SEED", "1"))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _failing_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, late: bool) -> None:
    """Make the first call of a method raise `KeyboardInterrupt`, before or after its work."""
    method = getattr(owner, name)
    calls: list[int] = []

    def once(self: Any, *arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 1 and not late:
            raise KeyboardInterrupt
        result = method(self, *arguments, **more)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, once)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("owner", "method", "value"),
    [
        (ColumnsSignalWriter, "append", 1.0),
        (ColumnsSignalWriter, "_append_first", 1.0),
        (BackgroundColumnsWriter, "put", np.zeros(20_000)),
        (CameraWriter, "append", FRAME),
        (Movie, "_write", FRAME),
        (Encoder, "__init__", FRAME),
    ],
)
def test_failed_first_record_leaves_nothing(  # noqa: PLR0917 - parameters of the test
    owner: Any,
    method: str,
    value: Any,
    late: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _failing_once(monkeypatch, owner, method, late=late)
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        with pytest.raises(KeyboardInterrupt):
            writer.append("x", value, 1)
        assert names_in(tmp_path / "ep") == [".unfinished", "meta.json"]
        writer.append("x", value, 2)
    assert DiskEpisode(tmp_path / "ep")["x"].timestamps.tolist() == [2]
    assert not [name for name in names_in(tmp_path / "ep") if name.startswith(".")]
    assert not [each for each in threading.enumerate() if each.name.endswith("-x")]


@pytest.mark.parametrize("owner", [ColumnsSignalWriter, CameraWriter])
def test_first_record_is_stored_before_ctrl_c_is_raised(
    owner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = owner._append

    def interrupted(self: Any, *arguments: Any) -> None:
        interrupt()
        append(self, *arguments)

    monkeypatch.setattr(owner, "_append", interrupted)
    with handling(), DiskEpisodeWriter(tmp_path / "ep") as writer:
        with pytest.raises(KeyboardInterrupt):
            writer.append("x", FRAME if owner is CameraWriter else 1.0, 1)
        monkeypatch.undo()
        writer.append("x", FRAME if owner is CameraWriter else 1.0, 2)
    assert DiskEpisode(tmp_path / "ep")["x"].timestamps.tolist() == [1, 2]


def test_interrupted_record_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = BackgroundColumnsWriter.put

    def once(self: Any, row: int, *arguments: Any) -> None:
        if row == 3:
            raise KeyboardInterrupt  # between the tape and the background writer
        put(self, row, *arguments)

    monkeypatch.setattr(BackgroundColumnsWriter, "put", once)
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        for number in range(8):
            try:
                writer.append("big", np.full(20_000, number), number)
            except KeyboardInterrupt:
                assert number == 3
    signal_ = DiskEpisode(tmp_path / "ep")["big"]
    assert signal_.timestamps.tolist() == list(range(8))
    assert signal_.values()[:, 0].tolist() == list(range(8))
