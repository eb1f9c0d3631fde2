"""Arrays in files as a source: mapped, pickled as paths, and refused when damaged."""

import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive import ArraySource, Ragged, errors


def data_of(source: ArraySource, indices: Any) -> npt.NDArray[Any]:
    found = source.gather(indices)["data"]
    assert isinstance(found, np.ndarray)
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.npy"
    np.save(path, np.arange(60_000).reshape(600, 100))
    return path


def dumped(source: ArraySource) -> tuple[bytes, ArraySource]:
    data = pickle.dumps(source)
    copy: ArraySource = pickle.loads(data)  # noqa: S301 - our own data
    return data, copy


SELECTIONS: dict[str, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = {
    "all": lambda m: m,
    "rows": lambda m: m[100:300],
    "steps": lambda m: m[7::3],
    "columns": lambda m: m[:, 10:20],
    "backwards": lambda m: m[::-1],
    "backwards inside": lambda m: m[20:40, ::-2],
    "transposed": lambda m: m.T,
    "reshaped": lambda m: m.reshape(-1, 50, 2),
    "other dtype": lambda m: m.view(np.int32)[:, ::2],
    "plain array": lambda m: np.asarray(m)[3:],
    "slice of a slice": lambda m: m[10:][5:, 3:][::2],
    "nothing": lambda m: m[5:5],
}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_mapped_arrays_pickle_as_paths(saved: Path, selection: str) -> None:
    array = SELECTIONS[selection](np.load(saved, mmap_mode="r"))
    data, copy = dumped(ArraySource(array))
    assert len(data) < 600
    np.testing.assert_array_equal(data_of(copy, range(len(array))), array, strict=True)
    again, _ = dumped(copy)
    assert len(again) < 600


@pytest.mark.parametrize("offset", [0, 8, 4096, 4104, 70_000])
def test_raw_maps_pickle_as_paths(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "raw"
    path.write_bytes(np.arange(10_000, dtype=np.int64).tobytes())
    array = np.memmap(path, np.int64, "r", offset=offset, shape=(100, 3))
    data, copy = dumped(ArraySource({"data": array[1:], "more": array[:-1, ::-1]}))
    assert len(data) < 1000
    np.testing.assert_array_equal(data_of(copy, range(99)), array[1:])
    np.testing.assert_array_equal(copy.gather([5])["more"], array[5:6, ::-1])


def test_ragged_values_in_a_file_pickle_as_a_path(saved: Path) -> None:
    values = np.load(saved, mmap_mode="r").reshape(-1)
    ragged = Ragged(values, np.arange(0, 60_001, 10_000))
    data, copy = dumped(ArraySource(ragged))
    assert len(data) < 1000
    found = copy.gather([3])["data"]
    assert isinstance(found, Ragged)
    np.testing.assert_array_equal(found[0], values[30_000:40_000])


def test_maps_without_a_file_pickle_their_values(tmp_path: Path, saved: Path) -> None:
    private = np.load(saved, mmap_mode="c")
    private[0, 0] = 77
    _, copy = dumped(ArraySource(private))
    assert data_of(copy, [0])[0, 0] == 77
    computed = np.load(saved, mmap_mode="r") + 1
    _, copy = dumped(ArraySource(computed))
    assert data_of(copy, [0])[0, 0] == 1
    with (tmp_path / "unnamed").open("w+b") as file:
        file.write(bytes(800))
        file.flush()
        with os.fdopen(os.dup(file.fileno()), "r+b") as unnamed:
            array = np.memmap(unnamed, np.int64, "r+")
        array[5] = 3
        _, copy = dumped(ArraySource(array))
    assert data_of(copy, [5]).tolist() == [3]


def test_relative_path_is_found_from_another_directory(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved.parent)
    source = ArraySource("saved.npy")
    data = pickle.dumps(source)
    monkeypatch.chdir("/")
    assert len(data) < 600
    np.testing.assert_array_equal(
        data_of(pickle.loads(data), [599]),  # noqa: S301 - our own data
        data_of(source, [599]),
    )


def read_elsewhere(source: ArraySource) -> Any:
    return data_of(source, [0, -1 + len(source)]).tolist(), source.workers


def test_spawned_process_maps_the_same_file(saved: Path) -> None:
    array = np.load(saved, mmap_mode="r")[50:250:2, ::-1]
    source = ArraySource(array, workers=3)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows, workers = pool.submit(read_elsewhere, source).result(timeout=120)
    assert rows == array[[0, -1]].tolist()
    assert workers == 3


def test_file_changed_since_pickling_raises(saved: Path) -> None:
    data = pickle.dumps(ArraySource(saved))
    with saved.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(
        errors.CorruptError, match=r"saved.npy` has 1000 bytes, expected at least 480128"
    ):
        pickle.loads(data)  # noqa: S301 - our own data
    saved.unlink()
    with pytest.raises(errors.NotFoundError, match="No such file"):
        pickle.loads(data)  # noqa: S301 - our own data


def test_unreadable_files_raise(tmp_path: Path) -> None:
    def made(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    whole = tmp_path / "whole.npy"
    np.save(whole, np.arange(1000))
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "many.npz", a=np.arange(3))
    archive = (tmp_path / "many.npz").read_bytes()
    cases: list[tuple[Any, type[errors.ReliveError], str]] = [
        (tmp_path / "missing.npy", errors.NotFoundError, "No such file"),
        (made("empty.npy", b""), errors.CorruptError, "not a readable .npy file"),
        (made("short.npy", whole.read_bytes()[:200]), errors.CorruptError, "not a readable"),
        (made("header.npy", whole.read_bytes()[:20]), errors.CorruptError, "not a readable"),
        (made("text.npy", b"hello, world" * 50), errors.CorruptError, "not a readable"),
        (made("pickle.npy", pickle.dumps([1, 2])), errors.CorruptError, "not a readable"),
        (tmp_path / "objects.npy", errors.CorruptError, "not a readable"),
        (tmp_path / "many.npz", errors.UnsupportedError, "a .npz archive"),
        (made("many.npy", archive), errors.CorruptError, "a .npz archive"),
        (tmp_path, errors.StorageError, "cannot read .*: Is a directory"),
    ]
    for path, error, text in cases:
        for given in (path, str(path)):
            with pytest.raises(error, match=text) as caught:
                ArraySource(given)
            assert str(path) in str(caught.value)
    scalar = tmp_path / "scalar.npy"
    np.save(scalar, np.array(3))
    with pytest.raises(errors.InvalidError, match="a single value"):
        ArraySource(scalar)


def test_array_file_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "empty.npy"
    np.save(path, np.zeros((0, 4), np.float32))
    source = ArraySource(path)
    assert len(source) == 0
    _, copy = dumped(source)
    assert copy.fields == source.fields
