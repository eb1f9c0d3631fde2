"""Arrays as a source: every dtype, layout and file, and errors."""

import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive import ArraySource, DataLoader, Ragged, errors
from tests.conftest import Needs

INDEX = np.array([5, 0, 5, 11, 3])


def data_of(source: ArraySource, indices: Any) -> npt.NDArray[Any]:
    found = source.gather(indices)["data"]
    assert isinstance(found, np.ndarray)
    return found


def assert_reads(array: npt.NDArray[Any], source: ArraySource | None = None) -> None:
    """Compare the rows of a source and a loader exactly with NumPy's indexing."""
    source = ArraySource(array) if source is None else source
    plain = np.asarray(array)
    for index in (
        INDEX % len(array),
        np.array([[0, 1], [1, 0]]) % len(array),
        np.arange(len(array)),
    ):
        found, expected = data_of(source, index), plain[index]
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
        assert found.flags.writeable
        assert found.flags.c_contiguous
    with DataLoader(source, batch_size=len(array), mode="sequential", workers=1) as loader:
        assert next(loader)["data"].tobytes() == plain.tobytes()


# -- dtypes ----------------------------------------------------------------------------------

STRUCT = np.dtype([("x", "<f4"), ("y", ">i2", (2,)), ("name", "S3")])

DTYPES = [
    "?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G",
    ">f4", ">i8", "S1", "S5", "U3", ">U2", "M8[ns]", "M8[D]", "m8[us]", "V7", STRUCT,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read_exactly(dtype: Any) -> None:
    kind = np.dtype(dtype)
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 128 if kind.kind in "SU" else 256, 12 * 3 * kind.itemsize, dtype=np.uint8)
    if kind.kind == "b":
        raw &= 1
    if kind.kind == "U":
        raw = np.array(["abcdef"[k % 6] * 3 for k in range(36)], dtype=kind).view(np.uint8)
    array = raw.view(kind).reshape(12, 3)
    assert_reads(array)
    assert_reads(array[:, 0])
    assert ArraySource(array).fields["data"].dtype == kind


def test_structured_dtypes_with_padding() -> None:
    array = np.zeros(12, np.dtype([("a", "u1"), ("b", "f8")], align=True))
    array["a"], array["b"] = np.arange(12), np.arange(12) / 4
    assert array.dtype.itemsize == 16
    np.testing.assert_array_equal(data_of(ArraySource(array), INDEX), array[INDEX], strict=True)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_dtypes_of_ml_dtypes(name: str, needs: Needs) -> None:
    needs("jax")  # imports ml_dtypes
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, name))
    array = (np.arange(36) % 7).reshape(12, 3).astype(kind)
    assert_reads(array)
    batch = data_of(ArraySource(array), [1, 1])
    assert batch.astype(np.float32).tolist() == [[3, 4, 5]] * 2
    copy = pickle.loads(pickle.dumps(ArraySource(array)))  # noqa: S301 - our own data
    assert_reads(array, copy)


# -- layouts ---------------------------------------------------------------------------------

BLOCK = np.arange(12 * 4 * 6 * 2, dtype=np.int32).reshape(12, 4, 6, 2)
BIG = np.arange(30 * 30 * 30).reshape(30, 30, 30)

LAYOUTS: dict[str, npt.NDArray[Any]] = {
    "plain": BLOCK,
    "fortran": np.asfortranarray(BLOCK),
    "transposed": BIG.T,
    "moved": np.moveaxis(BLOCK, 1, 3),
    "every other row": BIG[::2],
    "backwards": BLOCK[::-1],
    "backwards inside": BLOCK[:, ::-1, :, ::-1],
    "backwards all": BLOCK[::-1, ::-2, ::-1],
    "columns": BLOCK[:, 1:3, ::2],
    "one column": BIG[:, 3, 4],
    "broadcast rows": np.broadcast_to(np.arange(5), (12, 5)),
    "broadcast inside": np.broadcast_to(np.arange(12)[:, None], (12, 5)),
    "length one axes": BLOCK[:, :1, None, :, :, None],
    "one row": BLOCK[:1],
    "many axes": BLOCK.reshape(12, 2, 2, 1, 2, 3, 1, 2)[:, :, ::-1],
    "field of a struct": np.zeros(12, STRUCT)["y"],
    "unaligned": np.frombuffer(bytes(range(97)), "u1")[1:].view("<i4").reshape(12, 2),
    "windows": np.lib.stride_tricks.sliding_window_view(np.arange(20), 9),
    "read only": np.frombuffer(bytes(range(48)), "<u4"),
    "matrix": np.arange(12.0).reshape(12, 1) + np.arange(64),
    "wide": np.arange(12 * 5000).reshape(12, 5000)[:, 100:4100],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("workers", [1, 3])
def test_every_memory_layout_matches_numpy(layout: str, workers: int) -> None:
    array = LAYOUTS[layout]
    assert_reads(array, ArraySource(array, workers=workers))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 12, 13, 16, 31, 32, 63, 64, 65, 128, 256, 1000])
