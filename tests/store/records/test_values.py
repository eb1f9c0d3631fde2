"""Values accepted by a record store; values that would not round-trip are refused."""

import json
from collections import OrderedDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relive import Field, Ragged, RecordStore
from relive.errors import InvalidError, InvalidTypeError, UnknownFieldError


def kept(path: Path, field: Field, *values: Any) -> Any:
    """Return values read from a store: appended one by one, and all at once."""
    with RecordStore.create(path, {"x": field}) as store:
        for value in values:
            store.append({"x": value})
        appended = store.gather(range(len(values)))["x"]
        store.extend({"x": list(values)})
        extended = store.gather(range(len(values), 2 * len(values)))["x"]
    for one, other in zip(appended, extended, strict=True):
        np.testing.assert_array_equal(one, other)
    return appended


@pytest.mark.parametrize(
    ("dtype", "values", "wanted"),
    [
        ("i4", [3, True, np.int64(-4), np.uint8(5), np.array(6), np.array(7, ">i2")], None),
        ("u1", [0, 255, np.int64(7), np.bool_(1)], None),
        ("u8", [0, 2**64 - 1, np.uint64(2**63)], None),
        ("i8", [-(2**63), 2**63 - 1, np.int8(-1)], None),
        ("i1", [-128, 127], None),
        ("f8", [1, 1.5, np.float32(0.5), np.float16(2), 2**60, True, np.inf], None),
        ("f4", [1, 0.1, np.float64(0.1), 1e38, -np.inf, 2**60], None),
        ("f2", [1, 0.5, 65504.0], None),
        ("?", [True, False, np.True_, np.array([True])[0]], None),
        ("c8", [1j, 1, 0.5, np.complex128(2)], None),
        (">i4", [1, -1, np.int32(7)], None),
        ("S3", [b"ab", b"abc", np.bytes_(b"x")], None),
        ("U3", ["ab", "äöü", np.str_("x")], None),
        ("M8[s]", ["2020-01-01", np.datetime64("2021-01-01", "ns"), np.datetime64("NaT")],
         ["2020-01-01", "2021-01-01", "NaT"]),
        ("m8[s]", [np.timedelta64(3, "m"), np.timedelta64(5, "s")], None),
        ([("a", "i4"), ("b", "f8")], [(1, 2.5), np.array((3, 4.0), "i4,f8").astype(
            [("a", "i4"), ("b", "f8")])], None),
        (ml_dtypes.bfloat16, [1, 0.5, ml_dtypes.bfloat16(2), np.float32(3)], None),
        (ml_dtypes.int4, [-8, 7, np.int64(3)], None),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_fit_are_accepted(
    tmp_path: Path, dtype: Any, values: Any, wanted: Any
) -> None:
    found = kept(tmp_path / "s", Field(dtype), *values)
    expected = [np.asarray(value, Field(dtype).dtype) for value in wanted or values]
    assert found.dtype == Field(dtype).dtype
    np.testing.assert_array_equal(found, np.array(expected, Field(dtype).dtype))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i4", 2**31),
        ("i4", -(2**31) - 1),
        ("i4", np.int64(2**31)),
        ("u1", -1),
        ("u1", 256),
        ("u8", -1),
        ("u8", 2**64),
        ("i8", 2**63),
        ("i8", 2**70),
        ("i8", np.uint64(2**63)),
        ("i4", 1.0),
        ("i4", np.float32(1)),
        ("i4", "1"),
        ("i4", b"1"),
        ("i4", 1j),
        ("?", 1),
        ("?", 0.0),
        ("f4", 1e300),
        ("f2", 70000.0),
        ("f4", "0.5"),
        ("f8", 1j),
        ("f8", object),
        ("f8", np.datetime64("2020-01-01")),
        ("S3", b"abcd"),
        ("S3", "abc"),
        ("U3", "abcd"),
        ("U3", 12),
        ("M8[s]", np.datetime64(1, "ns")),
        ("M8[s]", 5.5),
        ("m8[s]", 5),
        (ml_dtypes.bfloat16, 1e300),
        (ml_dtypes.bfloat16, np.float32(3.4e38)),
        (ml_dtypes.float8_e4m3fn, 500.0),
        (ml_dtypes.float8_e4m3fn, np.float32(1000)),
        (ml_dtypes.float8_e4m3fn, 100_000),
        (ml_dtypes.float8_e5m2, 1e6),
        (ml_dtypes.float8_e8m0fnu, -1.0),
        (ml_dtypes.int4, 8),
        (ml_dtypes.int4, 1.5),
        ([("a", "i4")], 1.5),
        ([("a", "i4")], (1.5,)),
        ([("a", "i4")], (1, 2)),
        ([("a", "i4", (2,))], (1,)),
        ([("a", "i4")], np.array((1.0,), [("a", "f8")])[()]),
        ("V3", b"ab"),
        ("f8", np.ma.masked_array(1.0, mask=True)),
        ("f8", [1.0]),
        ("f8", {}),
    ],
    ids=str,
)
def test_lossy_values_raise(tmp_path: Path, dtype: Any, value: Any) -> None:
    with RecordStore.create(tmp_path / "s", {"x": Field(dtype), "y": Field("i1")}) as store:
        for given in ({"x": value}, {"y": 1, "x": value}):
            with pytest.raises((InvalidError, InvalidTypeError), match="'x'"):
                store.append(given)
        with pytest.raises((InvalidError, InvalidTypeError), match="'x'") as caught:
            store.extend([{"y": 1}, {"x": value}])
        assert any("row 1" in note for note in getattr(caught.value, "__notes__", ["row 1"]))
        assert len(store) == 0


