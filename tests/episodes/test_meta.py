"""Metadata of episodes, written by relive or by other programs."""

import json
from pathlib import Path

import pytest

from relive._native import crc32c
from relive.episodes.file_list import write_file_list
from relive.episodes.meta import make_meta, read_meta, read_outcome, write_json
from relive.errors import CorruptError, NotFoundError, UnsupportedError


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


def _write_list(folder: Path, text: str) -> None:
    body = text.removesuffix("\n}").encode()
    (folder / "files.json").write_bytes(b'%b,\n "crc": "%08x"\n}' % (body, crc32c(body)))


def test_metadata_is_compared_with_the_list_of_files(tmp_path: Path) -> None:
    meta = make_meta(Recorder)
    write_json(tmp_path / "meta.json", meta)
    write_file_list(tmp_path, {})
    assert read_meta(tmp_path) == meta
    stored = json.loads((tmp_path / "files.json").read_bytes())

    for indent in (1, 4):  # as relive writes it, and as another program might
        stored.pop("crc", None)
        _write_list(tmp_path, json.dumps(stored, indent=indent))
        assert read_meta(tmp_path) == meta, indent

    newer = json.dumps({**stored, "version": 2}, indent=1)
    _write_list(tmp_path, newer)
    with pytest.raises(UnsupportedError, match="upgrade relive"):
        read_meta(tmp_path)

    _write_list(tmp_path, json.dumps({**stored, "files": {}}, indent=1))
    with pytest.raises(CorruptError, match=r"meta\.json` is not in the list of files"):
        read_meta(tmp_path)

    _write_list(tmp_path, json.dumps(stored, indent=1))
    write_json(tmp_path / "meta.json", {**meta, "uid": "another"}, overwrite=True)
    with pytest.raises(CorruptError, match=r"meta\.json` is damaged: its SHA-256 differs"):
        read_meta(tmp_path)
    (tmp_path / "meta.json").unlink()
    with pytest.raises(CorruptError, match=r"meta\.json` is missing, but `files\.json` lists it"):
        read_meta(tmp_path)