def test_rows_of_any_size(size: int) -> None:
    assert_reads(np.random.default_rng(size).integers(0, 256, (12, size), dtype=np.uint8))


def test_large_gather_with_many_workers() -> None:
    array = np.random.default_rng(0).integers(0, 2**60, (3000, 300))
    index = np.random.default_rng(1).integers(0, 3000, 5000)
    expected = array[index]
    for workers in (1, 2, 5, 16):
        source = ArraySource({"a": array, "b": array[:, 7]}, workers=workers)
        found = source.gather(index)
        assert np.array_equal(np.asarray(found["a"]), expected)
        assert np.array_equal(np.asarray(found["b"]), expected[:, 7])


def test_arrays_are_not_copied() -> None:
    array = np.arange(10)
    source = ArraySource(array)
    array[3] = 77
    assert data_of(source, [3]).tolist() == [77]


@pytest.mark.parametrize("shape", [(5, 0), (5, 3, 0), (0,), (0, 4), (0, 0)])
def test_rows_and_arrays_without_values(shape: tuple[int, ...]) -> None:
    source = ArraySource(np.zeros(shape, np.float32))
    assert len(source) == shape[0]
    assert data_of(source, []).shape == (0, *shape[1:])
    if shape[0]:
        assert data_of(source, [[4, 4]]).shape == (1, 2, *shape[1:])
    with pytest.raises(errors.OutOfRangeError):
        source.gather([shape[0]])


def test_fields_with_and_without_values() -> None:
    source = ArraySource({"none": np.zeros((5, 0)), "some": np.arange(5)})
    found = source.gather([4, 1])
    assert np.asarray(found["none"]).shape == (2, 0)
    assert np.asarray(found["some"]).tolist() == [4, 1]


def test_array_likes_are_accepted() -> None:
    assert data_of(ArraySource([[1, 2], [3, 4]]), [1]).tolist() == [[3, 4]]
    assert data_of(ArraySource(range(5)), [4]).tolist() == [4]


def test_dtypes_that_cannot_be_read_are_named(needs: Needs) -> None:
    with pytest.raises(errors.InvalidTypeError, match="is a masked array") as caught:
        ArraySource(np.ma.masked_array([1, 2], [True, False]))
    assert caught.value.hint is not None
    assert ".filled()" in caught.value.hint
    with pytest.raises(errors.InvalidTypeError, match="a list cannot be converted") as caught:
        ArraySource([[1, 2], [3]])
    assert caught.value.hint is not None
    assert "Ragged" in caught.value.hint
    needs("torch")
    import torch

    for tensor in (torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.bfloat16)):
        with pytest.raises(errors.InvalidTypeError, match="field 'x': a Tensor") as caught:
            ArraySource({"x": tensor})
        assert caught.value.hint is not None
        assert "detach" in caught.value.hint


def test_torch_tensors_are_accepted(needs: Needs) -> None:
    needs("torch")
    import torch

    tensor = torch.arange(6).reshape(3, 2)
    source = ArraySource(tensor.numpy())
    tensor[1, 0] = 9
    assert data_of(source, [1]).tolist() == [[9, 3]]


# -- ragged ----------------------------------------------------------------------------------


def test_ragged_fields() -> None:
    listed = [np.arange(k, dtype=np.float32) for k in (3, 0, 2, 5)]
    source = ArraySource({"n": np.arange(4), "r": Ragged.from_list(listed)})
    found = source.gather([[3, 1], [0, 3]])
    ragged = found["r"]
    assert isinstance(ragged, Ragged)
    assert [row.tolist() for row in ragged] == [listed[k].tolist() for k in (3, 1, 0, 3)]
    assert ragged.dtype == np.float32
    assert list(source.gather([1], ["r"])) == ["r"]
    with pytest.raises(errors.InvalidError, match="ragged"):
        source.gather([1], out={"r": np.zeros(1, np.float32)})


def test_ragged_fields_with_inner_axes_and_unusual_layouts() -> None:
    values = np.arange(60).reshape(10, 6).T[:, ::2]  # (6, 5), not contiguous
    ragged = Ragged(values, [0, 2, 2, 6])
    found = ArraySource(ragged).gather([2, 0, 2])["data"]
    assert isinstance(found, Ragged)
    for row, expected in zip(found, (values[2:], values[:2], values[2:]), strict=True):
        np.testing.assert_array_equal(row, expected)


