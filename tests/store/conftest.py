"""Servers to read from, started on demand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Needs
from tests.servers import Nginx, SeaweedFS


@pytest.fixture
def nginx(tmp_path: Path, needs: Needs) -> Iterator[Nginx]:
    """Start a web server over an empty folder, `nginx.files`."""
    needs("nginx")
    files, folder = tmp_path / "files", tmp_path / "nginx"
    files.mkdir()
    folder.mkdir()
    with Nginx(files, folder) as server:
        yield server


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """Start an object store; tests that use it are marked as needing `seaweedfs`."""
    with SeaweedFS(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture
def s3(seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> SeaweedFS:
    """Configure the object store in the environment."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    return seaweed
