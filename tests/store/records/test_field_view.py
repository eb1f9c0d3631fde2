"""One field of a store as a NumPy-like array, without copies where possible."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive import Field, Ragged, RecordStore
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError, TooLargeError
from relive.store.records import FieldView, field_view, snapshot
from relive.store.records.values import assemble

FIELDS = {
    "x": Field("f4", (3, 2)),
    "n": Field("i8"),
    "z": Field("f4", (3, 2), "zstd"),
    "r": Field("i4", ragged=True),
    "rz": Field("i4", codec="lz4", ragged=True),
    "k": Field("u1", (2,), ragged=2),
    "b": Field("bytes"),
    "t": Field("str", codec="zstd"),
    "j": Field("json"),
}
ROWS = 40
X = np.arange(ROWS * 6, dtype="f4").reshape(ROWS, 3, 2)


def columns() -> dict[str, Any]:
    """Return forty rows."""
    ragged = [np.arange(k % 4, dtype="i4") for k in range(ROWS)]
    return {
        "x": X,
        "n": np.arange(ROWS) ** 3,
        "z": X + 1,
        "r": Ragged.from_list(ragged),
        "rz": ragged,
        "k": [np.full((k % 3, k % 2, 2), k, "u1") for k in range(ROWS)],
        "b": [b"%d" % k for k in range(ROWS)],
        "t": [f"text {k}" for k in range(ROWS)],
        "j": [{"k": k} for k in range(ROWS)],
    }


def in_file(array: npt.NDArray[Any]) -> bool:
    """Return whether an array does not own its memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return type(base).__name__ == "Mapped"


