"""Episodes in directories, written by relive or by other programs."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.episodes.read.episode import DiskEpisode
from relive.errors import (
    CorruptError,
    NotFoundError,
    UnfinishedError,
    UnknownNameError,
    UnsupportedError,
)
from relive.model.dataset import EpisodeList
from relive.model.episode import EpisodeView
from relive.store.locks import FileLock
from tests.episodes.by_hand import CREATED, write_episode, write_signal

STATE = [(np.array([n, n + 0.5]), 100 + 10 * n) for n in range(5)]
GRIP = [(n % 2, 103 + 7 * n) for n in range(4)]
STATICS = {"task": "pick", "id": 123, "nested": {"a": [1, None]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an episode in the original format, without uid, outcome, marker or our metadata."""
    return write_episode(tmp_path / "ep", {"state": STATE, "grip": GRIP}, STATICS)


def test_directory_written_by_hand_opens(folder: Path) -> None:
    episode = DiskEpisode(folder)
    assert episode.uid == f"ts-{CREATED}"
    assert episode.keys == ("grip", "state", "task", "id", "nested")
    assert dict(episode.statics) == STATICS
    state, grip = episode["state"], episode["grip"]
    assert [(v.tolist(), ts) for v, ts in state] == [(v.tolist(), ts) for v, ts in STATE]
    assert [(int(v), ts) for v, ts in grip] == GRIP
    assert (state.name, state.kind, state.shape) == ("state", "vector", (2,))
    assert (episode.start_ts, episode.last_ts, episode.first_ts) == (103, 140, 100)
    assert episode.duration_ns == 40
    assert episode.meta["schema_version"] == 1
    assert episode.meta["created_ts_ns"] == CREATED
    assert episode.meta["writer"]["name"] == "by.hand"
    assert episode.meta["outcome"] == {}
    shown = episode.time[110]
    assert shown["task"] == "pick"
    assert shown["state"].tolist() == [1.0, 1.5]
    assert int(shown["grip"]) == 1


def test_metadata_is_available(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text()) | {"uid": "abc"}
    (folder / "meta.json").write_text(json.dumps(meta))
    outcome = {"ended": "interrupted", "finished_ts_ns": 7, "signals": {}}
    (folder / "outcome.json").write_text(json.dumps(outcome))
    episode = DiskEpisode(folder)
    assert episode.uid == "abc"
    assert episode.meta["outcome"] == outcome
    assert "meta" not in episode
    episode.meta["uid"] = "changed"
    assert episode.meta["uid"] == "abc"


def test_opening_reads_no_signal_and_no_json(folder: Path) -> None:
    for name in ("static.json", "meta.json", "outcome.json", "state.parquet", "grip.parquet"):
        (folder / name).write_bytes(b"torn")
    episode = DiskEpisode(folder)
    assert list(episode.signals) == ["grip", "state"]
    with pytest.raises(CorruptError, match=r"static\.json"):
        episode.keys  # noqa: B018
    with pytest.raises(CorruptError, match=r"meta\.json"):
        episode.uid  # noqa: B018
    with pytest.raises(CorruptError, match=r"state\.parquet"):
        len(episode["state"])


def test_signal_is_opened_once(folder: Path) -> None:
    episode = DiskEpisode(folder)
    assert episode["state"] is episode["state"]
    with pytest.raises(UnknownNameError, match="did you mean 'state'"):
        episode["staet"]
    with pytest.raises(KeyError):
        episode.signals["task"]


def test_other_files_are_ignored(folder: Path) -> None:
    for name in (
        "notes.txt",
        "preview.mp4",
        ".state.parquet.tape",
        ".x.parquet.part",
        "README",
        "a.json",
    ):
        (folder / name).write_bytes(b"anything")
    (folder / "inner").mkdir()
    (folder / "inner.parquet").mkdir()
    assert list(DiskEpisode(folder).signals) == ["grip", "state"]


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("cam%2Eframes", "cam.frames"),
        ("cam.frames", "cam.frames"),  # as other programs write it
        ("%2Ftf%2Fworld", "/tf/world"),
        ("%2Ehidden", ".hidden"),
        ("100%25", "100%"),
        ("50%", "50%"),  # as other programs write it
        ("a.b", "a.b"),
        ("größe", "größe"),
        ("x.parquet", "x.parquet"),
    ],
)
def test_names_with_any_characters_are_found(folder: Path, stem: str, name: str) -> None:
    write_signal(folder, stem, STATE)
    episode = DiskEpisode(folder)
    assert sorted(episode.signals) == sorted(["grip", "state", name])
    assert episode[name].name == name
    assert len(episode[name]) == 5


