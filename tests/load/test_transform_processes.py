"""Transforms in separate processes."""

import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import DataLoader, Ragged, errors
from tests.load import transforms
from tests.load.reference import Plain, rows, same


def loader_of(transform: Callable[..., Any], **options: Any) -> DataLoader:
    given: dict[str, Any] = {"batch_size": 6, "transform_workers": 2, "prefetch": 3}
    return DataLoader(options.pop("source", rows(40)), transform=transform, **(given | options))


def on_threads(transform: Callable[..., Any], steps: int, **options: Any) -> list[Any]:
    with loader_of(transform, **(options | {"transform_workers": 0, "workers": 0})) as loader:
        return list(itertools.islice(loader, steps))


def assert_no_children() -> None:
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("python", [False, True])
def test_processes_match_threads(python: bool) -> None:  # noqa: FBT001 - a parameter
    source = Plain(rows(40)) if python else rows(40)
    expected = on_threads(transforms.noise, 40, tail="keep", source=source)
    with loader_of(transforms.noise, tail="keep", source=source) as loader:
        found = list(itertools.islice(loader, 25))
        state = loader.state_dict()
    assert all(same(one, other) for one, other in zip(found, expected, strict=False))
    assert len({batch["vec"].__array_interface__["data"][0] for batch in found}) == 25
    assert_no_children()
    with loader_of(transforms.noise, tail="keep", source=source, transform_workers=1) as loader:
        loader.load_state_dict(state)
        rest = list(itertools.islice(loader, 15))
    assert all(same(one, other) for one, other in zip(rest, expected[25:], strict=True))


def test_transforms_run_in_other_processes_and_reuse_memory() -> None:
    with loader_of(transforms.pids) as loader:
        processes, addresses = set(), set()
        for batch in itertools.islice(loader, 60):
            own, parent = batch["process"].tolist()
            assert parent == os.getpid()
            processes.add(own)
            addresses.add(batch["vec"].__array_interface__["data"][0])
            assert batch["vec"].flags.writeable
            batch["vec"][...] = 0
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert len(addresses) < 20
    assert_no_children()


def test_arrays_of_every_layout_are_transferred() -> None:
    expected = on_threads(transforms.arrays_of_every_layout, 12)
    with loader_of(transforms.arrays_of_every_layout) as loader:
        for one, other in zip(loader, expected, strict=False):
            assert list(one) == list(other)
            for name in ("fortran", "strided", "backwards", "empty", "no_rows", "dates", "text",
                         "objects", "structured"):  # fmt: skip
                assert one[name].dtype == other[name].dtype
                np.testing.assert_array_equal(one[name], other[name])
            assert isinstance(one["ragged"], Ragged)
            assert one["ragged"] == other["ragged"]
            assert one["scalar"] == 2.5
            assert one["number"] == 7
            first, (second, text) = one["nested"]["list"]
            assert np.array_equal(first + 1, second)
            assert text == "text"


def test_results_may_be_larger_than_inputs() -> None:
    with loader_of(transforms.grow) as loader:
        held = list(itertools.islice(loader, 12))
        for batch in held:
            assert batch["big"].shape == (6, 5000)
            assert np.array_equal(batch["big"], np.repeat(batch["id"], 5000).reshape(6, 5000))


def test_changes_in_place_are_not_visible_elsewhere() -> None:
    with loader_of(transforms.in_place, epochs=2, mode="sequential", tail="keep") as loader:
        found = np.concatenate([batch["vec"] for batch in loader])
    expected = np.concatenate([rows(40).gather(range(40))["vec"]] * 2) * 2
    np.testing.assert_array_equal(found, expected)


