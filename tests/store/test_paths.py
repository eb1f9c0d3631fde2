"""All readers and writers interpret paths in the same way."""

import os
from pathlib import Path
from typing import Any

import pytest

import relive
from relive import replay
from relive.episodes import (
    DiskEpisode,
    DiskEpisodeWriter,
    LocalDataset,
    LocalDatasetWriter,
    SimpleSignal,
    SimpleSignalWriter,
    VideoSignal,
    VideoSignalWriter,
    copy,
    merge,
    recover,
    validate,
)
from relive.errors import InvalidError, InvalidTypeError
from relive.replay.export import export_parquet
from relive.replay.export.target import check_target
from relive.replay.migrate import migrate
from relive.store.atomic import whole_file, whole_folder
from relive.store.cache import open_cache
from relive.store.pack import PackWriter
from relive.store.paths import absolute_path, expand
from relive.store.records import RecordStore

TAKERS: dict[str, Any] = {
    "LocalDataset": LocalDataset,
    "LocalDatasetWriter": LocalDatasetWriter,
    "DiskEpisode": DiskEpisode,
    "DiskEpisodeWriter": DiskEpisodeWriter,
    "SimpleSignal": SimpleSignal,
    "SimpleSignalWriter": SimpleSignalWriter,
    "VideoSignal": VideoSignal,
    "VideoSignalWriter": VideoSignalWriter,
    "recover": recover,
    "validate": validate,
    "copy from": lambda path: copy(path, "elsewhere"),
    "copy to": lambda path: copy([], path),
    "merge from": lambda path: merge([path], "elsewhere"),
    "merge to": lambda path: merge([], path),
    "PackWriter": PackWriter,
    "RecordStore.create": lambda path: RecordStore.create(path, {"a": relive.Field("i8")}),
    "ReplayRecorder": lambda path: replay.ReplayRecorder(path, "run"),
    "ReplayWriter": lambda path: replay.ReplayWriter("run", path),
    "ReplayReader": lambda path: replay.ReplayReader("run", path),
    "FrameResolver": replay.FrameResolver,
    "TelemetryStore": replay.TelemetryStore,
    "ReplayRun": replay.ReplayRun,
    "run of a root": lambda path: replay.ReplayRun(path, "run"),
    "ReplayRoot": replay.ReplayRoot,
    "list_runs": replay.list_runs,
    "delete": lambda path: replay.delete(path, "run"),
    "recover runs": replay.recover,
    "validate runs": replay.validate,
    "migrate from": lambda path: migrate(path, "root"),
    "migrate to": lambda path: migrate("old.sqlite", path),
    "export": lambda path: check_target(path, (".h5",), []),
    "convert": lambda path: relive.convert("nothing", path),
    "file": lambda path: whole_file(path).__enter__(),
    "folder": lambda path: whole_folder(path).__enter__(),
}


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to an empty directory, which no test here may write to."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize(
    "uri",
    [
        *("s3://bucket/x", "gs+x://b", "relive://ws/name", "memory://x"),
        *(Path("s3://b/x"), Path("https://a/b"), Path("relive://ws/name")),
    ],
    ids=str,
)
def test_uri_is_not_a_local_path(taker: Any, uri: Any) -> None:
    with pytest.raises(InvalidError, match="is a URI") as caught:
        taker(uri)
    assert "use a local path" in str(caught.value.hint)
    assert not os.listdir()  # noqa: PTH208 - current directory


@pytest.mark.parametrize("taker", [LocalDatasetWriter, PackWriter, replay.ReplayRecorder])
def test_uri_of_a_file_is_not_a_local_path(taker: Any) -> None:
    with pytest.raises(InvalidError, match="is a URI"):
        taker("file:///x")


def test_root_in_a_directory_is_not_a_uri_as_a_path() -> None:
    with pytest.raises(InvalidError, match="is a URI"):
        relive.DatasetBuilder("ws/name", root=Path("s3://bucket/x"))
    assert not os.listdir()  # noqa: PTH208 - current directory


