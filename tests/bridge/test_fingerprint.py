"""A conversion resumes only with the same source and functions."""

import functools
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from relive import ArraySource, Ragged
from relive.bridge import convert
from relive.bridge.fingerprint import function_fingerprint
from relive.bridge.write.record_store import unfinished_path
from relive.errors import InvalidError
from relive.model.schema import Field
from relive.model.source import Source
from relive.store.records import RecordStore
from tests.bridge.sample_files import interrupted, write_tfrecord


def test_arrays_are_distinguished(tmp_path: Path) -> None:
    values = np.arange(300).reshape(100, 3)
    target = interrupted(tmp_path, values)
    with pytest.raises(InvalidError, match="with different options: values"):
        convert(values + 1, target)
    made = convert(values.copy(), target, batch=10)
    assert (made.rows, made.resumed_from) == (100, 20)
    with RecordStore.open(target) as store:
        assert np.array_equal(np.asarray(store.gather(range(100))["data"]), values)


def test_functions_are_distinguished(tmp_path: Path) -> None:
    source = write_tfrecord(tmp_path / "a.tfrecord")
    target = interrupted(tmp_path, source, decode=lambda data: len(data))  # noqa: PLW0108
    with pytest.raises(InvalidError, match="with different options: decode differ"):
        convert(source, target, decode=lambda data: len(data) + 1)
    made = convert(source, target, decode=lambda data: len(data))  # noqa: PLW0108
    assert (made.rows, made.resumed_from) == (100, 20)


