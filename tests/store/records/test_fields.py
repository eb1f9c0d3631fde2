"""Fields of a record store: every dtype round-trips, and unsupported ones raise."""

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relive import ArraySource, Field, RecordStore, convert
from relive.errors import CorruptError, InvalidError, InvalidTypeError, UnsupportedError
from relive.store.records.fields import field_of, spec_of

PADDED = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8], "itemsize": 24})

FIELDS = [
    Field("?"),
    Field("f4", (3, 2)),
    Field(">i2"),
    Field("f2", (5,), "zstd", level=9),
    Field("c16"),
    Field("g"),
    Field("M8[ns]", (2,)),
    Field("m8[25us]"),
    Field("S3"),
    Field("U4", (2,)),
    Field("V5"),
    Field([("a", "i4"), ("b", "f8", (2,))]),
    Field([("x", [("y", ">f4"), ("z", "S3")]), ("w", "M8[D]")], (2,), "lz4"),
    Field([(("a title", "a"), "i4")]),
    Field(PADDED),
    Field(np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    Field(ml_dtypes.bfloat16, (4,)),
    Field(ml_dtypes.float8_e4m3fn),
    Field("float8_e5m2", codec="deflate"),
    Field(ml_dtypes.int4),
    Field("f4", (0, 3)),
    Field("i4", ragged=True),
    Field("f8", (2,), "zstd", ragged=3),
    Field("bytes"),
    Field("str", codec="zstd", level=-3),
    Field("json"),
]


@pytest.mark.parametrize("field", FIELDS, ids=repr)
def test_field_round_trip(tmp_path: Path, field: Field) -> None:
    assert field_of(spec_of("x", field)) == field
    with RecordStore.create(tmp_path / "s", {"x": field}):
        pass
    with RecordStore.open(tmp_path / "s") as store:
        assert dict(store.fields) == {"x": field}
        (found,) = store.fields.values()
        if isinstance(field.dtype, np.dtype):
            assert isinstance(found.dtype, np.dtype)
            assert found.dtype.itemsize == field.dtype.itemsize
            assert found.dtype.byteorder == field.dtype.byteorder


# Some bytes of a long double are padding, and NumPy does not set them.
BITS = [field for field in FIELDS if field.fixed and field.dtype != np.longdouble]


@pytest.mark.parametrize("field", BITS, ids=repr)
def test_values_of_any_dtype_round_trip_exactly(tmp_path: Path, field: Field) -> None:
    assert isinstance(field.dtype, np.dtype)
    shape = (7, *field.shape)
    count = int(np.prod(shape)) * field.dtype.itemsize
    given = np.frombuffer(np.random.default_rng(1).bytes(count), field.dtype).reshape(shape)
    if field.dtype == np.bool_:
        given = given.view(np.uint8) % 2 == 1
    with RecordStore.create(tmp_path / "s", {"x": field}) as store:
        store.append({"x": given[0]})
        store.extend({"x": given[1:]})
        store["x"][3] = given[3]
    with RecordStore.open(tmp_path / "s") as store:
        found = store.gather(range(7))["x"]
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.shape) == (given.dtype, given.shape)
        assert found.tobytes() == given.tobytes()
        for row in range(7):
            assert np.asarray(store["x"][row]).tobytes() == given[row].tobytes()


def test_names_may_be_any_text(tmp_path: Path) -> None:
    names = ["/camera/left", ".hidden", "100%", "ünï", "a b\n", "..", "x" * 200, "%2F", "A", "a"]
    with RecordStore.create(tmp_path / "s", {name: Field("str") for name in names}) as store:
        store.append({name: name for name in names})
        store[0] = {name: name * 2 for name in names}  # so that tables are written
    with RecordStore.open(tmp_path / "s") as store:
        assert store[0] == {name: name * 2 for name in names}
        assert [store[name][0] for name in names] == [name * 2 for name in names]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 201, "ü" * 101, "\ud800"])
def test_invalid_names_raise(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidError):
        RecordStore.create(tmp_path / "s", {name: Field("i4")})
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, InvalidError),
        ({1: Field("i4")}, InvalidTypeError),
        ({"x": "i4"}, InvalidTypeError),
        ({"x": np.int64}, InvalidTypeError),
        (["x"], InvalidTypeError),
        ({"x": Field("str", (2,))}, InvalidError),
        ({"x": Field("json", ragged=True)}, InvalidError),
        ({"x": Field("i4", (0,), ragged=True)}, InvalidError),
        ({"x": Field("i4", level=3)}, InvalidError),
        ({"x": Field("i4", codec="zstd", level=99)}, InvalidError),
        ({"x": Field("i4", (1 << 40,))}, ValueError),
        ({"x": Field([("a", ml_dtypes.bfloat16)])}, InvalidTypeError),
        ({"x": Field("datetime64")}, InvalidTypeError),
        ({"x": Field("m8", ragged=True)}, InvalidTypeError),
        ({"x": Field([("a", "i4"), ("b", "M8", (2,))])}, InvalidTypeError),
        (
            {"x": Field(np.dtype({"names": "ab", "formats": ["i4"] * 2, "offsets": [0, 2]}))},
            InvalidTypeError,
        ),
    ],
    ids=str,
)
def test_invalid_fields_raise(tmp_path: Path, fields: Any, error: type) -> None:
    with pytest.raises(error):
        RecordStore.create(tmp_path / "s", fields)
    assert not (tmp_path / "s").exists()


def test_hint_shows_how_to_describe_a_field(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        RecordStore.create(tmp_path / "s", {"x": "float32"})  # type: ignore[dict-item]
    assert caught.value.hint == "pass relive.Field('float32')"


def test_time_dtypes_need_a_unit(tmp_path: Path) -> None:
    for kind in ("datetime64", "timedelta64"):
        with pytest.raises(InvalidTypeError, match=r"'x'.*has no time unit") as caught:
            RecordStore.create(tmp_path / "s", {"x": Field(kind)})
        assert f'Field("{kind}[us]")' in str(caught.value.hint)
        store = RecordStore.create(tmp_path / kind, {"x": Field(f"{kind}[us]")})
        with store, pytest.raises(InvalidTypeError, match="has no time unit"):
            store.add_field("y", Field(kind))
    # Arrays in memory need no unit.
    times = np.array([1, 2], "m8")
    assert np.array_equal(np.asarray(ArraySource(times).gather([1])["data"]), times[1:])
    with pytest.raises(InvalidTypeError, match="has no time unit"):
        convert(times, tmp_path / "converted")


def test_unknown_dtype_raises() -> None:
    name, _, *rest = spec_of("x", Field("i4"))
    for dtype in ('"<q9"', "7", "[[1]]", '{"a": 1}', '"nothing"', '[["a"]]', '"<f8"'):
        with pytest.raises(CorruptError, match="field 'x'"):
            field_of((name, dtype, *rest))  # type: ignore[arg-type]


def test_missing_ml_dtypes_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("x", Field("float8_e4m3"))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr(np, "dtype", np.dtype)
    with pytest.raises((UnsupportedError, CorruptError)) as caught:
        field_of((spec[0], '"float8_unheard_of"', *spec[2:]))
    assert "ml_dtypes" in str(caught.value.hint)
