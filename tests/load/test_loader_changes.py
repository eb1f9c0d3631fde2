"""Loaders over sources that change in other ways: fields, custom samplers, subclasses, states."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import DataLoader, Field, RecordStore, Sampler, errors
from relive.load import Map, Mix, Subset
from tests.load.reference import Plain, rows
from tests.load.test_loader_follows import epoch_of, store_of


@pytest.mark.parametrize("change", ["drop", "add", "exchange"])
def test_changed_fields_are_an_error(tmp_path: Path, change: str) -> None:
    fields = {"obs": Field("f4"), "act": Field("f4")}
    with RecordStore.create(tmp_path / "s", fields) as store:
        store.extend({"obs": np.arange(8), "act": 100 + np.arange(8)})
        with DataLoader(store, batch_size=4) as loader:
            state = loader.state_dict()
            list(loader.epoch())
            if change != "add":
                store.drop_field("obs")
            if change != "drop":
                store.add_field("new", Field("f4"), np.zeros(8, np.float32))
            for use in (lambda: next(loader.epoch()), lambda: loader.load_state_dict(state)):
                with pytest.raises(errors.InvalidError, match="the fields of the source `obs`"):
                    use()


class Counted(Map):
    """A subclass with its own `gather`."""

    def gather(self, indices: Any, *args: Any, **options: Any) -> Any:
        batch: Any = super().gather(indices, *args, **options)
        return {"x": batch["x"] + 1000}


class Shifted(Subset):
    """A subclass with its own constructor and `gather`."""

    def __init__(self, source: Any) -> None:
        super().__init__(source, [0, 1, 2, 3])
        self.shift = 1000

    def gather(self, indices: Any, *args: Any, **options: Any) -> Any:
        batch: Any = super().gather(indices, *args, **options)
        return {"x": batch["x"] + self.shift}

    def native_table(self) -> None:
        return None


def test_snapshots_keep_the_methods_of_subclasses(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", "dense", 4) as store:
        for source in (Counted(store, lambda batch: batch), Shifted(store)):
            with DataLoader(source, batch_size=4, mode="sequential") as loader:
                assert next(loader)["x"].tolist() == [1000, 1001, 1002, 1003]


def test_mix_without_a_length_follows_its_parts(tmp_path: Path) -> None:
    one, two = (store_of(tmp_path / name, "dense", 10) for name in "ab")
    with one, two, DataLoader(Mix(one, two), batch_size=5, tail="keep") as loader:
        assert len(epoch_of(loader, "dense")) == 20
        two.extend({"x": np.arange(100)})
        assert len(epoch_of(loader, "dense")) == len(Mix(one, two)) == 120


def test_source_of_the_user_may_grow() -> None:
    class Growing(Plain):
        length = 10

        def __len__(self) -> int:
            return self.length

    source = Growing(rows(40))
    with DataLoader(source, batch_size=5, tail="keep") as loader:
        for length in (10, 25, 15):
            source.length = length
            found = [row for batch in loader.epoch() for row in batch["id"].tolist()]
            assert sorted(found) == list(range(length))


def test_loops_with_a_custom_sampler_see_new_rows(tmp_path: Path) -> None:
    class Newest:
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[len(store) - 1]])

    store = store_of(tmp_path / "s", "dense", 10)
    with store, DataLoader(store, sampler=Newest()) as loader:
        for number in range(10, 15):
            assert [batch["x"].tolist() for batch in loader] == [[number - 1]]
            store.append({"x": number})


def test_given_sampler_keeps_its_length(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", "dense", 10)
    with store, DataLoader(store, sampler=Sampler(10, 5, tail="keep")) as loader:
        store.extend({"x": [90]})
        store[0] = {"x": 50}
        assert sorted(epoch_of(loader, "dense")) == [*range(1, 10), 50]
        assert sorted(epoch_of(loader, "dense")) == [*range(1, 10), 50]
        del store[3:]
        with pytest.raises(errors.InvalidError, match="the sampler has length=10"):
            next(loader.epoch())


def test_state_of_other_data_is_refused() -> None:
    state = DataLoader(np.arange(10), batch_size=5).state_dict()
    with pytest.raises(errors.InvalidError, match="saved with length=10"):
        DataLoader(np.arange(16), batch_size=5).load_state_dict(state)


@pytest.mark.parametrize("tail", ["wrap", "keep", "drop", "pad"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_loading_and_saving_is_the_identity(tail: str, epochs: int) -> None:
    def make() -> DataLoader:
        return DataLoader(np.arange(10), batch_size=4, epochs=epochs, tail=tail)

    with make() as loader:
        expected = [[batch["data"].tolist() for batch in loader] for _ in range(4)]
    with make() as loader:
        for number in range(3):
            batches = iter(loader)
            for step in range(len(loader) + 1):
                state = loader.state_dict()
                with make() as other:
                    other.load_state_dict(state)
                    assert other.state_dict() == state
                    left = [batch["data"].tolist() for batch in other]
                    wanted = expected[number][step:] or expected[number + 1]
                    assert left == wanted, (number, step)
                next(batches, None)
            assert next(batches, None) is None


@pytest.mark.parametrize("tail", ["wrap", "keep"])
@pytest.mark.parametrize("taken", range(4))
def test_resumed_stream_is_that_of_the_running_loader(
    tmp_path: Path, tail: str, taken: int
) -> None:
    """The store grows between two epochs, and the state was saved before it grew or within."""
    with store_of(tmp_path / "s", "dense", 10) as store:
        with DataLoader(store, batch_size=4, tail=tail) as loader:
            for _ in zip(range(loader.steps_per_epoch), loader.epoch(), strict=False):
                pass
            for _ in range(taken):
                next(loader)
            state = loader.state_dict()
            store.extend({"x": np.arange(10, 16)})
            with DataLoader(store, batch_size=4, tail=tail) as other:
                for _ in range(2):  # loading the same state twice changes nothing
                    other.load_state_dict(state)
                resumed = [epoch_of(other, "dense") for _ in range(3)]
            running = [epoch_of(loader, "dense") for _ in range(3)]
        # With "wrap", the last batch of the rows of a state is short.
        assert resumed[0] == running[0][: len(resumed[0])]
        assert len(running[0]) - len(resumed[0]) < 4
        assert resumed[1:] == running[1:]
        assert len(running[-1]) >= 13  # with "wrap", the last batch may end in the next epoch


def test_functions_of_the_user_run_on_the_caller_s_thread() -> None:
    threads = []

    class Order:
        def __iter__(self) -> Iterator[list[int]]:
            threads.append(threading.current_thread())
            return iter([[1], [2]])

    with DataLoader(np.arange(10), sampler=Order()) as loader:
        assert len(list(loader)) == 2
    assert threads == [threading.current_thread()]


def test_module_may_use_transform_processes_while_it_is_imported(tmp_path: Path) -> None:
    program = """
import multiprocessing
import numpy as np
from relive import DataLoader

def double(batch):
    return {"data": batch["data"] * 2}

if multiprocessing.parent_process() is None:
    with DataLoader(np.arange(4), batch_size=4, transform=double, transform_workers=1) as loader:
        print(sorted(next(loader)["data"].tolist()))
"""
    (tmp_path / "used.py").write_text(program)
    (tmp_path / "main.py").write_text("if __name__ == '__main__':\n    import used\n")
    command = [sys.executable, str(tmp_path / "main.py")]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.stdout == "[0, 2, 4, 6]\n"
