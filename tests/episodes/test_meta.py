"""Metadata of episodes, written by relive or by other programs."""

import json
from pathlib import Path

import pytest

from relive.episodes.meta import make_meta, read_meta, read_outcome, write_json
from relive.errors import CorruptError, NotFoundError


class Recorder:
    """A custom writer."""


def test_metadata_names_writer_time_and_version(tmp_path: Path) -> None:
    meta = make_meta(Recorder)
    assert meta["writer"]["name"] == f"{__name__}.Recorder"
    assert make_meta(Recorder)["uid"] != meta["uid"]
    write_json(tmp_path / "meta.json", meta)
    (tmp_path / ".unfinished").touch()
    assert read_meta(tmp_path) == meta
    (tmp_path / ".unfinished").unlink()
    with pytest.raises(CorruptError, match=r"`files\.json` is missing"):
        read_meta(tmp_path)


def test_episode_without_a_uid_gets_one_from_its_time(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(json.dumps({"schema_version": 1, "created_ts_ns": 17}))
    assert read_meta(tmp_path)["uid"] == "ts-17"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"created_ts_ns": "x"}', '{"created_ts_ns": 1, "uid": 3}']
)
def test_damage_is_reported(text: str, tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(CorruptError, match=r"meta\.json"):
        read_meta(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not an episode"):
        read_meta(tmp_path)
    assert read_outcome(tmp_path) is None


def test_unreadable_file_raises(tmp_path: Path) -> None:
    (tmp_path / "meta.json").mkdir()
    with pytest.raises(OSError, match=r"meta\.json"):
        read_meta(tmp_path)
