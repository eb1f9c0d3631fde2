"""Typical use of a record store: writing, reading, loading, and opening by path."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import ArraySource, DataLoader, Field, Ragged, RecordStore
from relive.errors import (
    AlreadyExistsError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    OutOfRangeError,
    TooLargeError,
    UnsupportedError,
)
from relive.load import Concat

IMAGES = np.random.default_rng(7).integers(0, 255, (50, 4, 4, 3), np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store of fifty images with labels, tokens and names."""
    fields = {
        "image": Field(np.uint8, (4, 4, 3)),
        "label": Field("i4"),
        "tokens": Field("i2", ragged=True),
        "name": Field("str"),
    }
    with RecordStore.create(tmp_path / "s", fields) as store:
        store.extend({
            "image": IMAGES,
            "label": np.arange(50),
            "tokens": [np.arange(k % 5) for k in range(50)],
            "name": [f"image {k}" for k in range(50)],
        })  # fmt: skip
    return tmp_path / "s"


def test_written_records_are_read_back(path: Path) -> None:
    with RecordStore.open(path) as store:
        assert len(store) == 50
        row = store[-1]
        np.testing.assert_array_equal(row["image"], IMAGES[-1])
        assert (row["label"], row["name"], row["tokens"].tolist()) == (49, "image 49", [0, 1, 2, 3])
        batch = store.gather([[3, 3], [0, 49]])
        np.testing.assert_array_equal(batch["image"], IMAGES[[[3, 3], [0, 49]]])
        assert np.asarray(batch["name"]).tolist() == [
            ["image 3", "image 3"],
            ["image 0", "image 49"],
        ]
        assert isinstance(batch["tokens"], Ragged)
        assert [row["label"] for row in store[10:13]] == [10, 11, 12]
        assert (store.path, store.mode) == (path, "r")


def test_object_fields_gather_into_given_arrays(path: Path) -> None:
    with RecordStore.open(path) as store:
        names, labels = np.empty(2, object), np.empty(2, "i4")
        batch = store.gather([4, 2], ["label", "name"], {"name": names, "label": labels})
        assert batch["name"] is names
        assert batch["label"] is labels
        assert names.tolist() == ["image 4", "image 2"]
        assert labels.tolist() == [4, 2]


def test_open_by_path(path: Path, tmp_path: Path) -> None:
    for uri in (path, str(path), path.as_uri()):
        store = relive.open(uri)
        assert isinstance(store, RecordStore)
        assert (store.mode, len(store)) == ("r", 50)
    with RecordStore.create(tmp_path / "t", RecordStore.open(path).fields) as other:
        other.extend(relive.open(path))
    both = relive.open(str(tmp_path / "[st]"), verify="always")
    assert isinstance(both, Concat)
    assert np.asarray(both.gather([0, 50, 99])["label"]).tolist() == [0, 0, 49]


def test_loader_reads_numeric_fields_natively(tmp_path: Path) -> None:
    fields = {"x": Field("f4", (3,)), "y": Field("i4", codec="zstd"), "r": Field("i2", ragged=True)}
    x = np.arange(60, dtype="f4").reshape(20, 3)
    with RecordStore.create(tmp_path / "s", fields) as store:
        store.extend({"x": x, "y": np.arange(20), "r": [[k] * (k % 3) for k in range(20)]})
        assert store.native_table() is not None
        store["y"][3] = 33
        for source in (store, RecordStore.open(tmp_path / "s")):
            if source is not store:
                source.refresh()
            with DataLoader(source[:], batch_size=4, seed=1) as loader:
                batches = [next(loader) for _ in range(5)]
            assert np.concatenate([np.asarray(batch["y"]) for batch in batches]).size == 20
            for batch in batches:
                y = np.asarray(batch["y"])
                rows = np.where(y == 33, 3, y)
                np.testing.assert_array_equal(batch["x"], x[rows])
                for row, found in zip(rows, batch["r"], strict=True):
                    assert found.tolist() == [row] * (row % 3)
            store.flush()
    for field in (Field("str"), Field("f4", ragged=2)):
        with RecordStore.create(tmp_path / str(field.dtype), {"x": field}) as store:
            store.extend({"x": ["a"] if field.dtype == "str" else [np.ones((1, 1), "f4")]})
            assert store.native_table() is None
            with DataLoader(store, batch_size=1) as loader:
                assert len(next(loader)["x"]) == 1


def test_snapshot_does_not_change_until_refresh(tmp_path: Path) -> None:
    writer = RecordStore.create(tmp_path / "s", {"x": Field("i4"), "t": Field("str")})
    reader = RecordStore.open(tmp_path / "s")
    assert (len(reader), reader.refresh()) == (0, False)
    writer.extend({"x": [1, 2, 3], "t": ["a", "b", "c"]})
    assert (len(writer), writer.refresh(), reader.refresh()) == (3, False, False)
    writer.flush()
    assert len(reader) == 0
    assert reader.refresh()
    view, array = reader["x"], reader["x"][:]
    writer["x"][0] = 9
    del writer[1]
    writer.flush()
    assert reader["x"][:].tolist() == [1, 2, 3]
    writer.rebalance()
    assert reader["t"][:].tolist() == ["a", "b", "c"]
    assert reader.refresh()
    assert (view[:].tolist(), array.tolist()) == ([9, 3], [1, 2, 3])
    generation = reader.generation
    writer.add_field("z", Field("f4"), [1, 2])
    writer.close()
    assert reader.refresh()
    assert list(reader.fields) == ["x", "t", "z"]
    assert reader.generation > generation
    assert reader["z"][:].tolist() == [1, 2]


