"""A root with two versions of a dataset, published by commands."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Relive


def write_episode(path: Path, episode: int, rows: int = 100) -> Path:
    """Write a Parquet file with the steps of one episode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "episode": pa.array([episode] * rows, pa.int64()),
            "step": pa.array(range(rows), pa.int64()),
            "reward": pa.array([episode * step / 10 for step in range(rows)]),
            "note": pa.array([None if step % 2 else f"step {step}" for step in range(rows)]),
        }
    )
    pq.write_table(table, path)
    return path


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every test have a cache of its own instead of the user's."""
    monkeypatch.setenv("RELIVE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a directory with three Parquet files."""
    for episode in range(3):
        write_episode(tmp_path / "data" / f"{episode}.parquet", episode)
    return tmp_path / "data"


@pytest.fixture
def root(relive: Relive, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default root: `lab/kitchen` has v1 of 200 rows, and 300 rows in `latest`."""
    root = tmp_path / "root"
    monkeypatch.setenv("RELIVE_ROOT", str(root))
    monkeypatch.chdir(tmp_path)
    first = relive(
        *("publish", "lab/kitchen", "--table", f"main={data}/[01].parquet"),
        *("--tag", "v1", "--message", "two episodes"),
    )
    assert first.status == 0, first.err
    second = relive(
        "publish", "lab/kitchen", "--base", "latest", "--append", f"main={data}/2.parquet"
    )
    assert second.status == 0, second.err
    return root


def latest(relive: Relive, dataset: str = "lab/kitchen") -> str:
    """Return the digest of the latest version."""
    digest: str = relive("info", dataset, "--json").json["digest"]
    return digest
