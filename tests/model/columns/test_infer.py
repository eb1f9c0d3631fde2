"""Fields are inferred from values, and values that do not fit raise."""

import re
from typing import Any

import numpy as np
import pytest

from relive.bridge import infer_fields
from relive.errors import InvalidError, InvalidTypeError
from relive.model.columns.cast import cast_column
from relive.model.ragged import Ragged
from relive.model.schema import Field

CASES: dict[str, tuple[list[Any], Field]] = {
    "bytes": ([b"a", bytearray(b"b"), memoryview(b"c")], Field("bytes")),
    "text": (["a", None, "b"], Field("str")),
    "integers": ([1, 2], Field(np.int64)),
    "booleans": ([True, False], Field(np.bool_)),
    "integers and floats": ([1, 2.5], Field(np.float64)),
    "scalars": ([np.float32(1), np.float32(2)], Field(np.float32)),
    "arrays of one shape": ([np.zeros((2, 3)), np.ones((2, 3))], Field(np.float64, (2, 3))),
    "lists of one length": ([[1, 2], [3, 4]], Field(np.int64, (2,))),
    "lists of any length": ([[1, 2], [], [3]], Field(np.int64, ragged=True)),
    "arrays that vary in the first dimension": (
        [np.zeros((2, 3)), np.zeros((4, 3))],
        Field("f8", 3, ragged=1),
    ),
    "arrays that vary in later dimensions": (
        [np.zeros((2, 3)), np.zeros((2, 4))],
        Field("f8", ragged=2),
    ),
    "images": (
        [np.zeros((2, 3, 3), np.uint8), np.zeros((5, 4, 3), np.uint8)],
        Field(np.uint8, (3,), ragged=2),
    ),
    "dicts": ([{"a": 1}, {"b": [1]}], Field("json")),
    "lists of texts": ([["a"], [], ["b", "c"]], Field("json")),
    "lists of uneven length": ([[[1], [2, 3]], [[1]]], Field("json")),
    "lists and dicts": ([[1, 2], {"a": 1}], Field("json")),
    "nothing": ([None, None], Field("json")),
    "dates": ([np.datetime64("2026-01-01"), np.datetime64("2026-01-02")], Field("M8[D]")),
}


@pytest.mark.parametrize(("values", "field"), CASES.values(), ids=CASES)
def test_fields_are_inferred(values: list[Any], field: Field) -> None:
    assert infer_fields([{"x": value} for value in values]) == {"x": field}


@pytest.mark.parametrize(("values", "field"), CASES.values(), ids=CASES)
def test_values_fit_the_inferred_fields(values: list[Any], field: Field) -> None:
    column = cast_column("x", field, values, 0)
    assert len(column) == len(values)
    for given, kept in zip(values, column, strict=True):
        if given is None or isinstance(given, str | bytes | dict):
            assert kept == given
        elif isinstance(given, bytearray | memoryview):
            assert kept == bytes(given)
        else:
            assert np.asarray(kept, object).tolist() == np.asarray(given, object).tolist()


def test_names_are_in_order_of_appearance() -> None:
    fields = infer_fields([{"b": 1}, {"a": "x", "b": 2}, {"c": b""}])
    assert list(fields) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None, "a"], "row 2: field 'x' is text, but earlier rows have a single int64"),
        ([b"a", 1], "row 1: field 'x' is a single int64, but earlier rows have bytes"),
        ([[1], [[1]]], "row 1: field 'x' has 2 dimensions, but earlier rows have 1"),
        (
            [np.datetime64("2026"), 1.5],
            "row 1: field 'x' is float64, but earlier rows have datetime64[Y]",
        ),
        ([object()], "row 0: field 'x' is an object, which cannot be stored"),
        ([Ragged.from_list([[1]])], "row 0: field 'x' is a Ragged, which cannot be stored"),
    ],
)
def test_conflicting_values_are_named(values: list[Any], message: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(message)) as caught:
        infer_fields([{"x": value} for value in values])
    assert caught.value.hint is not None
    assert "fields={'x': Field(...)}" in caught.value.hint


def test_rows_must_be_dicts_with_string_keys() -> None:
    with pytest.raises(InvalidTypeError, match="row 1 must be a dict, got a list"):
        infer_fields([{"a": 1}, [1]])  # type: ignore[list-item]
    with pytest.raises(InvalidTypeError, match=r"row 0: a field name must be .* string, got 3"):
        infer_fields([{3: 1}])  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("field", "value", "trouble", "holds_both"),
    [
        (Field("i8", (2,)), [1, 2, 3], "has the shape (3,)", "Field('int64', ragged=True)"),
        (Field("u1", (2, 3)), np.zeros((2, 4), "u1"), "(2, 4)", "Field('uint8', ragged=2)"),
        (Field("f4", (2,)), np.zeros((3,), "f8"), "(3,)", "Field('float64', ragged=True)"),
        (Field("i8"), 1.5, "is float64", "Field('float64')"),
        (Field("u1"), 300, "is int64", "Field('int64')"),
        (Field("i8"), "a", "is <U1", 'Field("json")'),
        (Field("i8"), object(), "is object", 'Field("json")'),
        (Field("i8"), [[1], [2, 3]], "is a list", 'Field("json")'),
        (Field("bytes"), "a", "is a str", 'Field("json")'),
        (Field("str"), 1, "is an int", 'Field("json")'),
        (Field("str"), b"\xff", "is bytes that are not UTF-8", 'Field("json")'),
        (Field("json"), {1j}, "is not JSON-serializable", 'Field("json")'),
        (Field("json"), float("nan"), "is not JSON-serializable", 'Field("json")'),
    ],
)
def test_later_row_that_does_not_fit_is_named(
    field: Field, value: Any, trouble: str, holds_both: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        cast_column("x", field, [None, value], 40)
    assert caught.value.message.startswith("row 41: field 'x' ")
    assert trouble in caught.value.message
    assert repr(field) in caught.value.message
    assert caught.value.hint == f"use a type that can hold all rows: fields={{'x': {holds_both}}}"


def test_numbers_are_converted_only_without_loss() -> None:
    assert cast_column("x", Field("u1"), [3, np.int64(255)], 0).tolist() == [3, 255]  # type: ignore[union-attr]
    assert cast_column("x", Field("f4"), [1, 2.5], 0).dtype == np.float32  # type: ignore[union-attr]
    assert cast_column("x", Field("i8"), [[7], 8], 0).tolist() == [7, 8]  # type: ignore[union-attr]
    assert cast_column("x", Field("str"), [b"caf\xc3\xa9"], 0) == ["café"]


def test_columns_without_rows() -> None:
    assert cast_column("x", Field("f4", (2,)), [], 0).shape == (0, 2)  # type: ignore[union-attr]
    assert len(cast_column("x", Field("f4", ragged=True), [], 0)) == 0
    assert cast_column("x", Field("str"), [], 0) == []
