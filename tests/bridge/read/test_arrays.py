"""Arrays, dicts of arrays, lists of rows, sources, `.npy` and `.npz` are converted to stores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.bridge import convert
from relive.errors import CorruptError, InvalidError, InvalidTypeError, UnsupportedError
from relive.load.compose import Concat
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.store.arrays import ArraySource
from relive.store.pack import PackReader, PackWriter
from relive.store.records import RecordStore
from tests.bridge.sample_files import contents
from tests.cli.samples import game


def test_array_becomes_the_field_data(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.int16).reshape(4, 3)
    made = convert(values, tmp_path / "store")
    assert (made.rows, made.resumed_from) == (4, 0)
    assert made.fields == {"data": Field(np.int16, (3,))}
    with RecordStore.open(tmp_path / "store") as store:
        assert dict(store.fields) == made.fields
        assert np.array_equal(np.asarray(store.gather(range(4))["data"]), values)


def test_dict_of_columns_of_every_type(tmp_path: Path) -> None:
    columns = {
        "number": np.arange(3.0),
        "text": ["a", None, "c"],
        "bytes": [b"", b"1", b"22"],
        "ragged": Ragged.from_list([[1], [], [2, 3]]),
        "shaped": Ragged(np.arange(10), [0, 6, 10, 10], [[2, 3], [1, 4], [0, 3]]),
        "lists": [[1, 2], [3], []],
        "json": [{"a": 1}, [1, "b"], None],
        "masked": np.ma.array([1, 2, 3], mask=[False, True, False]),
        "objects": np.array(["x", "yy", None], dtype=object),
        "words": np.array(["x", "yy", ""], dtype=np.dtypes.StringDType()),
    }
    made = convert(columns, tmp_path / "store")
    assert made.fields["shaped"] == Field(np.int64, ragged=2)
    assert contents(made.path) == [
        {
            "number": 0.0,
            "text": "a",
            "bytes": b"",
            "ragged": [1],
            "shaped": [[0, 1, 2], [3, 4, 5]],
            "lists": [1, 2],
            "json": {"a": 1},
            "masked": 1,
            "objects": "x",
            "words": "x",
        },
        {
            "number": 1.0,
            "text": None,
            "bytes": b"1",
            "ragged": [],
            "shaped": [[6, 7, 8, 9]],
            "lists": [3],
            "json": [1, "b"],
            "masked": None,
            "objects": "yy",
            "words": "yy",
        },
        {
            "number": 2.0,
            "text": "c",
            "bytes": b"22",
            "ragged": [2, 3],
            "shaped": [],
            "lists": [],
            "json": None,
            "masked": 3,
            "objects": None,
            "words": "",
        },
    ]


def test_list_of_rows(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": "x"}, {"a": 2}, {"b": "z", "a": 3}]
    made = convert(rows, tmp_path / "store")
    assert contents(made.path) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": 3, "b": "z"}]


def test_any_source(tmp_path: Path) -> None:
    source = ArraySource({"x": np.arange(10), "r": Ragged.from_list([[k] * k for k in range(10)])})
    for name, rows in {
        "all": source,
        "some": source[::-3],
        "twice": Concat(source, source),
    }.items():
        made = convert(rows, tmp_path / name, batch=4)
        assert made.rows == len(rows)
        wanted = [{"x": int(row["x"]), "r": row["r"].tolist()} for row in rows]
        assert contents(made.path) == wanted


def test_record_store_and_its_views_keep_missing_values(tmp_path: Path) -> None:
    rows = [{"a": k, "t": None if k % 3 == 0 else f"t{k}"} for k in range(1, 8)]
    first = convert(rows, tmp_path / "first", codec={"t": "zstd"})
    again = convert(first.path, tmp_path / "again")
    assert contents(again.path) == rows
    assert again.fields["t"].codec == "zstd"
    with RecordStore.open(first.path) as store:
        convert(store[[5, 2, 0]], tmp_path / "view")
    assert contents(tmp_path / "view") == [rows[5], rows[2], rows[0]]


def test_pack_as_payloads_or_steps(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "runs.a2pack") as pack:
        for steps in (3, 5):
            pack.append(game(steps), "v2")
    made = convert(tmp_path / "runs.a2pack", tmp_path / "payloads")
    assert [row["payload"] for row in contents(made.path)] == [
        list(game(steps).to_bytes()) for steps in (3, 5)
    ]
    made = convert(tmp_path / "runs.a2pack", tmp_path / "steps", steps=True)
    reader = PackReader.open(tmp_path / "runs.a2pack")
    assert made.rows == 8
    assert made.fields.keys() == reader.steps().fields.keys()
    with RecordStore.open(made.path) as store:
        found, wanted = store.gather(range(8)), reader.steps().gather(range(8))
    for name, values in wanted.items():
        assert np.array_equal(found[name], values, equal_nan=name == "branches"), name  # type: ignore[arg-type]
    again = convert(reader, tmp_path / "again", steps=True, fields=["board", "move"])
    assert [*again.fields] == ["board", "move"]


def test_numpy_files(tmp_path: Path) -> None:
    a, b = np.arange(20, dtype=np.int32), np.random.default_rng(0).random((20, 2, 2))
    np.save(tmp_path / "a-0.npy", a)
    np.save(tmp_path / "a-1.npy", a + 20)
    np.savez(tmp_path / "plain.npz", a=a, b=b)
    np.savez_compressed(tmp_path / "small.npz", a=a, b=b)
    made = convert(tmp_path / "a-*.npy", tmp_path / "npy")
    assert [row["data"] for row in contents(made.path)] == list(range(40))
    for name in ("plain", "small"):
        made = convert(tmp_path / f"{name}.npz", tmp_path / name, batch=7)
        assert made.fields == {"a": Field(np.int32), "b": Field(np.float64, (2, 2))}
        with RecordStore.open(made.path) as store:
            assert np.array_equal(np.asarray(store.gather(range(20))["b"]), b)
    made = convert(tmp_path / "small.npz", tmp_path / "one", fields=["b"], limit=3)
    assert (made.rows, [*made.fields]) == (3, ["b"])


def test_truncated_or_invalid_archives_raise(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(1000))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(CorruptError, match=r"a\.npz"):
        convert(path, tmp_path / "store")
    at = len(whole) // 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(CorruptError, match=r"a\.npz"):
        convert(path, tmp_path / "store")
    np.savez(path, a=np.array([{}, None], dtype=object))
    with pytest.raises(UnsupportedError, match="pickled"):
        convert(path, tmp_path / "store")
    np.savez(path, a=np.arange(3), b=np.arange(4))
    with pytest.raises(InvalidError, match="'a' has 3, 'b' has 4"):
        convert(path, tmp_path / "store")
    np.savez(path, a=np.asfortranarray(np.ones((3, 2))))
    with pytest.raises(UnsupportedError, match="Fortran order"):
        convert(path, tmp_path / "store")
    np.savez(path, a=np.float64(1))
    with pytest.raises(InvalidError, match="single value"):
        convert(path, tmp_path / "store")
    assert [item.name for item in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ({}, InvalidError, "the dict to convert is empty"),
        ({"a": [1], "b": [1, 2]}, InvalidError, "'a' has 1, 'b' has 2"),
        ({"a": 3}, InvalidError, "'a' must have one value per row"),
        ({3: [1]}, InvalidTypeError, "a field name must be a non-empty string"),
        ({"a": [1, "b"]}, InvalidError, "row 1: field 'a' is text"),
        ([], InvalidError, "the list of rows is empty"),
        (iter([{"a": 1}]), InvalidTypeError, "cannot convert a list_iterator"),
        (3, InvalidTypeError, "cannot convert an int"),
        (np.ma.array([[1, 2]], mask=[[False, True]]), UnsupportedError, "partly masked"),
    ],
)
def test_unsupported_inputs_raise(
    tmp_path: Path, source: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        convert(source, tmp_path / "store")
    assert not list(tmp_path.iterdir())
