"""Arguments of the loader, and the errors for invalid ones."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import ArraySource, DataLoader, Ragged, Sampler, errors
from tests.conftest import Needs
from tests.load.reference import Plain, rows

A = np.arange(10)
B = np.arange(20).reshape(10, 2)


def first(*sources: Any, **options: Any) -> Any:
    with DataLoader(*sources, batch_size=3, mode="sequential", **options) as loader:
        return next(loader)


def shapes(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: shapes(value) for name, value in batch.items()}
    return len(batch) if isinstance(batch, Ragged) else batch.shape


def test_every_form_of_sources(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, B)
    ragged = Ragged.from_list([np.arange(k) for k in range(10)])
    expected: list[tuple[tuple[Any, ...], Any]] = [
        ((A,), {"data": (3,)}),
        ((np.asfortranarray(B),), {"data": (3, 2)}),
        ((path,), {"data": (3, 2)}),
        ((str(path),), {"data": (3, 2)}),
        ((np.load(path, mmap_mode="r"),), {"data": (3, 2)}),
        ((ragged,), {"data": 3}),
        ((ArraySource(A),), {"data": (3,)}),
        ((ArraySource({"x": A, "y": B}),), {"x": (3,), "y": (3, 2)}),
        ((Plain(ArraySource({"x": A, "y": B})),), {"x": (3,), "y": (3, 2)}),
        ((A, B), {"data": (3,), "label": (3, 2)}),
        ((path, A), {"data": (3, 2), "label": (3,)}),
        ((ArraySource({"x": A}), A), {"data": (3,), "label": (3,)}),
        ((ArraySource({"x": A, "y": B}), A), {"data": {"x": (3,), "y": (3, 2)}, "label": (3,)}),
        (({"image": A, "state": path},), {"image": (3,), "state": (3, 2)}),
        (({"one": ArraySource({"x": A})},), {"one": (3,)}),
        (({"obs": rows(10), "act": Plain(ArraySource(B))},),
         {"obs": {"id": (3,), "vec": (3, 3), "tokens": 3}, "act": (3, 2)}),
        (({"obs": {"x": A, "y": B}},), {"obs": {"x": (3,), "y": (3, 2)}}),
        (({"a": A, "b": A, "c": A, "d": B},), {"a": (3,), "b": (3,), "c": (3,), "d": (3, 2)}),
    ]  # fmt: skip
    for sources, wanted in expected:
        assert shapes(first(*sources)) == wanted


@pytest.mark.parametrize("python", [False, True])
def test_fields_of_a_batch_come_from_the_same_rows(python: bool) -> None:  # noqa: FBT001
    obs = Plain(rows(50)) if python else rows(50)
    with DataLoader({"obs": obs, "act": np.arange(50) * 10}, batch_size=7) as loader:
        for _ in range(20):
            batch = next(loader)
            np.testing.assert_array_equal(batch["obs"]["id"] * 10, batch["act"])
            np.testing.assert_array_equal(batch["obs"]["vec"][:, 0] * 10, batch["act"])
            lengths = batch["obs"]["tokens"].lengths
            np.testing.assert_array_equal(lengths, batch["obs"]["id"] % 4)


@pytest.mark.parametrize(
    ("sources", "error", "text"),
    [
        ((), errors.InvalidError, "must have at least one source"),
        (({},), errors.InvalidError, "got an empty dict"),
        ((A, A, A), errors.InvalidError, "at most two sources by position, got 3"),
        ((A, A[:9]), errors.InvalidError, "same number of rows: 'data' has 10, 'label' has 9"),
        (({"x": rows(10), "y": A[:4]},), errors.InvalidError, "'x' has 10, 'y' has 4"),
        ((A[:0],), errors.InvalidError, "the source has no rows"),
        ((A[:0], A[:0]), errors.InvalidError, "the source has no rows"),
        ((A[:0], A), errors.InvalidError, "'data' has 0, 'label' has 10"),
        (([1, 2, 3],), errors.InvalidTypeError, "`source` must be an array, .*, got a list"),
        ((3,), errors.InvalidTypeError, "`source` must be an array, .*, got an int"),
        ((None,), errors.InvalidTypeError, "`source` must be an array, .*, got a NoneType"),
        ((A, {1}), errors.InvalidTypeError, "`label` must be an array, .*, got a set"),
        (({"x": A, "y": [1]},), errors.InvalidTypeError, "`y` must be an array, .*, got a list"),
        (({3: A},), errors.InvalidTypeError, "the name of a source must be a string, got 3"),
        (({"": A},), errors.InvalidTypeError, "the name of a source must be a string, got ''"),
        ((np.array(3),), errors.InvalidError, "a single value"),
        ((np.array([{}]),), errors.InvalidTypeError, "Python objects"),
        (("/no/such.npy",), errors.NotFoundError, "cannot read `/no/such.npy`"),
    ],
    ids=repr,
)  # fmt: skip
def test_invalid_sources_raise(
    sources: tuple[Any, ...], error: type[errors.ReliveError], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        DataLoader(*sources)
    if "position" in text:
        assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_size": 11, "tail": "drop"}, errors.InvalidError, "the sampler has no batches"),
        ({"batch_size": 6, "tail": "drop", "rank": 0, "world_size": 2}, errors.InvalidError,
         "the sampler has no batches"),
        ({"batch_size": 0}, errors.InvalidError, "`batch_size` must be from 1"),
        ({"mode": "shuffled"}, errors.InvalidError, "`mode` must be one of"),
        ({"tail": "last"}, errors.InvalidError, "`tail` must be one of"),
        ({"seed": "7"}, errors.InvalidTypeError, "`seed` must be an integer"),
        ({"epochs": 0}, errors.InvalidError, "`epochs` must be at least 1"),
        ({"epochs": -1}, errors.InvalidError, "`epochs` must be at least 1"),
        ({"epochs": 1.0}, errors.InvalidTypeError, "`epochs` must be an integer"),
        ({"epochs": 10**18}, errors.InvalidError, "`epochs` must be None or from 1"),
        ({"workers": -1}, errors.InvalidError, "`workers` must be at least 0"),
        ({"workers": 10**6}, errors.InvalidError, "`workers` must be at most"),
        ({"workers": None}, errors.InvalidTypeError, "`workers` must be an integer"),
        ({"prefetch": 0}, errors.InvalidError, "`prefetch` must be at least 1"),
        ({"prefetch": 10**6}, errors.InvalidError, "`prefetch` must be at most"),
        ({"window": 11}, errors.InvalidError, "`window` is 11, but the source"),
        ({"stride": 2}, errors.InvalidError, "`stride` requires `window`"),
        ({"transform": "no"}, errors.InvalidTypeError, "`transform` must be callable"),
        ({"rank": 0}, errors.InvalidError, "`rank` and `world_size` must be passed together"),
        ({"world_size": 2}, errors.InvalidError, "`rank` and `world_size` must be passed together"),
        ({"rank": 2, "world_size": 2}, errors.InvalidError, "`rank` must be less than"),
    ],
    ids=repr,
)  # fmt: skip
def test_invalid_options_raise(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        DataLoader(A, **options)


def test_batch_larger_than_the_source() -> None:
    for tail, count in (("wrap", 16), ("pad", 16), ("keep", 10)):
        with DataLoader(A, batch_size=16, tail=tail) as loader:
            assert len(next(loader)["data"]) == count


def test_mask_needs_a_name() -> None:
    for sources in ({"mask": A}, {"mask": rows(10)}, ArraySource({"x": A, "mask": A})):
        with pytest.raises(errors.InvalidError, match="adds a `mask` to batches"):
            DataLoader(sources, tail="pad")
        assert "mask" in first(sources)
    inside = first({"obs": ArraySource({"x": A, "mask": A})}, tail="pad")
    assert inside["obs"]["mask"].tolist() == [0, 1, 2]
    assert inside["mask"].tolist() == [True] * 3


def test_fields_without_values() -> None:
    for source in (np.zeros((10, 0)), np.zeros((10, 3, 0), "U3")):
        assert first(source)["data"].shape == (3, *source.shape[1:])
        assert first(Plain(ArraySource(source)))["data"].shape == (3, *source.shape[1:])
    empty = Ragged(np.empty(0), np.zeros(11, dtype=np.int64))
    assert first(empty)["data"].lengths.tolist() == [0, 0, 0]


# -- ranks -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_rank_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove rank variables from the environment of the test run."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_ranks_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        with DataLoader(np.arange(30), batch_size=2, tail="drop") as loader:
            seen += [row for batch in loader.epoch() for row in batch["data"].tolist()]
            assert loader.steps_per_epoch == 5
    assert sorted(seen) == list(range(30))


def test_arguments_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert first(A, rank=0, world_size=1)["data"].tolist() == [0, 1, 2]
    assert first(A)["data"].tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set, but RANK is not"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "must be integers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "got RANK=2, WORLD_SIZE=2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "got RANK=-1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
    ],
    ids=repr,
)
def test_invalid_environment_raises(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], text: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.InvalidError, match=text):
        DataLoader(A)
    assert DataLoader(A, rank=0, world_size=1).steps_per_epoch == 1


def test_empty_variable_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "")
    monkeypatch.setenv("WORLD_SIZE", "")
    assert DataLoader(A, batch_size=10).steps_per_epoch == 1
    assert os.environ["RANK"] == ""


def test_ranks_cannot_be_passed_with_a_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = [{"rank": 0}, {"world_size": 2}, {"rank": 0, "world_size": 1}]
    for options in given:
        with pytest.raises(errors.InvalidError, match="cannot be passed together with `sampler`"):
            DataLoader(A, sampler=Sampler(10, 2), **options)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(errors.InvalidError, match=r"world_size=1, .* WORLD_SIZE=2") as caught:
        DataLoader(A, sampler=Sampler(10, 2))
    assert caught.value.hint == "pass rank= and world_size= to the Sampler"
    assert DataLoader(A, sampler=Sampler(10, 2, rank=1, world_size=2)).steps_per_epoch == 3


def test_arrays_of_other_libraries(needs: Needs) -> None:
    class Lazy:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return A

    assert first(Lazy())["data"].tolist() == [0, 1, 2]
    assert first({"x": Lazy(), "y": A})["x"].tolist() == [0, 1, 2]
    needs("torch")
    import torch

    assert first(torch.arange(10))["data"].tolist() == [0, 1, 2]
