"""Loaders with a `PrioritizedSampler`."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import ArraySource, DataLoader, Field, PrioritizedSampler, RecordStore, Source, errors
from tests.load.reference import Plain, rows, same
from tests.load.transforms import negate


def sampler_of(length: int, batch_size: int = 4, **options: Any) -> PrioritizedSampler:
    """Return a sampler in which every row has another priority."""
    sampler = PrioritizedSampler(length, batch_size, **options)
    sampler.update(np.arange(length), 1.0 + np.arange(length))
    return sampler


def expected_batches(source: Source, sampler: PrioritizedSampler, count: int) -> list[Any]:
    """Return the batches of a sampler, gathered one by one."""
    ahead = PrioritizedSampler(sampler.length, sampler.batch_size, seed=sampler.seed)
    ahead.load_state_dict(sampler.state_dict())
    found = []
    for _ in range(count):
        index, extras = next(ahead)
        found.append({**source.gather(index), "index": index, **extras})
    return found


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("path", ["native", "python", "mixed"])
def test_core_and_python_make_the_same_batches(workers: int, path: str) -> None:
    source: Any = rows(40)
    sampler = sampler_of(40, 6, seed=4)
    expected = expected_batches(source, sampler, 12)
    if path == "python":
        source = Plain(source)
    elif path == "mixed":
        source = {"a": source, "b": Plain(source)}
    with DataLoader(source, sampler=sampler, workers=workers) as loader:
        for batch in expected:
            found = next(loader)
            if path == "mixed":
                assert same(found["a"], found["b"])
                found = {**found["a"], "index": found["index"], "weight": found["weight"]}
            assert same(found, batch)
    assert sampler.position == 0  # the loader counts its own


@pytest.mark.parametrize("options", [{}, {"transform_workers": 2}])
def test_transforms_get_the_extras(options: Any) -> None:
    source = rows(30)
    sampler = sampler_of(30)
    expected = expected_batches(source, sampler, 8)
    with DataLoader(source, sampler=sampler, transform=negate, **options) as loader:
        assert all(same(next(loader), negate(batch)) for batch in expected)


@pytest.mark.parametrize("prefetch", [1, 2, 5])
@pytest.mark.parametrize("path", ["native", "python", "transform"])
def test_batches_follow_updates_after_at_most_prefetch_batches(prefetch: int, path: str) -> None:
    source: Any = rows(40) if path != "python" else Plain(rows(40))
    sampler = PrioritizedSampler(40, 8)
    transform = negate if path == "transform" else None
    loader = DataLoader(source, sampler=sampler, workers=4, prefetch=prefetch, transform=transform)
    with loader:
        for row in (7, 23):
            for _ in range(10):
                next(loader)
            sampler.update(range(40), 1e-9)
            sampler.update(row, 1e9)
            for _ in range(prefetch):
                next(loader)
            assert next(loader)["id"].tolist() == [row] * 8


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("path", ["native", "python"])
def test_resumed_loader_draws_as_if_it_had_not_stopped(workers: int, path: str) -> None:
    source: Any = rows(40) if path == "native" else Plain(rows(40))

    def noise(batch: Any, rng: np.random.Generator) -> Any:
        return {**batch, "noise": rng.random(3)}

    for transform in (None, noise):
        sampler = sampler_of(40, seed=2)
        with DataLoader(source, sampler=sampler, workers=workers, transform=transform) as loader:
            for _ in range(5):
                next(loader)
            sampler.update(range(10), 50.0)
            state = loader.state_dict()
            loader.close()  # what was drawn with the priorities of before is drawn again
            expected = [next(loader) for _ in range(6)]
        resumed = PrioritizedSampler(40, 4, seed=2)
        with DataLoader(source, sampler=resumed, workers=1, transform=transform) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict()["position"] == 20
            assert all(same(next(loader), batch) for batch in expected)


def test_state_is_not_copied_at_every_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sampler_of(40)
    asked: list[int] = []
    read = sampler.state_at

    def state_at(position: int) -> dict[str, Any]:
        asked.append(position)
        return read(position)

    monkeypatch.setattr(sampler, "state_at", state_at)
    with DataLoader(Plain(rows(40)), sampler=sampler) as loader:
        for _ in range(20):
            next(loader)
        assert asked == []
        assert loader.state_dict()["sampler"]["position"] == 80
    assert asked == [80]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("path", ["native", "python"])
def test_loader_follows_a_growing_source(tmp_path: Path, workers: int, path: str) -> None:
    with RecordStore.create(tmp_path / "s", {"x": Field("i8")}) as store:
        store.extend({"x": np.arange(10)})
        sampler = PrioritizedSampler(store, 5)
        source = {"x": store if path == "native" else Plain(store)}
        with DataLoader(source, sampler=sampler, workers=workers, prefetch=2) as loader:
            position = 0
            for length in (30, 33):
                before = sampler.length
                store.extend({"x": np.arange(before, length)})
                for _ in range(20):  # rows are not drawn before a refresh
                    assert next(loader)["x"].max() < before
                assert sampler.refresh() == length - before
                found: set[int] = set()
                for _ in range(100):
                    batch = next(loader)
                    assert (batch["x"] == batch["index"]).all()
                    found |= set(batch["x"].tolist())
                assert found == set(range(length))
                position += 120 * 5
                assert loader.state_dict()["position"] == position
            del store[20:]
            loader.close()
            with pytest.raises(errors.InvalidError, match="length=33, but the source has only 20"):
                next(loader)


def test_names_of_fields() -> None:
    index = np.arange(10)[::-1].copy()
    sampler = PrioritizedSampler(10, 4)
    for wrap in (ArraySource, lambda data: Plain(ArraySource(data))):
        with DataLoader(wrap({"x": np.arange(10), "index": index}), sampler=sampler) as loader:
            batch = next(loader)
        assert list(batch) == ["x", "index", "weight"]
        assert (batch["index"] == index[batch["x"]]).all()  # that of the source
        with pytest.raises(errors.InvalidError, match="adds a `weight` to batches"):
            DataLoader(wrap({"weight": np.arange(10)}), sampler=sampler)
        with DataLoader({"step": wrap({"weight": index, "y": index})}, sampler=sampler) as loader:
            assert list(next(loader)) == ["step", "index", "weight"]


def test_samplers_of_another_length_are_refused() -> None:
    data = np.arange(10)
    for length in (9, 11):
        with pytest.raises(errors.InvalidError, match=f"length={length}, but the source has"):
            DataLoader(data, sampler=PrioritizedSampler(length, 4))
    with pytest.raises(errors.InvalidError, match="only 10 rows"):
        DataLoader(data, sampler=PrioritizedSampler(ArraySource(np.arange(11)), 4))
    sampler = PrioritizedSampler(10, 4)
    with pytest.raises(errors.InvalidError, match="cannot be used with a custom sampler"):
        DataLoader(data, sampler=sampler, epochs=1)
    loader = DataLoader(data, sampler=sampler)
    assert "batches of a PrioritizedSampler" in repr(loader)
    with pytest.raises(errors.InvalidTypeError, match="no length"):
        len(loader)
    with pytest.raises(errors.InvalidError, match="no key 'sampler'"):
        loader.load_state_dict({"position": 0})
    del loader
    gc.collect()
