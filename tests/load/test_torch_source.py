"""Sources in the loaders of torch and grain."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relive import ArraySource, DataLoader, Source
from relive.load import Concat
from tests.conftest import Needs
from tests.load.reference import Plain

ROOT = Path(__file__).parents[2]


def sources() -> dict[str, Source]:
    """Return sources whose threads are running, so that a fork happens while they run."""
    array = ArraySource({"id": np.arange(60), "vec": np.arange(180.0).reshape(60, 3)}, workers=4)
    array.gather(np.zeros(50_000, dtype=np.int64))
    return {"array": array, "view": Concat(array, array)[:60], "python": Plain(array)}


def load(kind: str) -> None:
    """Load a source with torch, with and without workers, by row and by batch."""
    from torch.utils.data import DataLoader as TorchLoader

    source = sources()[kind]

    class ByRow:
        """Hides `__getitems__`, so that torch reads one row at a time."""

        def __len__(self) -> int:
            return len(source)

        def __getitem__(self, index: int) -> dict[str, object]:
            return source[index]

    for dataset in (source, ByRow()):
        for workers in (0, 2):
            loader = TorchLoader(
                dataset,
                batch_size=8,
                shuffle=True,
                num_workers=workers,
                multiprocessing_context="fork" if workers else None,
                timeout=60 if workers else 0,
            )
            for _ in range(2):
                seen = []
                for batch in loader:
                    seen += batch["id"].tolist()
                    assert batch["vec"][:, 0].tolist() == [3.0 * k for k in batch["id"].tolist()]
                assert sorted(seen) == list(range(60))


@pytest.mark.parametrize("kind", ["array", "view", "python"])
def test_torch_dataloader_loads_a_source(kind: str, needs: Needs) -> None:
    """In a separate process: other tests may have loaded libraries that must not be forked."""
    needs("torch")
    code = f"from tests.load.test_torch_source import load; load({kind!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_torch_sampler_with_our_loader(needs: Needs) -> None:
    needs("torch")
    from torch.utils.data import BatchSampler, SequentialSampler

    sampler = BatchSampler(SequentialSampler(range(10)), batch_size=4, drop_last=False)
    with DataLoader(np.arange(10) * 10, sampler=sampler) as loader:
        for _ in range(2):
            found = [batch["data"].tolist() for batch in loader]
            assert found == [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90]]


@pytest.mark.parametrize("kind", ["array", "view", "python"])
def test_grain_loads_a_source(kind: str, needs: Needs) -> None:
    needs("grain")
    import grain

    dataset = grain.MapDataset.source(sources()[kind]).shuffle(seed=3).batch(8)
    seen = [int(k) for batch in dataset for k in batch["id"]]
    assert sorted(seen) == list(range(60))
