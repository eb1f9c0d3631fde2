"""Loaders leave no thread, process or wait after their end."""

import gc
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from relive import DataLoader, Sampler, errors
from tests.load import transforms
from tests.load.reference import (
    Plain,
    Trainer,
    check_is_collected,
    loader_threads,
    rows,
    threads_of_this_process,
    wait_for_end_of_threads,
)

KINDS: dict[str, Callable[..., DataLoader]] = {
    "native": partial(DataLoader, rows(40), batch_size=4),
    "python": partial(DataLoader, Plain(rows(40)), batch_size=4),
    "transform": partial(DataLoader, rows(40), batch_size=4, transform=transforms.negate),
    "process": partial(
        DataLoader, rows(40), batch_size=4, transform=transforms.negate, transform_workers=1
    ),
}


@pytest.fixture
def nothing_remains() -> Iterator[None]:
    """Check that there are the same threads and processes as before."""
    gc.collect()
    before = threads_of_this_process()
    yield
    gc.collect()
    assert loader_threads() == []
    assert multiprocessing.active_children() == []
    wait_for_end_of_threads(before)


@pytest.mark.usefixtures("nothing_remains")
@pytest.mark.parametrize("kind", KINDS)
class TestNothingRemains:
    def test_after_close(self, kind: str) -> None:
        loader = KINDS[kind]()
        next(loader)
        assert len(threads_of_this_process()) > 1
        assert kind == "native" or loader_threads()
        loader.close()
        loader.close()

    def test_after_a_with_block(self, kind: str) -> None:
        with KINDS[kind]() as loader:
            next(loader)

    def test_after_a_loop_that_stops_early(self, kind: str) -> None:
        loader = KINDS[kind]()
        for _ in loader:
            break
        del loader

    def test_after_an_epoch_that_stops_early(self, kind: str) -> None:
        loader = KINDS[kind]()
        epoch = loader.epoch()
        next(epoch)
        del loader, epoch

    def test_after_the_end(self, kind: str) -> None:
        loader = KINDS[kind](epochs=1)
        assert len(list(loader)) == 10
        assert loader._stream is None

    def test_in_a_reference_cycle(self, kind: str) -> None:
        loader = KINDS[kind]()
        next(loader)
        loader.itself = loader  # type: ignore[attr-defined]
        del loader

    def test_after_an_exception_in_the_loop(self, kind: str) -> None:
        def train() -> None:
            for _ in KINDS[kind]():
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            train()

    def test_when_nothing_was_read(self, kind: str) -> None:
        KINDS[kind]().close()

    def test_after_seeking(self, kind: str) -> None:
        loader = KINDS[kind]()
        for step in (5, 0, 3):
            loader.seek(step)
            next(loader)
        loader.close()


@pytest.mark.usefixtures("nothing_remains")
def test_after_an_error_in_a_transform() -> None:
    loader = DataLoader(rows(40), batch_size=40, transform=transforms.fail_on_row_13)
    with pytest.raises(LookupError):
        next(loader)
    assert loader._stream is None


@pytest.mark.usefixtures("nothing_remains")
def test_many_short_lived_loaders() -> None:
    for number in range(150):
        loader = DataLoader(
            np.arange(50), batch_size=5, workers=number % 4, prefetch=1 + number % 3, seed=number
        )
        for _ in range(number % 7):
            next(loader)
        if number % 2:
            loader.close()


@pytest.mark.parametrize("kind", KINDS)
def test_closed_loader_continues_at_its_position(kind: str) -> None:
    with KINDS[kind]() as loader:
        for batch in Sampler(40, 4).peek(6):
            assert next(loader)["id"].tolist() == batch.tolist()
            loader.close()


# -- waiting ---------------------------------------------------------------------------------


class Blocking:
    """A transform that signals its call, and returns when it is released."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.go = threading.Event()

    def __call__(self, batch: Any) -> Any:
        self.called.set()
        self.go.wait(60)
        return batch


@pytest.mark.usefixtures("nothing_remains")
@pytest.mark.parametrize("workers", [1, 3])
def test_close_from_another_thread_ends_a_wait(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.load.batches._CLOSE_S", 0.1)
    transform = Blocking()
    loader = DataLoader(rows(40), batch_size=4, workers=workers, transform=transform)
    outcome: list[BaseException] = []

    def consume() -> None:
        try:
            next(loader)
        except errors.ClosedError as error:
            outcome.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert transform.called.wait(60)
    with pytest.warns(RuntimeWarning, match="did not return within"):
        loader.close()
    consumer.join(60)
    assert [type(error) for error in outcome] == [errors.ClosedError]
    transform.go.set()
    for thread in loader_threads():
        thread.join(60)


@pytest.mark.usefixtures("nothing_remains")
def test_close_waits_for_a_running_transform() -> None:
    transform = Blocking()
    loader = DataLoader(rows(40), batch_size=4, transform=transform)
    loader._started()
    assert transform.called.wait(60)
    threading.Timer(0.05, transform.go.set).start()
    loader.close()  # without a warning, which would be an error


@pytest.mark.usefixtures("nothing_remains")
@pytest.mark.parametrize("kind", ["native", "python", "transform"])
def test_close_while_another_thread_reads(kind: str) -> None:
    for _ in range(30):
        loader = KINDS[kind]()
        stream = loader._started()
        begun, ended = threading.Event(), threading.Event()

        def read(stream: Any = stream, begun: Any = begun, ended: Any = ended) -> None:
            try:
                while True:
                    stream.next()
                    begun.set()
            except errors.ClosedError:
                ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(60)
        stream.close()
        reader.join(60)
        assert ended.is_set()


@pytest.mark.usefixtures("nothing_remains")
@pytest.mark.parametrize("stage", ["draw", "work"])
def test_garbage_collection_in_a_worker_thread_closes_the_loader(stage: str) -> None:
    """The collector runs in a thread of the loader, where waiting for threads would deadlock."""
    dropped, collected = threading.Event(), threading.Event()

    def collect() -> None:
        if dropped.wait(60):
            gc.collect()
            collected.set()

    def sampler() -> Iterator[list[int]]:
        yield [1]
        while True:
            if stage == "draw":
                collect()
            yield [2]

    def transform(batch: Any) -> Any:
        if stage == "work" and 2 in batch["id"]:
            collect()
        return batch

    loader = DataLoader(rows(40), sampler=sampler(), transform=transform, workers=2)
    loader.itself = loader  # type: ignore[attr-defined]
    assert next(loader)["id"].tolist() == [1]
    gc.disable()
    try:
        del loader
        dropped.set()
        assert collected.wait(60)
    finally:
        gc.enable()
    for thread in loader_threads():
        thread.join(60)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("augment", {"batch_size": 4}),
        ("augment", {"batch_size": 4, "workers": 4, "prefetch": 8}),
        ("augment", {"batch_size": 4, "workers": 0}),
        ("fail", {"batch_size": 4, "mode": "sequential", "epochs": 1, "prefetch": 20}),
        ("source", {"batch_size": 4}),
        ("source", {"batch_size": 4, "workers": 0}),
        ("sampler", {}),
        ("generator", {}),
    ],
)
def test_owner_of_a_loader_that_refers_to_it_is_collected(
    kind: str, options: dict[str, Any]
) -> None:
    check_is_collected(lambda: Trainer(kind, **options))
