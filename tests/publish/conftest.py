"""What tests of publishing share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let every test have a cache of its own instead of the user's."""
    directory = tmp_path / "relive-cache"
    monkeypatch.setenv("RELIVE_CACHE_DIR", str(directory))
    return directory
