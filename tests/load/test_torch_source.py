"""Sources inside other people's loaders, as they are."""

import warnings
from typing import Any

import numpy as np
import pytest

from relive import ArraySource, Source
from relive.load import Concat
from tests.conftest import Needs
from tests.load.reference import Plain


def source_of(kind: str) -> Source:
    array = ArraySource({"id": np.arange(60), "vec": np.arange(180.0).reshape(60, 3)})
    made: dict[str, Source] = {
        "array": array,
        "view": Concat(array, array)[:60],
        "python": Plain(array),
    }
    array.gather(np.zeros(50_000, dtype=np.int64))  # its threads are running when it is forked
    return made[kind]


class ByItem:
    """Hides `__getitems__`, so that torch asks for one row at a time."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self.source[index]


@pytest.mark.parametrize("kind", ["array", "view", "python"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_item", [False, True])
def test_torch_loads_a_source(kind: str, workers: int, by_item: bool, needs: Needs) -> None:  # noqa: FBT001
    needs("torch")
    from torch.utils.data import DataLoader

    source = source_of(kind)
    dataset: Any = ByItem(source) if by_item else source
    with warnings.catch_warnings():
        # Python says so of any fork of a process with threads; torch has no other default.
        warnings.simplefilter("ignore", DeprecationWarning)
        loader = DataLoader(
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


def test_torch_samplers_drive_our_loader(needs: Needs) -> None:
    needs("torch")
    from torch.utils.data import BatchSampler, SequentialSampler

    from relive import DataLoader

    sampler = BatchSampler(SequentialSampler(range(10)), batch_size=4, drop_last=False)
    with DataLoader(np.arange(10) * 10, sampler=sampler) as loader:
        for _ in range(2):
            found = [batch["data"].tolist() for batch in loader]
            assert found == [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90]]


@pytest.mark.parametrize("kind", ["array", "view", "python"])
def test_grain_loads_a_source(kind: str, needs: Needs) -> None:
    needs("grain")
    import grain

    dataset = grain.MapDataset.source(source_of(kind)).shuffle(seed=3).batch(8)
    seen = [int(k) for batch in dataset for k in batch["id"]]
    assert sorted(seen) == list(range(60))