def test_arrays_that_fit_are_accepted(tmp_path: Path) -> None:
    field = Field("f4", (2, 3))
    plain = np.arange(6, dtype="f4").reshape(2, 3)
    given = [
        plain,
        plain.astype("f8"),
        plain.astype("i2"),
        plain.tolist(),
        np.asfortranarray(plain),
        np.repeat(plain, 2, axis=1)[:, ::2],
        plain.astype(">f4"),
        np.memmap(tmp_path / "m", "f4", "w+", shape=(2, 3)),
    ]
    given[-1][...] = plain  # type: ignore[index]
    found = kept(tmp_path / "s", field, *given)
    np.testing.assert_array_equal(found, np.broadcast_to(plain, (8, 2, 3)))


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (1, 2, 3), (2, 4), (), (0,)])
def test_arrays_of_other_shapes_raise(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with RecordStore.create(tmp_path / "s", {"x": Field("f4", (2, 3))}) as store:
        with pytest.raises(InvalidError, match=r"'x'.*\(2, 3\)"):
            store.append({"x": np.zeros(shape, "f4")})
        with pytest.raises(InvalidError, match="'x'"):
            store.extend({"x": np.zeros((4, *shape), "f4")})


def test_ragged_rows_of_any_length(tmp_path: Path) -> None:
    values = [np.arange(4, dtype="i4"), [1, 2], np.arange(3), [], np.zeros(0, "i4"), (7,)]
    found = kept(tmp_path / "s", Field("i4", ragged=True), *values)
    assert isinstance(found, Ragged)
    assert [row.tolist() for row in found] == [np.asarray(value).tolist() for value in values]
    inner = kept(tmp_path / "t", Field("f4", (2,), ragged=True), [[1, 2]], [], np.ones((3, 2)))
    assert [row.shape for row in inner] == [(1, 2), (0, 2), (3, 2)]


def test_ragged_rows_of_several_dimensions(tmp_path: Path) -> None:
    values = [np.ones((2, 3, 1), "f4"), np.zeros((0, 5, 1), "f4"), np.full((1, 1, 1), 7.0)]
    found = kept(tmp_path / "s", Field("f4", (1,), ragged=2), *values)
    assert isinstance(found, Ragged)
    assert [row.shape for row in found] == [(2, 3, 1), (0, 5, 1), (1, 1, 1)]
    for one, other in zip(found, values, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (Field("i4", ragged=True), 3),
        (Field("i4", ragged=True), [[1]]),
        (Field("i4", (2,), ragged=True), np.zeros((2, 3), "i4")),
        (Field("i4", (2,), ragged=True), np.zeros(2, "i4")),
        (Field("i4", ragged=2), np.zeros(2, "i4")),
        (Field("i4", ragged=2), [[1], [2, 3]]),
        (Field("i4", ragged=True), [1.5]),
    ],
    ids=str,
)
def test_ragged_rows_that_do_not_fit_raise(tmp_path: Path, field: Field, value: Any) -> None:
    with (
        RecordStore.create(tmp_path / "s", {"x": field}) as store,
        pytest.raises((InvalidError, InvalidTypeError), match="'x'"),
    ):
        store.append({"x": value})


def test_bytes_and_text(tmp_path: Path) -> None:
    given = [b"", b"a\0b", bytearray(b"xy"), memoryview(b"z"), np.array([1, 2], np.uint8)]
    found = kept(tmp_path / "b", Field("bytes"), *given)
    assert found.dtype == object
    assert found.tolist() == [b"", b"a\0b", b"xy", b"z", b"\x01\x02"]
    texts = ["", "häh 🎉", np.str_("n\0l")]
    assert kept(tmp_path / "t", Field("str"), *texts).tolist() == texts
    with RecordStore.open(tmp_path / "b", "a") as store:
        for bad in ("text", 3, [1], np.zeros(2)):
            with pytest.raises(InvalidTypeError, match="must be bytes"):
                store.append({"x": bad})
    with RecordStore.open(tmp_path / "t", "a") as store:
        for wrong in (b"bytes", 3, ["a"]):
            with pytest.raises(InvalidTypeError, match="must be a str"):
                store.append({"x": wrong})
        with pytest.raises(InvalidError, match="UTF-8"):
            store.append({"x": "\ud800"})


