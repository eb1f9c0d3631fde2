"""Statics round-trip: JSON values and bytes."""

import enum
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.episodes.meta import read_statics, write_statics
from relive.errors import CorruptError, InvalidError
from relive.model.episode import check_json, check_static, decode_statics, encode_statics

KEYS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["$bytes", "$$bytes", "$$$bytes", "$", "bytes", "$bytes "]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


class Colour(enum.IntEnum):
    RED = 1


@given(st.dictionaries(KEYS, VALUES))
def test_any_statics_round_trip(statics: dict[str, Any]) -> None:
    checked = {name: check_static(name, value) for name, value in statics.items()}
    assert checked == statics
    written = json.loads(json.dumps(encode_statics(checked), allow_nan=False))
    assert decode_statics(written) == statics


def test_bytes_are_written_as_base64() -> None:
    assert encode_statics({"key": b"\x00\xff"}) == {"key": {"$bytes": "AP8="}}
    assert encode_statics({"$bytes": {"$bytes": "x"}}) == {"$$bytes": {"$$bytes": "x"}}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (np.float32(0.5), 0.5),
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(1), True),
        (np.str_("a"), "a"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (Colour.RED, 1),
        ({"a": None}, {"a": None}),
    ],
)
def test_values_are_converted_to_json_types(value: object, plain: object) -> None:
    found = check_static("x", value)
    assert found == plain
    assert type(found) is type(plain)


HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("inf")],
        {1, 2},
        np.zeros(3),
        {"a": np.zeros(3)},
        {1: "a"},
        {None: 1},
        object(),
        1j,
        np.datetime64("2020-01-01"),
        np.timedelta64(1, "s"),
        "\ud800",
        {"\ud800": 1},
        HOLDS_ITSELF,
        Path("a"),
    ],
)
def test_values_that_are_not_json_serializable(value: object) -> None:
    with pytest.raises(InvalidError, match="task"):
        check_static("task", value)


def test_message_names_the_position_of_the_value() -> None:
    with pytest.raises(InvalidError, match=r"task\['a'\]\[1\] is nan"):
        check_static("task", {"a": [1, float("nan")]})


def test_attributes_cannot_contain_bytes() -> None:
    with pytest.raises(InvalidError, match="bytes"):
        check_json("key", b"a")


def test_stored_value_is_a_copy() -> None:
    given = {"a": [1]}
    kept = check_static("x", given)
    given["a"].append(2)
    assert kept == {"a": [1]}


def test_file_is_replaced_atomically(tmp_path: Path) -> None:
    assert read_statics(tmp_path) == {}
    write_statics(tmp_path, {"a": 1})
    write_statics(tmp_path, {"a": 1, "b": b"\xff"})
    assert read_statics(tmp_path) == {"a": 1, "b": b"\xff"}
    assert [path.name for path in tmp_path.iterdir()] == ["static.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "\ufeff{}x"])
def test_damage_is_reported(text: str, tmp_path: Path) -> None:
    (tmp_path / "static.json").write_text(text)
    with pytest.raises(CorruptError, match=r"static\.json"):
        read_statics(tmp_path)


def test_objects_of_other_programs_are_not_changed() -> None:
    assert decode_statics({"a": {"$bytes": 5}}) == {"a": {"$bytes": 5}}
    assert decode_statics({"a": {"$bytes": "no base64!"}}) == {"a": {"$bytes": "no base64!"}}
    assert decode_statics({"a": {"$bytes": "AA==", "b": 1}}) == {"a": {"$bytes": "AA==", "b": 1}}


def test_messages_have_the_right_articles() -> None:
    with pytest.raises(InvalidError, match="is an ndarray, which is not JSON-serializable"):
        check_static("a", np.zeros(2))
