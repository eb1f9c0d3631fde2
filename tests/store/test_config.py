"""Settings from the environment."""

import sys
from pathlib import Path

import pytest

from relive import errors
from relive.store import config
from relive.store.roots import open_root


def test_default_root_is_a_directory_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RELIVE_ROOT", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert open_root().path == tmp_path / ".local" / "share" / "relive" / "root"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert config.data_directory() == tmp_path / ".local" / "share" / "relive"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert open_root().path == tmp_path / "data" / "relive" / "root"
    assert not (tmp_path / "data").exists()  # only a write creates it
    monkeypatch.setattr(sys, "platform", "darwin")
    assert config.data_directory() == tmp_path / "Library" / "Application Support" / "relive"


def test_root_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIVE_ROOT", "memory://of-the-environment")
    assert open_root().name == "memory://of-the-environment"
    monkeypatch.setenv("RELIVE_ROOT", "")
    assert open_root().path is not None


def test_time_of_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIVE_RETRY_S", raising=False)
    assert config.read_retry_s() == 600
    monkeypatch.setenv("RELIVE_RETRY_S", "2.5")
    assert config.read_retry_s() == 2.5
    for bad in ("soon", "-1", "inf", "nan"):
        monkeypatch.setenv("RELIVE_RETRY_S", bad)
        with pytest.raises(errors.InvalidError, match="`RELIVE_RETRY_S` must be a number"):
            config.read_retry_s()


def test_environment_of_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    before = config.cloud_environment()
    monkeypatch.setenv("AWS_REGION", "somewhere-else")
    assert config.cloud_environment() != before
    assert ("AWS_REGION", "somewhere-else") in config.cloud_environment()