def strided(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.repeat(values, 2, axis=0)[::2]


class Plain(Source):
    """A minimal source."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values

    @property
    def fields(self) -> Mapping[str, Field]:
        return {"x": Field(self.values.dtype, self.values.shape[1:])}

    def __len__(self) -> int:
        return len(self.values)

    def gather(self, indices: Any, fields: Any = None, out: Any = None) -> Any:
        return {"x": self.values[np.asarray(indices)]}


MADE: dict[str, Callable[[npt.NDArray[Any]], object]] = {
    "array": lambda values: values,
    "strided": strided,
    "fortran": np.asfortranarray,
    "times": lambda values: values.astype("M8[us]"),
    "bfloat16": lambda values: values.astype(ml_dtypes.bfloat16),
    "dict": lambda values: {"a": np.zeros(len(values)), "x": values},
    "list column": lambda values: {"x": [str(value) for value in values]},
    "ragged": lambda values: Ragged.from_list([np.arange(value.sum() % 5) for value in values]),
    "ragged values": lambda values: Ragged.from_list(list(values)),
    "rows": lambda values: [{"x": value, "j": {"k": [str(value)]}} for value in values],
    "table": lambda values: pa.table({"x": values[:, 0]}),
    "sliced table": lambda values: pa.table({"x": np.concatenate([values, values])[:, 0]}).slice(
        3001
    ),
    "text table": lambda values: pa.table({"x": [str(value) for value in values]}),
    "ArraySource": lambda values: ArraySource({"x": values}),
    "Subset": lambda values: ArraySource({"x": values})[::-1],
    "Source": Plain,
}


@pytest.mark.parametrize("name", MADE)
def test_values_in_memory_are_distinguished_by_all_their_content(tmp_path: Path, name: str) -> None:
    make = MADE[name]
    values = np.full((3001, 3), 17)
    values[::2] = 3
    changed = values.copy()
    changed[1717] = 1
    target = interrupted(tmp_path, make(values))
    with pytest.raises(InvalidError, match="with different options: values differ"):
        convert(make(changed), target)
    made = convert(make(values.copy()), target)
    assert (made.rows, made.resumed_from) == (3001, 20)


def test_memory_maps_are_distinguished_by_their_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(300).reshape(100, 3))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    target = interrupted(tmp_path, mapped[10:])
    with pytest.raises(InvalidError, match="with different options: values differ"):
        convert(mapped[:90], target)
    with pytest.raises(InvalidError, match="with different options: values differ"):
        convert({"data": np.array(mapped[10:])}, target)  # the content of the file is not compared
    again = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert convert(again[10:], target).resumed_from == 20
    target.rename(tmp_path / "first")
    target = interrupted(tmp_path, mapped)
    os.utime(tmp_path / "a.npy", ns=(0, 0))
    with pytest.raises(InvalidError, match="with different options: values differ"):
        convert(mapped, target)


@pytest.mark.parametrize("kind", ["npy", "records"])
def test_files_of_sources_are_distinguished(tmp_path: Path, kind: str) -> None:
    def write(values: npt.NDArray[Any]) -> Path:
        if kind == "npy":
            np.save(tmp_path / "a.npy", values)
            return tmp_path / "a.npy"
        convert({"data": values}, tmp_path / "a", overwrite=True)
        return tmp_path / "a"

    values = np.zeros(3001)
    source = write(values)
    target = interrupted(tmp_path, source)
    values[1717] = 1
    write(values)
    with pytest.raises(InvalidError, match="with different options: values differ"):
        convert(source, target)


def test_every_image_of_a_folder_is_included(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for k in range(40):
        (folder / f"{k:02}.png").write_bytes(b"%d" % k)
    target = interrupted(tmp_path, folder)
    assert unfinished_path(target).exists()
    os.utime(folder / "17.png", ns=(0, 0))
    with pytest.raises(InvalidError, match="with different options: files differ"):
        convert(folder, target)
    made = convert(folder, target, overwrite=True)
    assert (made.rows, made.resumed_from) == (40, 0)


def closing_over(value: object) -> Callable[[bytes], int]:
    def decode(data: bytes) -> int:
        return len(data) if value is None else len(data) + 1

    return decode


def with_default(value: int) -> Callable[[bytes], int]:
    def decode(data: bytes, more: int = value) -> int:
        return len(data) + more

    return decode


def with_keyword(value: int) -> Callable[[bytes], int]:
    def decode(data: bytes, *, more: int = value) -> int:
        return len(data) + more

    return decode


def two(more: int, data: bytes) -> int:
    return len(data) + more


def calling(value: int) -> Callable[[bytes], int]:
    inner = with_default(value)
    return lambda data: inner(data)  # noqa: PLW0108 - a function that closes over another


class Decoder:
    """A callable with state."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, data: bytes) -> int:
        return len(data) + self.value

    def decode(self, data: bytes) -> int:
        return len(data) - self.value


FUNCTIONS: dict[str, Callable[[int], Callable[[bytes], Any]]] = {
    "closure": closing_over,
    "array": lambda value: closing_over(np.full(5000, value)),
    "default": with_default,
    "keyword": with_keyword,
    "inner": calling,
    "object": Decoder,
    "method": lambda value: Decoder(value).decode,
    "partial": lambda value: functools.partial(two, value),
    "builtin": lambda value: {b"x" * k: value for k in range(9)}.__contains__,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_distinguished_by_their_captured_values(tmp_path: Path, name: str) -> None:
    source = write_tfrecord(tmp_path / "a.tfrecord")
    make = FUNCTIONS[name]
    target = interrupted(tmp_path, source, decode=make(1))
    with pytest.raises(InvalidError, match="with different options: decode differ"):
        convert(source, target, decode=make(2))
    assert convert(source, target, decode=make(1)).resumed_from == 20


def test_globals_and_names_of_a_function_are_included(tmp_path: Path) -> None:
    def make(text: str) -> Callable[[bytes], int]:
        space: dict[str, Any] = {"__name__": "elsewhere", "np": np}
        exec(text, space)  # noqa: S102 - a module that is edited between two calls
        found: Callable[[bytes], int] = space["decode"]
        return found

    texts = [
        "MORE = 1\ndef inner(data): return len(data)\ndef decode(data): return inner(data) + MORE",
        "MORE = 2\ndef inner(data): return len(data)\ndef decode(data): return inner(data) + MORE",
        "MORE = 1\ndef inner(data): return 2\ndef decode(data): return inner(data) + MORE",
        "def decode(data): return np.int64(5)",
        "def decode(data): return np.int32(5)",
        "def decode(data): return decode(data[1:]) if data in {b'u', b'v', b'w'} else 1",
    ]
    found = [function_fingerprint(make(text)) for text in texts]
    assert len(set(found)) == len(texts)
    assert found == [function_fingerprint(make(text)) for text in texts]


def test_conversion_without_a_fingerprint_restarts(tmp_path: Path) -> None:
    source, target = write_tfrecord(tmp_path / "a.tfrecord"), tmp_path / "store"
    decode = closing_over(threading.Lock())
    interrupted(tmp_path, source, decode=decode)
    assert not unfinished_path(target).exists()
    # A killed process leaves a conversion that cannot be resumed.
    kept = interrupted(tmp_path, source)
    state = json.loads((unfinished_path(kept) / "source.json").read_text())
    state["unknown"] = "a lock has no fingerprint"
    (unfinished_path(kept) / "source.json").write_text(json.dumps(state))
    made = convert(source, target, decode=decode)
    assert (made.rows, made.resumed_from) == (100, 0)
    assert [item.name for item in sorted(tmp_path.iterdir())] == ["a.tfrecord", "store"]
