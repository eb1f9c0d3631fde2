"""`to_torch`: tensors in order, in this process and in workers of PyTorch, resumed exactly."""

import multiprocessing
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from relive.errors import InvalidError
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
    if context == "forkserver":
        multiprocessing.set_forkserver_preload(["torch"])  # once, instead of in each worker
    data = ds.to_torch(64, shuffle=True, window=200, seed=1)
    expected = ids(data)
    data.set_epoch(0)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context=context
    )
    assert ids(loader) == expected
    with pytest.raises(InvalidError, match="workers of a DataLoader") as caught:
        data.state_dict()
    assert "state_dict(batches=…)" in (caught.value.hint or "")
    # Every spawned worker imports torch, and gets its data as one of a fork server does.
    workers = 0 if context == "spawn" else 1
    state = data.state_dict(batches=5)
    again = ds.to_torch(32, shuffle=True, seed=1)
    again.load_state_dict(state)
    rest = torch.utils.data.DataLoader(
        again,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context if workers else None,
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


def in_worker(patch: pytest.MonkeyPatch, worker: int, workers: int) -> None:
    """Let torch say that this process is a worker of a DataLoader."""
    info = SimpleNamespace(id=worker, num_workers=workers)
    patch.setattr(torch.utils.data, "get_worker_info", lambda: info)


def test_the_position_is_known_again_at_the_next_epoch(ds: PublishedDataset) -> None:
    data = ds.to_torch(64, shuffle=True, window=200)
    start = data.state_dict()
    with pytest.MonkeyPatch.context() as patch:
        in_worker(patch, 0, 1)
        next(iter(data))
    with pytest.raises(InvalidError):
        data.state_dict()
    data.set_epoch(0)
    with pytest.raises(InvalidError):
        data.state_dict()
    assert data.state_dict(batches=16)["position"] == 1000
    data.set_epoch(1)
    assert data.state_dict()["position"] == 1000
    data.load_state_dict(start)
    assert data.state_dict() == start


@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
def test_a_worker_continues_after_its_last_batch(ds: PublishedDataset, tail: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "window": 200, "seed": 3, "tail": tail}
    whole = ds.to_torch(64, **options)
    whole.set_epoch(1)
    expected = ids(whole)
    state: dict[str, Any] = {}
    for worker in range(2):
        with pytest.MonkeyPatch.context() as patch:
            in_worker(patch, worker, 2)
            data = ds.to_torch(64, **options)
            data.set_epoch(1)
            for stops in (0, 2, 3, 10):  # three times in a row, and at the end of the epoch
                batches = iter(data)
                begin = data.state_dict()["worker_steps"]
                assert begin % 2 == 0
                found = ids(batch for _, batch in zip(range(stops), batches, strict=False))
                assert found == expected[begin + worker :: 2][:stops]
                state = data.state_dict()
                data = ds.to_torch(64, **options)
                data.load_state_dict(state)
                assert data.state_dict() == state
            assert ids(data) == []
    with pytest.raises(InvalidError, match="worker 1 of 2"):
        ds.to_torch(64, **options).load_state_dict(state)


LIMIT = 300
runs = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(7, 40))
"""Ranks, workers of each (0: none, the rank reads itself) and the size of a batch."""


def as_loader(data: Any, workers: int) -> list[list[int]]:
    """Return the batches as a DataLoader does, whose workers are all in this process."""
    if not workers:
        return ids(data)
    parts = []
    for worker in range(workers):
        with pytest.MonkeyPatch.context() as patch:
            in_worker(patch, worker, workers)
            parts.append(ids(data))
    count = sum(map(len, parts))
    return [parts[step % workers][step // workers] for step in range(count)]


@settings(max_examples=12)
@given(
    sequence=st.lists(runs, min_size=4, max_size=4),
    stops=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    partitions=st.sampled_from([None, 1, 2, 7]),
    window=st.integers(1, 400),
    seed=st.integers(0, 9),
    shuffle=st.booleans(),
)
def test_resume_is_exact_three_times_with_other_ranks_workers_and_batch_sizes(
    *,
    ds: PublishedDataset,
    sequence: list[tuple[int, int, int]],
    stops: list[int],
    partitions: int | None,
    window: int,
    seed: int,
    shuffle: bool,
) -> None:
    same: dict[str, Any] = {"columns": ["i"], "shuffle": shuffle, "seed": seed, "limit": LIMIT}
    first: dict[str, Any] = {"partitions": partitions, "window": window if shuffle else None}

    def read(run: tuple[int, int, int], state: Any, stop: int | None) -> tuple[list[int], Any]:
        """Return the rows of all ranks in the global order, and the state after `stop` steps."""
        world, workers, size = run
        ranks, states = [], []
        for rank in range(world):
            more: dict[str, Any] = first if state is None else {}
            data = ds.to_torch(size, shard=(rank, world), **same, **more)
            if state is not None:
                data.load_state_dict(state)
            left = as_loader(data, workers)
            ranks.append(left[:stop])
            again = ds.to_torch(size, shard=(rank, world), **same, **more)
            if state is not None:
                again.load_state_dict(state)
            states.append(again.state_dict(batches=len(ranks[-1])))
            data.close()
        assert all(each == states[0] for each in states)
        rows = [row for step in zip(*ranks, strict=True) for share in step for row in share]
        return rows, states[0]

    whole, _ = read(sequence[0], None, None)
    assert sorted(whole) == [*range(LIMIT)]
    if partitions == 1:
        alone = ds.to_torch(LIMIT, shard=None, **same, **first)
        assert [whole] == ids(alone)
        alone.close()
    found: list[int] = []
    state = None
    for run, stop in zip(sequence, [*stops, None], strict=True):
        if state is not None and state["position"] == LIMIT:
            break
        rows, state = read(run, state, stop)
        found += rows
    assert found == whole