def test_index_without_its_movie_cannot_be_read(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"ts_ns": [1, 2]}), folder / "cam.frames.parquet")
    episode = DiskEpisode(folder)
    assert "cam" in episode
    with pytest.raises(NotFoundError, match=r"cam\.mp4"):
        episode["cam"][0]


def test_signal_hides_a_static_of_its_name(folder: Path) -> None:
    (folder / "static.json").write_text(json.dumps({"state": 1, "task": "pick"}))
    episode = DiskEpisode(folder)
    assert episode.keys == ("grip", "state", "task")
    assert len(episode["state"]) == 5
    assert episode.time[105:120]["task"] == "pick"


def test_bytes_in_statics_round_trip(folder: Path) -> None:
    statics = {"key": {"$bytes": "AP8="}, "plain": {"$$bytes": 1}}
    (folder / "static.json").write_text(json.dumps(statics))
    assert dict(DiskEpisode(folder).statics) == {"key": b"\x00\xff", "plain": {"$bytes": 1}}


def test_episode_without_statics_or_signals(tmp_path: Path) -> None:
    folder = write_episode(tmp_path / "ep", {})
    (folder / "static.json").unlink()
    episode = DiskEpisode(folder)
    assert episode.keys == ()
    with pytest.raises(ValueError, match="has no records"):
        episode.start_ts  # noqa: B018


def test_unfinished_episode_has_a_recover_hint(folder: Path) -> None:
    (folder / ".unfinished").write_text("{}")
    with pytest.raises(UnfinishedError, match="is not finished") as caught:
        DiskEpisode(folder)
    assert caught.value.hint == f"run `relive recover {folder}` to finish it"
    lock = FileLock.take(folder / ".unfinished")
    with pytest.raises(UnfinishedError, match="is still being recorded") as caught:
        DiskEpisode(folder)
    assert caught.value.hint is None
    lock.release()
    (folder / "meta.json").unlink()
    with pytest.raises(UnfinishedError):
        DiskEpisode(folder)


def test_missing_episode_raises_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="it is not an existing directory"):
        DiskEpisode(tmp_path / "none")
    with pytest.raises(NotFoundError, match=r"no `meta\.json`"):
        DiskEpisode(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotFoundError, match="it is not an existing directory"):
        DiskEpisode(tmp_path / "file")


def test_later_version_has_an_upgrade_hint(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text()) | {"schema_version": 2}
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UnsupportedError, match="upgrade relive"):
        DiskEpisode(folder).uid  # noqa: B018


def test_episode_pickles_as_its_path(folder: Path) -> None:
    episode = DiskEpisode(folder)
    episode["state"].values()
    data = pickle.dumps(episode)
    assert len(data) < 300 + len(os.fspath(folder))
    again = pickle.loads(data)  # noqa: S301 - our own data
    assert again.keys == episode.keys
    signals = pickle.loads(pickle.dumps(episode.signals))  # noqa: S301
    assert list(signals) == ["grip", "state"]
    window = pickle.loads(pickle.dumps(episode.time[110:130]))  # noqa: S301
    assert isinstance(window, EpisodeView)
    assert len(window["state"]) == 2


def test_path_argument_types(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    episode = DiskEpisode("ep")
    assert episode.path == folder
    monkeypatch.chdir("/")
    assert len(episode["state"]) == 5
    assert DiskEpisode(os.fspath(folder)).uid == episode.uid
    (tmp_path / "link").symlink_to(folder)
    assert DiskEpisode(tmp_path / "link").path.name == "link"


def test_open_recognizes_an_episode(folder: Path, tmp_path: Path) -> None:
    found = relive.open(folder)
    assert isinstance(found, DiskEpisode)
    shutil.copytree(folder, tmp_path / "ep2")
    several: Any = relive.open(tmp_path / "ep*")
    assert type(several) is EpisodeList
    assert [each.path.name for each in list[Any](several)] == ["ep", "ep2"]
    (folder / ".unfinished").touch()
    with pytest.raises(UnfinishedError):
        relive.open(folder)


def test_repr_is_one_line(folder: Path) -> None:
    assert repr(DiskEpisode(folder)) == f"DiskEpisode('ts-{CREATED}', 2 signals, 3 statics)"
    assert repr(DiskEpisode(folder).signals) == "DiskSignals('grip', 'state')"
