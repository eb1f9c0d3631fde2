"""Transforms on threads."""

import functools
import itertools
import threading
import traceback
from typing import Any

import numpy as np
import pytest

from relive import ArraySource, DataLoader, Sampler, errors
from relive.load.transform import Transform
from tests.load import transforms
from tests.load.reference import Order, Plain, Plan, rows

Batch = dict[str, Any]


def noises(**options: Any) -> list[Any]:
    source = options.pop("source", rows(40))
    with DataLoader(source, batch_size=6, transform=transforms.noise, **options) as loader:
        return [batch["noise"].tolist() for batch in itertools.islice(loader, 25)]


def test_rng_is_the_same_at_any_worker_count() -> None:
    expected = noises(workers=0, seed=4)
    assert len({tuple(noise) for noise in expected}) == 25
    for workers, prefetch in itertools.product((1, 2, 5), (1, 8)):
        assert noises(workers=workers, prefetch=prefetch, seed=4) == expected
        assert noises(workers=workers, seed=4, source=Plain(rows(40))) == expected
    assert noises(seed=5) != expected


def test_rng_depends_on_the_seed_and_the_first_sample() -> None:
    for rank in range(2):
        plan = Plan(40, 6, "keep", rank, 2)
        found = noises(seed=9, rank=rank, world_size=2, tail="keep")
        for noise in found:
            drawn = plan.draw()
            assert drawn is not None
            assert noise == np.random.default_rng((9, drawn[2])).random(3).tolist()


def test_rng_differs_between_ranks() -> None:
    ranks = [noises(seed=4, rank=rank, world_size=3) for rank in range(3)]
    assert len({tuple(noise) for rank in ranks for noise in rank}) == 75


def test_rng_is_the_same_after_resume() -> None:
    expected = noises(seed=1)
    with DataLoader(rows(40), batch_size=6, seed=1, transform=transforms.noise) as loader:
        loader.seek(10)
        assert next(loader)["noise"].tolist() == expected[10]


def with_default(batch: Batch, rng: Any = None) -> Any:
    return rng


def keyword_only(batch: Batch, *, rng: Any) -> Any:
    return rng


class Method:
    def apply(self, batch: Batch, rng: Any) -> Any:
        return rng

    def __call__(self, batch: Batch, rng: Any) -> Any:
        return rng


@pytest.mark.parametrize(
    "function",
    [with_default, keyword_only, Method().apply, Method(), functools.partial(keyword_only),
     lambda batch, rng: rng],
)  # fmt: skip
def test_rng_is_passed_to_functions_with_an_rng_parameter(function: Any) -> None:
    assert isinstance(Transform(function, 0)({}, 0), np.random.Generator)


def test_other_functions_get_only_the_batch() -> None:
    assert Transform(lambda batch: batch, 0)("batch", 0) == "batch"
    assert Transform(lambda batch, **rest: (batch, rest), 0)("batch", 0) == ("batch", {})
    assert Transform(dict, 0)([("a", 1)], 0) == {"a": 1}
    with pytest.raises(errors.InvalidTypeError, match="`transform` must be callable, got 3"):
        DataLoader(np.arange(3), transform=3)  # type: ignore[arg-type]


def test_transform_may_return_anything_but_none() -> None:
    with DataLoader(np.arange(9), batch_size=3, transform=lambda batch: 0) as loader:
        assert next(loader) == 0
    for workers in (0, 2):
        with (
            DataLoader(
                np.arange(9), batch_size=3, transform=transforms.nothing, workers=workers
            ) as loader,
            pytest.raises(errors.InvalidTypeError, match="returned None") as caught,
        ):
            next(loader)
        assert caught.value.hint is not None


def test_threads_run_transforms_concurrently() -> None:
    """Two transforms wait for each other, so both must be running."""
    meet = threading.Barrier(2)

    def wait(batch: Batch) -> Batch:
        meet.wait(60)
        return batch

    with DataLoader(np.arange(8), batch_size=1, transform=wait, workers=2, epochs=1) as loader:
        assert len(list(loader)) == 8


