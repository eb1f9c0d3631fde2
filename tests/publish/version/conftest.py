"""Roots to publish to: in memory, in a directory, and in an object store."""

import secrets
from pathlib import Path

import pytest

from relive.store.roots import open_root
from relive.store.roots.root import Root
from tests.conftest import Needs


@pytest.fixture(params=["memory", "directory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, needs: Needs) -> Root:
    """Return an empty root of each kind."""
    if request.param == "directory":
        return open_root(tmp_path / "root")
    if request.param == "memory":
        return open_root(f"memory://{secrets.token_hex(8)}")
    needs("obstore", "seaweedfs")
    bucket: str = request.getfixturevalue("bucket")
    return open_root(bucket, **request.getfixturevalue("seaweed").options())


@pytest.fixture
def memory() -> Root:
    """Return an empty root in memory."""
    return open_root(f"memory://{secrets.token_hex(8)}")