JSON = [
    {"a": [1, 2.5, None, True], "b": {"c": "ü"}},
    [],
    {},
    "",
    "text",
    0,
    False,
    -1.5,
    2**80,
    [[[]]],
    "\ud800",
]


def test_json(tmp_path: Path) -> None:
    assert kept(tmp_path / "s", Field("json"), *JSON).tolist() == JSON
    numbers = {"a": np.float32(0.5), "b": [np.int64(3), np.True_]}
    assert kept(tmp_path / "n", Field("json"), numbers)[0] == {"a": 0.5, "b": [3, True]}
    with RecordStore.open(tmp_path / "n", "a") as store:
        assert store.append({"x": (1, 2)}) == 2
        assert store[2]["x"] == [1, 2]
        for bad in (float("nan"), [float("inf")], {"a": -np.inf}, np.float64("nan")):
            with pytest.raises(InvalidError, match="JSON"):
                store.append({"x": bad})
        for wrong in (b"x", {1}, object(), {(1, 2): 3}, np.zeros(2)):
            with pytest.raises(InvalidTypeError, match="JSON"):
                store.append({"x": wrong})
        circle: list[Any] = []
        circle.append(circle)
        with pytest.raises(InvalidError, match="JSON"):
            store.append({"x": circle})


def test_json_is_stored_as_compact_utf8(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", {"x": Field("json")}) as store:
        store.append({"x": {"a": ["ü", None]}})
        store.flush()
        (chunk,) = [
            data for path in (tmp_path / "s" / "chunk").glob("*.zr") if (data := path.read_bytes())
        ]
    text = '{"a":["ü",null]}'
    assert text.encode() in chunk
    assert json.loads(text) == {"a": ["ü", None]}


def test_none_is_a_missing_value_in_any_field(tmp_path: Path) -> None:
    fields = {"a": Field("f4", (2,)), "b": Field("str"), "c": Field("json"),
              "d": Field("i4", ragged=True), "e": Field("f8", ragged=2), "f": Field("bytes"),
              "g": Field("i4", codec="zstd")}  # fmt: skip
    with RecordStore.create(tmp_path / "s", fields) as store:
        store.append(dict.fromkeys(fields))
        store.append({})
        store.extend({"b": [None, "x"], "a": None})
        for name in fields:
            assert store.missing(name).tolist() == [True, True, True, name != "b"]
        row = store[0]
        assert row["a"].tolist() == [0, 0]
        assert (row["b"], row["c"], row["f"], row["g"]) == ("", None, b"", 0)
        assert (row["d"].shape, row["e"].shape) == ((0,), (0, 0))


def test_empty_values_are_not_missing(tmp_path: Path) -> None:
    fields = {"b": Field("bytes"), "s": Field("str"), "r": Field("i4", ragged=True),
              "z": Field("i4", (0,))}  # fmt: skip
    with RecordStore.create(tmp_path / "s", fields) as store:
        store.append({"b": b"", "s": "", "r": [], "z": []})
        for name in fields:
            assert not store.missing(name)[0]


def test_records_may_be_any_mapping(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", {"x": Field("i4")}) as store:
        store.append(OrderedDict(x=1))
        store.append(MappingProxyType({"x": 2}))
        store[0] = MappingProxyType({"x": 3})
        assert store["x"][:].tolist() == [3, 2]
        for wrong in ([1], 3, None, "x", [("x", 1)]):
            with pytest.raises(InvalidTypeError, match="a record must be a dict"):
                store.append(wrong)  # type: ignore[arg-type]


def test_unknown_field_name_raises(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", {"image": Field("i4"), "label": Field("i4")}) as store:
        store.append({"label": 1})
        calls: list[Any] = [
            lambda: store.append({"image": 1, "lable": 2}),
            lambda: store.extend({"lable": [2]}),
            lambda: store.extend([{"label": 1}, {"lable": 2}]),
            lambda: store.__setitem__(0, {"lable": 2}),
            lambda: store["lable"],
            lambda: store.missing("lable"),
            lambda: store.drop_field("lable"),
        ]
        for call in calls:
            with pytest.raises(UnknownFieldError, match="unknown field 'lable'") as caught:
                call()
            assert caught.value.hint == "did you mean 'label'?"
        assert store["label"][:].tolist() == [1]
        with pytest.raises(UnknownFieldError):
            store.append({1: 2})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "value", [{1: 0, "1": 1}, [{"a": ({True: 0, "true": 1},)}], {None: 0, "null": 1}, {"a": {1}}]
)
def test_json_that_would_lose_a_value_is_refused(value: Any, tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "store", {"a": Field("json")}) as store:
        with pytest.raises(InvalidTypeError, match="is not JSON-serializable"):
            store.append({"a": value})
        store.append({"a": {1: [0], "b": {"c": None}}})
        assert [record["a"] for record in store] == [{"1": [0], "b": {"c": None}}]
