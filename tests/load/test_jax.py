"""`relive.load.jax`: batches as arrays of JAX."""

import gc
import weakref
from itertools import islice

import numpy as np
import pytest

import relive
from relive.errors import InvalidTypeError
from tests.load.reference import (
    Trainer,
    check_is_collected,
    loader_threads,
    threads_of_this_process,
    wait_for_end_of_threads,
)

jax = pytest.importorskip("jax")

from relive.load.jax import DataLoader, to_jax  # noqa: E402 - needs jax


def source(rows: int = 100) -> relive.ArraySource:
    return relive.ArraySource(
        {
            "x": np.arange(rows * 3, dtype=np.float32).reshape(rows, 3),
            "label": np.arange(rows),
            "flag": np.arange(rows) % 2 == 0,
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
        assert isinstance(batch["x"], jax.Array)
        assert np.array_equal(batch["x"], expected["x"])
        assert np.array_equal(batch["flag"], expected["flag"])
        assert batch["label"].tolist() == expected["label"].tolist()
        assert batch["tokens"]["values"].tolist() == expected["tokens"].values.tolist()


def test_64_bit_types_follow_jax() -> None:
    batch = next(DataLoader(source(), batch_size=4))
    assert batch["label"].dtype == jax.dtypes.canonicalize_dtype(np.int64)


def test_foreign_byte_order_becomes_native() -> None:
    rows = relive.ArraySource({"big": np.arange(10, dtype=">f4")})
    batch = next(DataLoader(rows, batch_size=10, mode="sequential"))
    assert batch["big"].tolist() == list(range(10))


def test_held_arrays_never_change() -> None:
    loader = DataLoader(source(), batch_size=8)
    held = list(islice(loader, 60))
    for batch in held:
        assert batch["x"][:, 0].tolist() == (batch["label"] * 3).tolist()


def test_memory_is_shared_not_copied() -> None:
    # JAX shares memory that is aligned to 64 bytes, as the memory of batches is.
    batch = next(relive.DataLoader(source(), batch_size=8))
    with jax.default_device(jax.devices("cpu")[0]):
        array = to_jax(batch)["x"]
    assert array.unsafe_buffer_pointer() == batch["x"].ctypes.data


def test_arrays_work_in_computations() -> None:
    batch = next(DataLoader(source(), batch_size=8))
    assert float(jax.jit(lambda x: x.sum())(batch["x"])) == float(np.asarray(batch["x"]).sum())


def test_unsupported_dtype_is_named() -> None:
    with pytest.raises(InvalidTypeError, match="'name' of dtype <U1"):
        DataLoader(relive.ArraySource({"name": np.array(["a", "b"])}), batch_size=1)


def test_deleted_loader_leaves_no_thread() -> None:
    next(DataLoader(source(), batch_size=8))  # threads started by the framework itself are excluded
    gc.collect()
    before = threads_of_this_process()
    loader = DataLoader(source(), batch_size=8, workers=3)
    next(loader)
    reference = weakref.ref(loader)
    del loader
    gc.collect()
    assert reference() is None
    wait_for_end_of_threads(before)
    assert not loader_threads()


def test_owner_of_a_loader_that_refers_to_it_is_collected() -> None:
    check_is_collected(lambda: Trainer("augment", DataLoader, batch_size=4))
