"""A database to migrate, and a root."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replay.migrate.original import Original


@pytest.fixture
def original(tmp_path: Path) -> Iterator[Original]:
    made = Original(tmp_path / "old.sqlite")
    yield made
    made.connection.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"