def test_missing_in_any_shape(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", {"x": Field("i4"), "y": Field("str")}) as store:
        store.extend({"x": [1, None, 3], "y": [None, "a", ""]})
        assert store.missing("x").tolist() == [False, True, False]
        assert store.missing("y", [[0, 1], [2, 0]]).tolist() == [[True, False], [False, True]]
        assert store.missing("x", []).tolist() == []
        assert not store.missing("x", 0).any()
        with pytest.raises(OutOfRangeError):
            store.missing("x", [3])


def test_utilization(tmp_path: Path) -> None:
    with RecordStore.create(
        tmp_path / "s", {"x": Field("u1", (4096,)), "t": Field("str")}
    ) as store:
        assert (store.utilization, len(store)) == (1, 0)
        store.extend({"x": np.zeros((40, 4096), "u1"), "t": ["x" * 5000] * 40})
        assert store.utilization == 1
        store.delete(range(30))
        assert store.utilization == 0.25
    with RecordStore.open(tmp_path / "s", "a") as store:
        assert store.utilization_bytes < 0.3
        store.rebalance()
        assert store.utilization == 1
    assert len(store_of := RecordStore.open(tmp_path / "s")) == 10
    assert 0.8 < store_of.utilization_bytes <= 1


def test_validate_reports_problems(path: Path) -> None:
    store = RecordStore.open(path)
    reported: list[tuple[int, int | None]] = []
    report = store.validate("full", progress=lambda *done: reported.append(done))
    assert (report.ok, report.level, report.checked) == (True, "full", {"records": 50})
    assert reported[-1] == (50, 50)
    assert store.validate("index").checked == {"records": 0}
    with pytest.raises(InvalidError, match="level"):
        store.validate("quick")  # type: ignore[arg-type]
    for chunk in (path / "chunk").glob("*.zr"):
        data = bytearray(chunk.read_bytes())
        data[5000 if len(data) > 5000 else 4100] ^= 1
        chunk.write_bytes(data)
    report = store.validate("full")
    assert not report.ok
    assert {problem.kind for problem in report.problems} == {"corrupt"}
    assert any(problem.field == "image" for problem in report.problems)
    assert all(problem.message for problem in report.problems)


def test_dictionary_shrinks_small_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    words = [f"word{k}" for k in range(50)]
    texts = [f"<{' and '.join(rng.choice(words, 12))}>" for _ in range(2000)]
    sizes = {}
    for trained in (False, True):
        path = tmp_path / f"{trained}"
        with RecordStore.create(path, {"t": Field("str", codec="zstd"), "x": Field("i4")}) as store:
            store.extend({"t": texts})
            if trained:
                store.train_dictionary("t", size=4096)
                store.append({"t": "another"})
                with pytest.raises(UnsupportedError, match="its codec is 'raw'"):
                    store.train_dictionary("x")
            store.rebalance(recompress=True)
        sizes[trained] = sum(file.stat().st_size for file in path.glob("chunk/*.zr"))
        with RecordStore.open(path) as store:
            assert store["t"][:2000].tolist() == texts
    assert sizes[True] < 0.9 * sizes[False]


def test_fields_can_be_added_and_dropped(path: Path) -> None:
    with RecordStore.open(path, "a") as store:
        store.add_field("empty", Field("f4", (2,)))
        store.add_field("score", Field("f8", codec="zstd"), np.arange(50.0))
        store.drop_field("image")
        assert list(store.fields) == ["label", "tokens", "name", "empty", "score"]
        assert store.missing("empty").all()
        assert store.append({"empty": [1, 2], "score": 7}) == 50
        for call, error in (
            (lambda: store.add_field("label", Field("i4")), InvalidError),
            (lambda: store.add_field("", Field("i4")), InvalidError),
            (lambda: store.add_field("x", Field("i4"), [1, 2]), InvalidError),
            (lambda: store.add_field("x", "i4"), InvalidTypeError),  # type: ignore[arg-type]
            (lambda: store.append({"image": IMAGES[0]}), KeyError),
            (lambda: store["image"], KeyError),
        ):
            with pytest.raises(error):
                call()
    with RecordStore.open(path, "a") as store:
        assert store["score"][48:].tolist() == [48, 49, 7]
        assert store["empty"][50].tolist() == [1, 2]
        assert store["name"][7] == "image 7"
        for name in list(store.fields)[1:]:
            store.drop_field(name)
        with pytest.raises(InvalidError, match="only field"):
            store.drop_field("label")
        assert store["label"][:50].tolist() == list(range(50))


def test_create_and_open_errors(tmp_path: Path, path: Path) -> None:
    fields = {"x": Field("i4")}
    with pytest.raises(AlreadyExistsError) as exists:
        RecordStore.create(path, fields)
    assert 'mode="a"' in str(exists.value.hint)
    assert len(RecordStore.open(path)) == 50
    (tmp_path / "file").touch()
    with pytest.raises(AlreadyExistsError) as taken:
        RecordStore.create(tmp_path / "file", fields)
    assert taken.value.hint is None
    (tmp_path / "empty").mkdir()
    RecordStore.create(tmp_path / "empty", fields).close()
    for mode in ("r", "a"):
        for where in (tmp_path / "no", tmp_path / "file", tmp_path):
            with pytest.raises(NotFoundError) as missing:
                RecordStore.open(where, mode)
            assert "RecordStore.create" in str(missing.value.hint)
    assert not (tmp_path / "no").exists()
    assert not (tmp_path / "LOCK").exists()
    wrong: list[Any] = [
        {"mode": "w"}, {"verify": "sometimes"}, {"io": "magic"}, {"workers": 0},
        {"mode": "a", "workers": 0}, {"mode": "a", "autoflush_s": 0}, {"autoflush_s": 1},
        {"mode": "a", "autoflush_s": float("nan")},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(InvalidError):
            RecordStore.open(path, **options)
    with pytest.raises(InvalidTypeError):
        RecordStore.open(path, mode="a", autoflush_s="often")  # type: ignore[arg-type]
    with pytest.raises(InvalidError):
        RecordStore.create(tmp_path / "t", fields, chunk_size=0)
    with pytest.raises(InvalidError, match="`chunk_size` must be at most"):
        RecordStore.create(tmp_path / "t", fields, chunk_size=10**30)
    with pytest.raises(InvalidTypeError, match="chunk_size"):
        RecordStore.create(tmp_path / "t", fields, chunk_size=True)
    assert not (tmp_path / "t").exists()
    for bad in (3, b"x", None):
        with pytest.raises(InvalidTypeError):
            RecordStore.open(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match=r"RecordStore\.create"):
        RecordStore(path, path)  # type: ignore[arg-type]
    RecordStore.open(path, "a").close()  # the lock was released


def test_too_large_values_raise(tmp_path: Path) -> None:
    with pytest.raises(TooLargeError):
        RecordStore.create(tmp_path / "s", {"x": Field("u1", (1 << 33,))})


def test_extend_takes_sources_and_records(tmp_path: Path, path: Path) -> None:
    source = ArraySource({"a": np.arange(6.0), "b": Ragged.from_list([[k] * k for k in range(6)])})
    fields = {"a": Field("f4"), "b": Field("i8", ragged=True), "c": Field("json")}
    with RecordStore.create(tmp_path / "t", fields) as store:
        assert store.extend(source) == range(6)
        assert store.extend(source[4:]) == range(6, 8)
        assert store.extend([{"a": 1}, {"c": [1]}, {}]) == range(8, 11)
        assert store.extend({"a": (k for k in range(2))}) == range(11, 13)
        assert store.extend([]) == range(13, 13)
        assert store.extend({"c": [[1, 2], {"x": 3}]}) == range(13, 15)
        assert store["a"][6:13].tolist() == [4, 5, 1, 0, 0, 0, 1]
        assert [row.tolist() for row in store["b"][4:8]] == [[4] * 4, [5] * 5, [4] * 4, [5] * 5]
        assert store["c"][9:].tolist() == [[1], None, None, None, [1, 2], {"x": 3}]
        for wrong, error in (
            ({"a": [1, 2], "b": [[1]]}, InvalidError),
            ({}, InvalidError),
            ({"a": None}, InvalidError),
            ({"a": 3}, InvalidTypeError),
            ({"c": "text"}, InvalidTypeError),
            ({"c": {"x": 1}}, InvalidTypeError),
            ({"b": np.zeros((2, 3, 4))}, (InvalidError, InvalidTypeError)),
            (7, InvalidTypeError),
            ("ab", InvalidTypeError),
            ([1, 2], InvalidTypeError),
            (RecordStore.open(path), KeyError),
        ):
            with pytest.raises(error):
                store.extend(wrong)  # type: ignore[arg-type]
        assert len(store) == 15


def test_missing_values_stay_missing_when_copied(tmp_path: Path) -> None:
    fields = {"x": Field("i4"), "t": Field("str"), "r": Field("i4", ragged=True)}
    with RecordStore.create(tmp_path / "s", fields) as store:
        store.extend([{"x": 1}, {"t": "a"}, {"r": [1]}, {}])
        with RecordStore.create(tmp_path / "t", fields) as other:
            other.extend(store)
            other.extend(store[[1, 3]])
            for name in fields:
                wanted = [*store.missing(name), *store.missing(name, [1, 3])]
                assert other.missing(name).tolist() == wanted
            assert other["t"][:].tolist() == ["", "a", "", "", "a", ""]


def test_repr_is_one_line(path: Path) -> None:
    store = RecordStore.open(path)
    assert repr(store).startswith("RecordStore(50 rows: image uint8 (4, 4, 3), label int32")
    assert repr(store["label"]) == "FieldView('label': 50 values of Field('int32'))"
