"""A root with two recorded runs."""

import shutil
from pathlib import Path

import pytest

from tests.replay.toy_run import record, record_vector


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root with a run of three episodes and one of three environments; never changed."""
    root = tmp_path_factory.mktemp("replay") / "runs"
    record(root, "toy-1", env_id="Toy-v0", seed=7, metadata={"lr": 0.5}, spaces={"n": 4})
    return record_vector(root)


@pytest.fixture
def root(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy of the root; no connection to its database is open."""
    return shutil.copytree(recorded, tmp_path / "runs")