def test_rows_that_vary_in_several_dimensions() -> None:
    images = [np.arange(h * w).reshape(h, w) for h, w in ((2, 3), (1, 4), (0, 2), (5, 1))]
    alone: dict[str, Any] = {"image": Ragged.from_list(images)}
    for source in (ArraySource(alone), ArraySource({"n": np.arange(4)} | alone)):
        assert len(source) == 4
        found = source.gather([3, 0, 2])["image"]
        assert isinstance(found, Ragged)
        for row, number in zip(found, (3, 0, 2), strict=True):
            np.testing.assert_array_equal(row, images[number], strict=True)
        assert source.native_table() is None
        with pytest.raises(errors.OutOfRangeError, match=r"index 4 .* 4 rows"):
            source.gather([0, 4])
        with DataLoader(source, batch_size=4, mode="sequential") as loader:
            assert [row.shape for row in next(loader)["image"]] == [i.shape for i in images]
        copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own data
        assert copy.gather([1])["image"] == source.gather([1])["image"]


# -- invalid arguments ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({}, errors.InvalidError, "at least one array"),
        (np.array(3), errors.InvalidError, "'data' must have at least one dimension"),
        ({"x": 3}, errors.InvalidError, "'x' must have at least one dimension"),
        (np.array([{}]), errors.InvalidTypeError, "'data' must have a NumPy dtype"),
        (
            np.array([("a", {})], dtype=[("s", "U1"), ("o", "O")]),
            errors.InvalidTypeError,
            "objects",
        ),
        ({"x": [3], 4: [4]}, errors.InvalidTypeError, "must be a non-empty string, got 4"),
        ({"": [3]}, errors.InvalidTypeError, "must be a non-empty string, got ''"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, errors.InvalidError, "'a' has 3, 'b' has 4"),
        ({"a": np.zeros(3), "b": Ragged.from_list([[1]])}, errors.InvalidError, "'b' has 1"),
        (np.zeros(3, "V0"), errors.InvalidTypeError, "'data'"),
    ],
    ids=repr,
)
def test_invalid_arrays_raise(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ArraySource(given)


@pytest.mark.parametrize("workers", [0, -1, 257, 1.5, "2", True])
def test_invalid_workers_raise(workers: Any) -> None:
    with pytest.raises((errors.InvalidError, errors.InvalidTypeError), match="`workers` must be"):
        ArraySource(np.arange(3), workers=workers)
    assert ArraySource(np.arange(3)).workers >= 1
    assert ArraySource(np.arange(3), workers=256).workers == 256
    workers = np.int64(2)
    assert type(ArraySource(np.arange(3), workers=workers).workers) is int


@pytest.mark.parametrize(
    "out",
    [lambda a: a[:3], lambda a: a[5:8], lambda a: a[7:], lambda a: a.view("u1")[8:32].view("i8")],
)
def test_out_that_overlaps_the_source_raises(out: Callable[[Any], Any]) -> None:
    array = np.arange(10)
    source = ArraySource(array)
    with pytest.raises(errors.InvalidError, match="must not share memory"):
        source.gather([0, 9, 1], out={"data": out(array)})
    assert array.tolist() == list(range(10))
    with pytest.raises(errors.InvalidError, match="must not share memory"):
        source[2:5].gather([0, 2, 1], out={"data": out(array)})
    backwards = ArraySource(array[::-1])
    with pytest.raises(errors.InvalidError, match="must not share memory"):
        backwards.gather([0, 9, 1], out={"data": out(array)})


def test_out_next_to_the_source_is_allowed() -> None:
    block = np.arange(20)
    source = ArraySource(block[:10])
    source.gather([3, 4], out={"data": block[10:12]})
    assert block[10:12].tolist() == [3, 4]


# -- concurrent changes --------------------------------------------------------------------------


def test_indices_changed_by_another_thread_never_read_out_of_bounds() -> None:
    """With any indices written by another thread, rows are either right or refused."""
    source = ArraySource(np.arange(1000)[:, None] * np.ones(64, dtype=np.int64), workers=2)
    index = np.zeros(500, dtype=np.int64)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            index[:] = 2**62
            index[:] = -5
            index[:] = 999

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(100):
            try:
                found = data_of(source, index)
            except errors.OutOfRangeError:
                continue
            assert set(np.unique(found).tolist()) <= {0, 999}
    finally:
        stop.set()
        thread.join()


def test_source_keeps_its_arrays_alive() -> None:
    def make() -> ArraySource:
        return ArraySource(np.arange(100_000).reshape(1000, 100).copy())

    tables = [make().native_table() for _ in range(5)]
    junk = [np.full(100_000, -1) for _ in range(10)]
    for table in tables:
        assert table is not None
        assert table.gather(np.array([7]))["data"][0, 0] == 700
    del junk
