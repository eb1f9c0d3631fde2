"""All readers and writers interpret paths in the same way."""

import os
from pathlib import Path
from typing import Any

import pytest

import relive
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
from relive.store.pack import PackWriter
from relive.store.paths import absolute_path, expand

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
}


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to an empty directory, which no test here may write to."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize(
    "uri",
    ["s3://bucket/x", "file:///x", "gs+x://b", Path("s3://b/x"), Path("https://a/b")],
    ids=str,
)
def test_uri_is_not_a_local_path(taker: Any, uri: Any) -> None:
    with pytest.raises(InvalidError, match="is a URI") as caught:
        taker(uri)
    assert "use a local path" in str(caught.value.hint)
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