def test_uri_is_not_the_path_of_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidError, match="is a URI"):
        open_cache("s3://bucket/x")
    monkeypatch.setenv("RELIVE_CACHE_DIR", "s3://bucket/x")
    with pytest.raises(InvalidError, match="RELIVE_CACHE_DIR must have a local path"):
        open_cache()
    assert not os.listdir()  # noqa: PTH208 - current directory


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize("path", ["", "a\0b"])
def test_empty_path_raises(taker: Any, path: str) -> None:
    with pytest.raises(InvalidError, match="is not a valid path"):
        taker(path)
    assert not os.listdir()  # noqa: PTH208 - current directory


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize("path", [None, 5, b"x"])
def test_path_of_another_type_raises_type_error(taker: Any, path: Any) -> None:
    with pytest.raises(InvalidTypeError):
        taker(path)
    assert not os.listdir()  # noqa: PTH208 - current directory


def test_path_with_a_colon_is_local() -> None:
    assert absolute_path("cam:/x", "x") == f"{Path.cwd()}/cam:/x"
    assert absolute_path("C://x", "x").endswith("C:/x")


@pytest.mark.parametrize("as_path", [str, Path])
def test_home_directory_is_expanded_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_path: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with LocalDatasetWriter(as_path("~/data")).new_episode() as writer:
        writer.append("a", 1.0, 1)
    root = tmp_path / "data"
    folder = "~/data/000000000000/000000000000"
    assert LocalDataset(as_path("~/data")).path == root
    assert relive.open(as_path("~/data")).path == root
    assert DiskEpisode(as_path(folder)).uid == writer.uid
    assert SimpleSignal(as_path(f"{folder}/a.parquet"))[0] == (1.0, 1)
    assert validate(as_path("~/data")).checked["episodes"] == 1
    assert recover(as_path("~/data")).path == root
    assert copy(as_path("~/data"), as_path("~/other")).copied == (writer.uid,)
    with PackWriter(as_path("~/p.a2pack")) as pack:
        pack.append(b"one")
    assert list(relive.open(as_path("~/p.a2pack"))) == [b"one"]
    assert expand(as_path("~/*.a2pack")) == [str(tmp_path / "p.a2pack")]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "other", "p.a2pack"]


@pytest.mark.parametrize("as_path", [str, Path])
def test_home_directory_is_expanded_for_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_path: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with replay.ReplayRecorder(as_path("~/runs"), "run") as recorder:
        refs = recorder.step([0.5], 1, 1.0, terminated=True)
    assert refs is not None
    assert (recorder.root, recorder.path.is_file()) == (tmp_path / "runs", True)
    with replay.ReplayWriter("other", as_path("~/runs/replay")) as writer:
        writer.record_step(observation=[0.5])
    assert len(replay.ReplayRun(as_path("~/runs/replay/run.h5"))) == 1
    assert len(replay.ReplayReader("other", as_path("~/runs/replay"))) == 1
    with replay.FrameResolver(as_path("~/runs/replay")) as resolver:
        assert resolver.resolve(refs.observation) == [0.5]
    with replay.TelemetryStore(as_path("~/runs")) as store:
        assert [run["run_id"] for run in store.runs()] == ["run", "other"]
    assert list(replay.ReplayRoot(as_path("~/runs"))) == ["run", "other"]
    assert replay.recover(as_path("~/runs")).root == tmp_path / "runs"
    assert replay.validate(as_path("~/runs")).ok
    export_parquet(as_path("~/runs"), as_path("~/steps.parquet"))
    relive.convert(as_path("~/steps.parquet"), as_path("~/steps"))
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["runs", "steps", "steps.parquet"]


def test_recorder_is_not_moved_by_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replay.ReplayRecorder("runs", "run") as recorder:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        recorder.step([0.5])
    assert len(replay.ReplayRun(tmp_path / "runs", "run")) == 1
