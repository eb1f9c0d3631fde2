"""Servers to read from, each started where a test asks for it."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Needs
from tests.servers import Nginx, SeaweedFS


@pytest.fixture
def nginx(tmp_path: Path, needs: Needs) -> Iterator[Nginx]:
    """A web server over an empty folder, `nginx.files`."""
    needs("nginx")
    files, place = tmp_path / "files", tmp_path / "nginx"
    files.mkdir()
    place.mkdir()
    with Nginx(files, place) as server:
        yield server


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """An object store; a test that asks for it is marked as needing `seaweedfs`."""
    with SeaweedFS(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture
def s3(seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> SeaweedFS:
    """The object store, as the environment names it."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    return seaweed


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """A process to fork in: others here may have loaded what must not be forked."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool
