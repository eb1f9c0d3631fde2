"""`to_torch`: tensors in order, in this process and in workers of PyTorch, resumed exactly."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from relive.publish.read.dataset import PublishedDataset
from tests.publish.read.sample_tables import published, write

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> PublishedDataset:
    """A table of 20 row groups."""
    folder = tmp_path_factory.mktemp("torch")
    vectors = pa.array(np.arange(4000, dtype=np.float32).reshape(1000, 4).tolist(),
                       pa.list_(pa.float32(), 4))  # fmt: skip
    rows = pa.table({"i": np.arange(1000), "v": vectors, "s": [f"t{n}" for n in range(1000)]})
    return published(folder / "root", {"main": [write(rows, folder / "a.parquet", 50)]})


def ids(batches: Any) -> list[list[int]]:
    return [batch["i"].tolist() for batch in batches]


def test_batches_are_dicts_of_tensors(ds: PublishedDataset) -> None:
    data = ds.to_torch(64, shuffle=True, window=200)
    assert len(data) == 16
    batch = next(iter(data))
    assert batch["i"].dtype == torch.int64
    assert batch["v"].shape == (64, 4)
    assert torch.equal(batch["v"][:, 0], batch["i"].float() * 4)
    assert batch["s"] == [f"t{n}" for n in batch["i"].tolist()]
    data.close()


def test_iterations_continue_with_the_next_epoch(ds: PublishedDataset) -> None:
    data = ds.to_torch(64, shuffle=True, window=200)
    first, second = ids(data), ids(data)
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(1000))  # noqa: RUF017
    assert first != second
    data.set_epoch(0)
    assert ids(data) == first


# JAX, if another test of this process imported it, warns of every fork.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_after_the_parent_has_read(ds: PublishedDataset, context: str) -> None:
    data = ds.to_torch(64, shuffle=True, window=200, seed=1)
    expected = ids(data)
    data.set_epoch(0)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context=context
    )
    assert ids(loader) == expected
    state = data.state_dict(batches=5)
    again = ds.to_torch(32, shuffle=True, seed=1)
    again.load_state_dict(state)
    rest = torch.utils.data.DataLoader(
        again, batch_size=None, num_workers=1, multiprocessing_context=context
    )
    assert sum(expected[:5] + ids(rest), []) == sum(expected, [])  # noqa: RUF017


EXIT = """
import sys
import torch
from relive.publish.read.dataset import dataset
table = dataset("test/data", root=sys.argv[1]).table()
streams = [table.batches(10, shuffle=True, window=200), table.batches(10)]
for stream in streams:
    print(next(stream).num_rows, next(stream).num_rows)
"""


def test_a_process_with_torch_may_exit_with_an_open_stream(tmp_path: Path) -> None:
    rows = pa.table({"i": np.arange(1000)})
    published(tmp_path / "root", {"main": [write(rows, tmp_path / "a.parquet", 50)]})
    command = [sys.executable, "-c", EXIT, str(tmp_path / "root")]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""
