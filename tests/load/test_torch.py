"""`relive.load.torch`: tensors share the memory of the batch."""

import gc
import weakref
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import relive
from relive.errors import InvalidError, InvalidTypeError
from relive.load import Map
from tests.load.reference import Trainer, check_is_collected, loader_threads

torch = pytest.importorskip("torch")

from relive.load import torch as adapter  # noqa: E402 - needs torch
from relive.load.torch import DataLoader, to_tensors  # noqa: E402 - needs torch


def source(rows: int = 100) -> relive.ArraySource:
    return relive.ArraySource(
        {
            "x": np.arange(rows * 3, dtype=np.float32).reshape(rows, 3),
            "label": np.arange(rows),
            "tokens": relive.Ragged.from_list(
                [np.full(k % 4, k, dtype=np.int32) for k in range(rows)]
            ),
        }
    )


def test_batches_equal_those_of_the_plain_loader() -> None:
    plain = relive.DataLoader(source(), batch_size=8, seed=3)
    for expected, batch in islice(
        zip(plain, DataLoader(source(), batch_size=8, seed=3), strict=False), 30
    ):
        assert torch.equal(batch["x"], torch.from_numpy(expected["x"]))
        assert batch["label"].dtype == torch.int64
        assert batch["label"].tolist() == expected["label"].tolist()
        assert batch["tokens"]["values"].tolist() == expected["tokens"].values.tolist()
        assert batch["tokens"]["offsets"].tolist() == expected["tokens"].offsets.tolist()


def test_tensors_share_memory_and_keep_it_alive() -> None:
    loader = DataLoader(source(), batch_size=8)
    held = list(islice(loader, 60))
    assert len({batch["x"].data_ptr() for batch in held}) == 60
    for batch in held:
        assert batch["x"][:, 0].tolist() == (batch["label"] * 3).tolist()
    array = np.arange(4.0)
    assert to_tensors({"a": [array]})["a"][0].data_ptr() == array.ctypes.data


def test_memory_is_reused_when_tensors_are_deleted() -> None:
    loader = DataLoader(source(), batch_size=8)
    addresses = {batch["x"].data_ptr() for batch in islice(loader, 500)}
    assert len(addresses) <= 10


def test_state_matches_the_position_of_the_consumer() -> None:
    first = DataLoader(source(), batch_size=8)
    for _ in range(5):
        next(first)
    second = DataLoader(source(), batch_size=8, workers=0)
    second.load_state_dict(first.state_dict())
    for _ in range(5):
        assert next(first)["label"].tolist() == next(second)["label"].tolist()


def test_transforms_may_return_tensors() -> None:
    loader = DataLoader(
        source(), batch_size=4, transform=lambda batch: {"y": torch.from_numpy(batch["x"]) + 1}
    )
    assert next(loader)["y"].shape == (4, 3)


def test_python_sources_work() -> None:
    doubled = Map(source(), lambda batch: {"twice": batch["x"] * 2})
    assert next(DataLoader(doubled, batch_size=4))["twice"].dtype == torch.float32


def test_dtypes_with_other_names_in_torch() -> None:
    ml_dtypes = pytest.importorskip("jax") and __import__("ml_dtypes")
    rows = relive.ArraySource(
        {
            "big": np.arange(10, dtype=">f4"),
            "brain": np.arange(10).astype(ml_dtypes.bfloat16),
            "flag": np.arange(10) % 2 == 0,
        }
    )
    batch = next(DataLoader(rows, batch_size=10, mode="sequential"))
    assert batch["big"].tolist() == list(range(10))
    assert batch["brain"].dtype == torch.bfloat16
    assert batch["brain"].tolist() == list(range(10))
    assert batch["flag"].dtype == torch.bool


def test_unsupported_dtype_is_named() -> None:
    loader = DataLoader(relive.ArraySource({"name": np.array(["a", "b"])}), batch_size=1)
    with pytest.raises(InvalidTypeError, match="'name' of dtype <U1"):
        next(loader)


def test_missing_device_raises() -> None:
    with pytest.raises(InvalidError, match="unknown device"):
        DataLoader(source(), device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidError, match="finds no CUDA device"):
            DataLoader(source(), device="cuda")


def test_module_is_reachable_through_relive_load() -> None:
    import relive.load

    assert relive.load.torch.DataLoader is DataLoader
    with pytest.raises(AttributeError):
        relive.load.tensorflow  # noqa: B018 - the access is the test


def test_deleted_loader_leaves_no_thread() -> None:
    next(DataLoader(source(), batch_size=8))  # threads started by the framework itself are excluded
    gc.collect()
    before = len(list(Path("/proc/self/task").iterdir()))
    loader = DataLoader(source(), batch_size=8, workers=3)
    next(loader)
    reference = weakref.ref(loader)
    del loader
    gc.collect()
    assert reference() is None
    assert len(list(Path("/proc/self/task").iterdir())) <= before
    assert not loader_threads()


class Point(NamedTuple):
    x: Any
    inner: Any


def test_nested_batches() -> None:
    array = np.arange(3)
    packed = relive.Ragged.from_list([np.arange(2), np.arange(3)]).pack(4)
    point = to_tensors({"p": Point(array, [array])})["p"]
    assert type(point) is Point
    assert torch.is_tensor(point.x)
    assert torch.is_tensor(point.inner[0])
    assert torch.is_tensor(to_tensors(packed)[0])
    assert type(to_tensors(packed)) is type(packed)
    frozen = to_tensors(MappingProxyType({"a": array}))
    assert torch.is_tensor(frozen["a"])
    own = MappingProxyType({"t": torch.arange(3), "text": "as it is"})
    assert to_tensors(own) is own


def test_arrays_that_cannot_be_shared_are_copied() -> None:
    array = np.arange(6.0).reshape(2, 3)
    fixed = array.copy()
    fixed.flags.writeable = False
    found = to_tensors({"back": array[::-1, ::-1], "fixed": fixed, "one": fixed[0, :1].reshape(())})
    assert found["back"].tolist() == array[::-1, ::-1].tolist()
    assert found["fixed"].tolist() == array.tolist()
    found["fixed"][...] = 0
    assert fixed.tolist() == array.tolist()


class FakeStream:
    """A stream that raises errors and reports when it was closed."""

    cursor = None

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.closed = False

    def next(self) -> Any:
        raise self.error

    def close(self) -> None:
        self.closed = True


def copying(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> tuple[Any, FakeStream]:
    """Return the stream that copies to a device, without a device."""

    class Copying:
        device = torch.device("cuda", 0)

        def synchronize(self) -> None:
            raise RuntimeError("the device is gone")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Copying())
    monkeypatch.setattr(adapter, "_CurrentStream", lambda device: lambda: None)
    below = FakeStream(error)
    return adapter._CudaBatches(below, None), below


def test_interrupts_are_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, below = copying(monkeypatch, SystemExit())
    with pytest.raises(SystemExit):
        stream.next()
    below.error = LookupError("a row")  # the stream has not ended
    with pytest.raises(LookupError):
        stream.next()


def test_threads_end_when_the_device_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, below = copying(monkeypatch, LookupError())
    with pytest.raises(RuntimeError, match="the device is gone"):
        stream.close()
    assert below.closed


def test_owner_of_a_loader_that_refers_to_it_is_collected() -> None:
    check_is_collected(lambda: Trainer("augment", DataLoader, batch_size=4))