def test_batches_outlive_the_processes_and_the_open_file_limit() -> None:
    """More batches are held than files may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held_files = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held_files + 320, hard))
    try:
        with loader_of(transforms.negate, transform_workers=1) as loader:
            held = list(itertools.islice(loader, 600))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    expected = on_threads(transforms.negate, 600)
    assert all(same(one, other) for one, other in zip(held, expected, strict=True))
    del held
    assert len(list(Path("/proc/self/fd").iterdir())) <= held_files + 3


def test_error_of_the_transform_is_raised() -> None:
    step = next(k for k, b in enumerate(on_threads(transforms.pids, 14)) if 13 in b["id"])
    with loader_of(transforms.fail_on_row_13) as loader:
        for _ in range(step):
            next(loader)
        for _ in range(2):  # the position does not change
            with pytest.raises(LookupError, match="row 13 is unlucky") as caught:
                next(loader)
            assert "fail_on_row_13" in str(caught.value.__cause__)
            assert "transforms.py" in str(caught.value.__cause__)
            assert loader.position == 6 * step
    assert_no_children()


@pytest.mark.parametrize(
    ("transform", "error", "text"),
    [
        (transforms.raise_unpicklable, errors.WorkerError, "UnpicklableError: this and that"),
        (transforms.stop, RuntimeError, "raised StopIteration"),
        (transforms.nothing, errors.InvalidTypeError, "returned None"),
        (transforms.unpicklable, Exception, "pickle"),
    ],
)
def test_invalid_results_raise(transform: Any, error: type[Exception], text: str) -> None:
    with (
        loader_of(transform, transform_workers=1) as loader,
        pytest.raises(error, match=text) as caught,
    ):
        next(loader)
    assert_no_children()
    assert caught.value.__traceback__ is not None


def test_process_that_dies_raises() -> None:
    step = next(k for k, b in enumerate(on_threads(transforms.pids, 14)) if 13 in b["id"])
    with loader_of(transforms.die_on_row_13) as loader:
        for _ in range(step):
            next(loader)
        with pytest.raises(errors.WorkerError, match="exit code 3") as caught:
            next(loader)
        assert caught.value.hint is not None
    assert_no_children()


def test_killed_process_raises_and_the_next_step_works() -> None:
    with loader_of(transforms.pids, transform_workers=1, prefetch=1) as loader:
        process = int(next(loader)["process"][0])
        os.kill(process, signal.SIGKILL)
        with pytest.raises(errors.WorkerError, match="exit code -9"):
            list(itertools.islice(loader, 10))  # some batches were ready
        position = loader.position
        assert int(next(loader)["process"][0]) != process
        assert loader.position == position + 6


def test_unpicklable_transform_raises() -> None:
    with (
        loader_of(lambda batch: batch) as loader,
        pytest.raises(errors.InvalidError, match="cannot be sent to another process") as caught,
    ):
        next(loader)
    assert caught.value.hint is not None
    with pytest.raises(errors.InvalidError, match="needs a `transform`"):
        DataLoader(np.arange(3), transform_workers=2)
    with pytest.raises(errors.InvalidError, match="`transform_workers` must be at most 256"):
        loader_of(transforms.negate, transform_workers=300)
    assert_no_children()


def test_processes_keep_their_own_objects() -> None:
    with loader_of(transforms.Counter(), transform_workers=1) as loader:
        counts = [int(batch["count"]) for batch in itertools.islice(loader, 8)]
    assert counts == list(range(1, 9))


def wait_for(path: Path) -> int:
    """Return the number that another process writes to a file."""
    while not path.exists() or not path.read_text():
        time.sleep(0.01)
    return int(path.read_text())


def test_close_ends_a_hanging_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.load.batches._CLOSE_S", 0.2)
    loader = loader_of(transforms.HangAfter(tmp_path / "pid"), transform_workers=1)
    iterator = iter(loader)
    loader._started()
    process = wait_for(tmp_path / "pid")
    loader.close()
    del iterator
    assert_no_children()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_inputs_kept_by_a_transform_do_not_change() -> None:
    with loader_of(transforms.Keeper()) as loader:
        batches = list(itertools.islice(loader, 30))
    assert all(batch["same"] for batch in batches)
    expected = on_threads(transforms.pids, 30)
    assert all(same(a["vec"], b["vec"]) for a, b in zip(batches, expected, strict=True))


def test_released_inputs_are_reused() -> None:
    """Shared blocks are open files of this process: their number stays small."""
    with loader_of(transforms.negate, transform_workers=1, prefetch=1) as loader:
        for _ in range(5):
            next(loader)
        seen = set()
        for _ in range(40):
            next(loader)
            seen |= block_inodes()
        assert len(seen) <= 8


def block_inodes() -> set[int]:
    """Return the shared blocks that are open."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "relive-batch" in str(entry.readlink()):
                found.add(entry.stat().st_ino)
    return found