@pytest.fixture(params=["mmap", "pread", "written"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    """Return a store that is mapped, one that is not, and one that is being written."""
    with RecordStore.create(tmp_path / "s", FIELDS) as writer:
        writer.extend(columns())
        if request.param == "written":
            yield writer
            return
    yield RecordStore.open(tmp_path / "s", io=request.param)


def test_shape_and_dtype(store: RecordStore) -> None:
    assert (store["x"].shape, store["x"].ndim) == ((ROWS, 3, 2), 3)
    assert store["x"].dtype == np.float32
    assert (store["r"].shape, store["k"].shape) == ((ROWS, None), (ROWS, None, None, 2))
    assert store["t"].shape == (ROWS,)
    assert store["t"].dtype == object
    assert (len(store["x"]), store["x"].name, store["x"].field) == (ROWS, "x", FIELDS["x"])


@pytest.mark.parametrize("name", FIELDS)
def test_keys_select_as_in_numpy(store: RecordStore, name: str) -> None:
    view = store[name]
    wanted = list(columns()[name])
    keys: list[Any] = [
        slice(None), slice(3, 30, 4), slice(None, None, -1), slice(5, 5), slice(-3, None),
        slice(30, 3, -7), ..., [3, 3, -1], np.array([], int), np.arange(ROWS) % 3 == 0, range(2, 9),
    ]  # fmt: skip
    for key in keys:
        rows = np.arange(ROWS)[key]
        found = view[key]
        assert len(found) == len(rows)
        for position, row in enumerate(rows):
            np.testing.assert_array_equal(found[position], wanted[row])
    for row in (0, 17, -1, np.int8(3)):
        np.testing.assert_array_equal(view[row], wanted[row])
    for position, value in enumerate(view):
        np.testing.assert_array_equal(value, wanted[position])
    with pytest.raises(OutOfRangeError):
        view[ROWS]
    for bad in ("x", 1.5, None, True, ()):
        with pytest.raises(InvalidTypeError):
            view[bad]


def test_values_have_numpy_or_python_types(store: RecordStore) -> None:
    assert type(store["n"][3]) is np.int64
    assert type(store["b"][3]) is bytes
    assert type(store["t"][3]) is str
    assert store["j"][3] == {"k": 3}
    assert store["k"][5].shape == (2, 1, 2)
    assert isinstance(store["r"][2:5], Ragged)
    assert store["t"][2:5].dtype == object


def test_inner_keys(store: RecordStore) -> None:
    np.testing.assert_array_equal(store["x"][4, 1], X[4, 1])
    np.testing.assert_array_equal(store["x"][4, :, 0], X[4, :, 0])
    np.testing.assert_array_equal(store["x"][2:9, 1], X[2:9, 1])
    np.testing.assert_array_equal(store["x"][..., 0], X[:, 0])
    assert store["z"][4, 1, 1] == X[4, 1, 1] + 1
    with pytest.raises(InvalidTypeError):
        store["x"][[1, 2], 0]
    with pytest.raises(InvalidTypeError):
        store["r"][2:5, 0]


def test_raw_values_of_a_mapped_store_are_not_copied(store: RecordStore) -> None:
    mapped = store.mode == "a" or store._location.io == "mmap"
    for array in (store["x"][3], store["x"][3:9], store["x"][::-2], store["r"][3], store["k"][5]):
        assert in_file(array) == mapped
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        if mapped:
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True
    for array in (store["x"][[3, 4]], store["n"][[1]], store["r"][[3, 4]].values):
        assert not in_file(array)
        assert array.flags.writeable


def test_slices_and_values_are_always_read_only(store: RecordStore) -> None:
    if store.mode == "a":
        store["x"][5] = X[0]  # now stored elsewhere
        store["x"][8] = None
        store["r"][3] = None
    for name in FIELDS:
        many = [store[name][2:9], store[name][9:2:-2]]
        if name not in {"r", "rz", "k"}:
            many.append(np.asarray(store[name]))
        if name not in {"n", "b", "t", "j"}:
            many += [store[name][row] for row in (3, 5, 8)]
        for found in many:
            array = found.values if isinstance(found, Ragged) else found
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
    assert np.array(store["z"]).flags.writeable
    assert np.array(store["t"]).flags.writeable
    assert store["z"][np.arange(5)].flags.writeable
    assert store["rz"][np.arange(5)].values.flags.writeable


def test_compressed_values_are_copied(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", {"x": Field("u1", (999,), "zstd")}) as store:
        store.append({"x": np.zeros(999, "u1")})
        store.append({"x": np.frombuffer(np.random.default_rng(1).bytes(999), "u1")})
        assert not in_file(store["x"][0])
        assert not store["x"][0].flags.writeable
        assert store["x"][[0]].flags.writeable
        assert in_file(store["x"][1])  # not compressible, so stored raw


def test_asarray_returns_the_whole_field(store: RecordStore) -> None:
    np.testing.assert_array_equal(np.asarray(store["x"]), X)
    mapped = store.mode == "a" or store._location.io == "mmap"
    assert in_file(np.asarray(store["x"])) == mapped
    assert np.array(store["x"]).flags.writeable
    assert np.asarray(store["n"], dtype="f8").dtype == np.float64
    np.testing.assert_array_equal(np.asarray(store["z"]), X + 1)
    assert np.asarray(store["t"])[:2].tolist() == ["text 0", "text 1"]
    assert float(np.mean(store["x"])) == X.mean()
    for ragged in ("r", "k"):
        with pytest.raises(InvalidTypeError, match="is ragged"):
            np.asarray(store[ragged])
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(InvalidError, match="without a copy"):
            np.asarray(store["z"], copy=False)


def test_asarray_of_too_large_a_field_raises(tmp_path: Path) -> None:
    big = 1 << 28
    with RecordStore.create(tmp_path / "s", {"x": Field("u1", (big,), "zstd")}) as store:
        store.extend({"x": [None] * 4})
        assert np.asarray(store["x"][0]).nbytes == big
        store.append({})
        with pytest.raises(TooLargeError, match="bytes"):
            np.asarray(store["x"])


@pytest.mark.parametrize("dtype", ["bytes", "str", "json"])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_asarray_of_too_many_objects_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, codec: str
) -> None:
    values: list[Any] = [b"x" * 100] * 1000 if dtype == "bytes" else ["x" * 100] * 1000
    with RecordStore.create(tmp_path / "s", {"v": Field(dtype, codec=codec)}) as store:
        store.extend({"v": values})
        monkeypatch.setattr(field_view, "_MAX_ARRAY_BYTES", 102_000)
        assert np.asarray(store["v"]).tolist() == values
        monkeypatch.setattr(field_view, "_MAX_ARRAY_BYTES", 99_999)
        with pytest.raises(TooLargeError, match="exceed the limit of 99999"):
            np.asarray(store["v"])
        monkeypatch.setattr(field_view, "_MAX_ARRAY_BYTES", 2_000)
        made: list[Any] = []

        def counted(*arguments: Any) -> Any:
            made.extend(assemble(*arguments))
            return made[-arguments[3][0] :]

        monkeypatch.setattr(snapshot, "assemble", counted)
        with pytest.raises(TooLargeError, match="exceed the limit of 2000 bytes"):
            np.asarray(store["v"])
        assert 0 < len(made) <= 20  # the rest was not read


def test_views_keep_their_data(tmp_path: Path) -> None:
    store = RecordStore.create(
        tmp_path / "s", {"x": Field("i4", (500,)), "r": Field("i4", ragged=1)}
    )
    arrays: list[tuple[int, npt.NDArray[Any], npt.NDArray[Any]]] = []
    for k in range(300):
        store.append({"x": np.full(500, k, "i4"), "r": np.full(100, k, "i4")})
        if k % 30 == 0:
            arrays.append((k, store["x"][: k + 1], store["r"][k]))
    store["x"][0] = np.full(500, -1, "i4")
    store.delete(range(200))
    store.rebalance()
    store.close()
    del store
    for k, rows, ragged in arrays:
        assert (rows == np.arange(k + 1)[:, None]).all()
        assert (ragged == k).all()


def test_changed_and_moved_rows_are_read(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.extend(columns())
        store["x"][5] = -X[5]
        store["x"][7] = None
        assert in_file(store["x"][5])
        np.testing.assert_array_equal(store["x"][5], -X[5])
        np.testing.assert_array_equal(store["x"][7], 0 * X[7])
        np.testing.assert_array_equal(store["x"][4:7], np.stack([X[4], -X[5], X[6]]))
        assert in_file(store["x"][20:30])
        del store[0]
        np.testing.assert_array_equal(store["x"][0], X[-1])
        assert store["t"][0] == f"text {ROWS - 1}"


def test_view_follows_its_store(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", {"x": Field("i4"), "y": Field("i4")}) as store:
        view = store["x"]
        assert isinstance(view, FieldView)
        assert (len(view), view[:].tolist(), np.asarray(view).shape) == (0, [], (0,))
        store.extend({"x": [1, 2]})
        assert view[:].tolist() == [1, 2]
        store.drop_field("x")
        with pytest.raises(KeyError, match="unknown field 'x'"):
            view[0]
