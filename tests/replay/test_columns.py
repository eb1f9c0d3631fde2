"""Nested values of a step: their leaves, the names of these, and how they are stored."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.errors import CorruptError, InvalidError, InvalidTypeError
from relive.replay.columns import (
    ColumnSpec,
    as_leaf,
    chunk_rows,
    flatten,
    leaf_name,
    row_of,
    unflatten,
)

LEAVES = st.integers(-5, 5).map(np.int64)
KEYS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(KEYS, inner, min_size=1) | st.lists(inner, min_size=1).map(tuple),
    max_leaves=10,
)


def test_leaves_are_named_by_their_keys() -> None:
    value = {"image": np.zeros((2, 2)), "a.b/c%": (1, {"x": True}), "empty": {}}
    leaves = flatten("observations", value)
    assert [(leaf.name, leaf.keys) for leaf in leaves] == [
        ("observations.image", ("image",)),
        ("observations.a%2Eb%2Fc%25.0", ("a.b/c%", 0)),
        ("observations.a%2Eb%2Fc%25.1.x", ("a.b/c%", 1, "x")),
    ]
    spec = ColumnSpec("observations", leaves[2].keys, "|b1", (), 16)
    assert (spec.name, spec.path) == (leaves[2].name, "observations/a%2Eb%2Fc%25/1/x")


@given(NESTED)
def test_what_was_flattened_is_put_together_again(value: Any) -> None:
    leaves = flatten("o", value)
    assert len({leaf.name for leaf in leaves}) == len(leaves)
    assert unflatten((leaf.keys, leaf.array) for leaf in leaves) == value


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_keys_have_different_names(one: str, other: str) -> None:
    names = {leaf_name("o", (one, other)), leaf_name("o", (other, one)), leaf_name("o", (one,))}
    assert len(names) == (2 if one == other else 3)


def test_rows_of_nested_values() -> None:
    value = {"a": np.arange(3), "b": (np.arange(6).reshape(3, 2), {"c": [7, 8, 9]})}
    found = row_of(value, 1)
    assert found["a"] == 1
    assert found["b"][0].tolist() == [2, 3]
    assert found["b"][1] == {"c": 8}


def test_values_that_are_not_numbers_are_refused() -> None:
    texts = ("text", np.array(["a"]), np.array([{}]), np.longdouble(1))
    for value in (*texts, None, object(), [[1], [1, 2]]):
        with pytest.raises(InvalidTypeError, match=r"`observations\.x`"):
            flatten("observations", {"x": value})
    for key in (1, "", None, "a\0b"):
        with pytest.raises(InvalidTypeError, match="keys"):
            flatten("observations", {key: 1})


def test_keys_are_valid_text() -> None:
    with pytest.raises(InvalidError, match="a key of `observations`"):
        flatten("observations", {"\ud800": 1})


def test_arrays_are_little_endian_and_contiguous() -> None:
    big = np.arange(6, dtype=">f4").reshape(2, 3)
    array = as_leaf("x", big.T)
    assert array.dtype.str == "<f4"
    assert array.flags.c_contiguous
    np.testing.assert_array_equal(array, big.T)
    assert as_leaf("x", 3).shape == ()
    mine = np.zeros(3)
    assert as_leaf("x", mine) is mine


def test_description_of_a_column_is_read_again() -> None:
    spec = ColumnSpec("frames", (), "|u1", (210, 160, 3), 16, "zstd", 1, stack="last")
    assert ColumnSpec.from_json(spec.to_json(), "run") == spec
    for damaged in ("", "{}", "[]", '{"field": "x"}', spec.to_json().replace("shape", "shapes")):
        with pytest.raises(CorruptError, match="'run'"):
            ColumnSpec.from_json(damaged, "run")
    spec.check(np.zeros((210, 160, 3), np.uint8))
    for wrong in (np.zeros((210, 160), np.uint8), np.zeros((210, 160, 3), np.int8)):
        with pytest.raises(InvalidError, match="frames"):
            spec.check(wrong)


def test_chunks_have_about_two_mebibytes() -> None:
    assert chunk_rows(210 * 160 * 3) == 16
    assert chunk_rows(84 * 84) == 256
    assert chunk_rows(8) == 4096
    assert chunk_rows(0) == 4096
    assert chunk_rows(1 << 30) == 1