def test_without_workers_everything_runs_on_the_calling_thread() -> None:
    seen = set()

    class Watching(Plain):
        def gather(self, *args: Any, **options: Any) -> Any:
            seen.add(threading.current_thread())
            return super().gather(*args, **options)

    def watch(batch: Batch) -> Batch:
        seen.add(threading.current_thread())
        return batch

    for source in (rows(10), Watching(rows(10))):
        with DataLoader(source, batch_size=3, workers=0, transform=watch, epochs=2) as loader:
            assert len(list(loader)) == 7
    with DataLoader(Watching(rows(10)), batch_size=3, workers=0, epochs=1) as loader:
        assert len(list(loader)) == 4
    assert seen == {threading.current_thread()}


# -- errors ----------------------------------------------------------------------------------


def step_of_row_13(seed: int, epoch: int = 0) -> int:
    """Return the step of an epoch whose batch contains row 13."""
    order = Order(40, "shuffle", seed)
    return next(k for k in range(40) if order[40 * epoch + k] == 13) // 3


def shows(error: BaseException, function: str) -> bool:
    return any(frame.name == function for frame in traceback.extract_tb(error.__traceback__))


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_error_in_a_transform_is_raised_at_its_batch(
    python: bool,  # noqa: FBT001 - a parameter
    workers: int,
    seed: int,
) -> None:
    source = rows(40)
    lucky = True
    raised = LookupError("row 13 is unlucky")

    def fail(batch: Batch) -> Batch:
        if lucky is False and 13 in batch["id"]:
            raise raised
        return batch

    lucky = False
    step = step_of_row_13(seed)
    expected = [batch.tolist() for batch in Sampler(40, 3, seed=seed).peek(20)]
    with DataLoader(
        Plain(source) if python else source,
        batch_size=3,
        seed=seed,
        workers=workers,
        prefetch=8,
        transform=fail,
    ) as loader:
        for batch in expected[:step]:
            assert next(loader)["id"].tolist() == batch
        for _ in range(2):  # the position does not change
            with pytest.raises(LookupError) as caught:
                next(loader)
            assert caught.value is raised
            assert shows(caught.value, "fail")
            assert loader.position == 3 * step
        lucky = True
        assert [next(loader)["id"].tolist() for _ in range(5)] == expected[step : step + 5]


def test_error_in_a_source_is_raised_at_its_batch() -> None:
    class Broken(Plain):
        def gather(self, indices: Any, *args: Any, **options: Any) -> Any:
            if 13 in indices:
                raise OSError("disk on fire")
            return super().gather(indices, *args, **options)

    for workers in (0, 3):
        with DataLoader(Broken(rows(40)), batch_size=3, workers=workers) as loader:
            for _ in range(step_of_row_13(0)):
                next(loader)
            with pytest.raises(OSError, match="disk on fire") as caught:
                next(loader)
            assert shows(caught.value, "gather")


def test_loop_gets_the_batches_before_an_error() -> None:
    loader = DataLoader(rows(40), batch_size=3, transform=transforms.fail_on_row_13, epochs=1)
    for epoch in range(2):  # the second loop has the next epoch
        seen: list[Any] = []
        with pytest.raises(LookupError):
            seen.extend(loader)
        assert len(seen) == step_of_row_13(0, epoch)


@pytest.mark.parametrize("workers", [0, 2])
def test_stop_iteration_in_a_transform_is_an_error(workers: int) -> None:
    loader = DataLoader(
        ArraySource(np.arange(9)),
        batch_size=3,
        transform=transforms.stop,
        workers=workers,
        epochs=1,
    )
    with loader, pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        list(loader)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert shows(caught.value.__cause__, "stop")


def test_positional_only_rng_parameter() -> None:
    def noise(batch: Any, rng: np.random.Generator, /) -> float:
        return float(rng.random())

    with DataLoader(rows(40), batch_size=4, seed=3, transform=noise) as loader:
        expected = [float(np.random.default_rng((3, first)).random()) for first in (0, 4)]
        assert [next(loader), next(loader)] == expected
