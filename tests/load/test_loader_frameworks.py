"""Loaders as training frameworks use them: several threads, errors of conversions, JAX devices."""

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from relive import DataLoader, Sampler, errors
from tests.load.reference import Plain, rows


@pytest.mark.parametrize("source", [rows(400), Plain(rows(400))])
def test_all_threads_get_the_end(source: Any) -> None:
    loader = DataLoader(source, batch_size=4, epochs=1)
    found: list[int] = []
    failures: list[BaseException] = []

    def consume() -> None:
        try:
            for batch in iter(lambda: next(loader, None), None):
                found.extend(batch["id"].tolist())
        except BaseException as error:  # noqa: BLE001 - checked below
            failures.append(error)

    for _ in range(5):
        found.clear()
        threads = [threading.Thread(target=consume) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert sorted(found) == list(range(400))
        iter(loader)


def test_an_iteration_is_an_iterator() -> None:
    expected = [batch.tolist() for batch in Sampler(40, 4).peek(30)]
    with DataLoader(rows(40), batch_size=4, epochs=1) as loader:
        batches = iter(loader)
        taken = [next(batches)["id"].tolist(), *(batch["id"].tolist() for batch in batches)]
        assert taken == expected[:10]
        assert list(batches) == []
        again = iter(loader)
        assert next(again)["id"].tolist() == expected[10]
        assert iter(loader) is again
        del again
        assert next(iter(loader))["id"].tolist() == expected[20]
    with DataLoader(rows(40), batch_size=4, epochs=1) as loader:
        # A batch that was taken without an iterator belongs to the iteration.
        assert next(loader)["id"].tolist() == expected[0]
        assert [batch["id"].tolist() for batch in loader] == expected[1:10]


def test_threads_share_an_iteration() -> None:
    with DataLoader(rows(400), batch_size=4, epochs=1) as loader:
        batches = iter(loader)
        found: list[int] = []

        def consume() -> None:
            for batch in batches:
                found.extend(batch["id"].tolist())

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(400))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("workers", [0, 2])
def test_error_in_a_conversion_keeps_the_position(workers: int) -> None:
    from relive.load.torch import DataLoader as TorchLoader

    is_broken = True

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        return (
            batch | {"text": np.array(["no tensor"])} if is_broken and 13 in batch["id"] else batch
        )

    expected = Sampler(40, 4).peek(10)
    step = next(number for number, batch in enumerate(expected) if 13 in batch)
    with TorchLoader(rows(40), batch_size=4, transform=transform, workers=workers) as loader:
        for number in range(step):
            assert next(loader)["id"].tolist() == expected[number].tolist()
        for _ in range(2):
            with pytest.raises(errors.InvalidTypeError, match="cannot convert 'text'"):
                next(loader)
            assert loader.position == loader.state_dict()["position"] == 4 * step
        is_broken = False
        assert next(loader)["id"].tolist() == expected[step].tolist()


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("length", range(5, 17))
def test_no_rank_gets_an_empty_batch(length: int, world_size: int) -> None:
    steps = []
    for rank in range(world_size):
        with DataLoader(
            np.arange(length), batch_size=2, epochs=1, rank=rank, world_size=world_size
        ) as loader:
            steps.append([batch["data"].tolist() for batch in loader])
    assert len({len(each) for each in steps}) == 1
    assert all(batch for each in steps for batch in each)
    seen = [row for each in steps for batch in each for row in batch]
    assert set(seen) == set(range(length))
    assert len(seen) < length + world_size


@pytest.mark.needs("jax")
class TestJax:
    def test_times_are_refused_without_64_bits(self) -> None:
        from relive.load.jax import DataLoader as JaxLoader

        times = 1_700_000_000_000_000_000 + np.arange(10)
        with JaxLoader({"ts_ns": times}, batch_size=5) as loader:
            with pytest.raises(
                errors.InvalidError, match="'ts_ns' has values beyond int32"
            ) as caught:
                next(loader)
            assert "jax_enable_x64" in str(caught.value.hint)
            assert loader.position == 0
        with JaxLoader({"n": np.arange(10)}, batch_size=5, mode="sequential") as loader:
            assert next(loader)["n"].tolist() == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("device", ["cpu", 0, object()])
    def test_device_is_checked_at_once(self, device: object) -> None:
        from relive.load.jax import DataLoader as JaxLoader

        with pytest.raises(errors.InvalidTypeError, match=r"`device` must be a jax\.Device"):
            JaxLoader(np.arange(10), device=device)

    def test_fields_are_checked_at_once(self) -> None:
        from relive.load.jax import DataLoader as JaxLoader

        days = {"n": np.arange(10), "day": np.arange(10).astype("datetime64[D]")}
        with pytest.raises(errors.InvalidTypeError, match="cannot convert 'day' of dtype datetime"):
            JaxLoader(days)
        with JaxLoader(days, batch_size=2, transform=lambda batch: {"n": batch["n"]}) as loader:
            assert next(loader)["n"].shape == (2,)

    def test_default_device_is_used(self) -> None:
        program = """
import jax, numpy as np
from relive.load.jax import DataLoader
second = jax.devices()[1]
jax.config.update("jax_default_device", second)
with DataLoader(np.arange(10, dtype=np.int32), batch_size=5) as loader:
    assert next(loader)["data"].devices() == {second}
with DataLoader(np.arange(10, dtype=np.int32), batch_size=5, device=jax.devices()[0]) as loader:
    assert next(loader)["data"].devices() == {jax.devices()[0]}
"""
        flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
        subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | flags)
