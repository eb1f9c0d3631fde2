"""Columns of infos: every value of every info, or a mask that says which lack it."""

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relive.bridge.infos import InfoColumns

numbers = st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(width=32)
leaves = st.none() | numbers | st.text(max_size=3) | st.lists(numbers, max_size=2)
infos = st.dictionaries(
    st.sampled_from("abc"),
    leaves | st.dictionaries(st.sampled_from("xy"), leaves, max_size=2),
    max_size=3,
)


def value_at(column: Any, place: int) -> Any:
    if isinstance(column, dict):
        return {key: value_at(inner, place) for key, inner in column.items()}
    value = column[place]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def has(columns: dict[str, Any], key: str, place: int) -> bool:
    return bool(f"_{key}" not in columns or columns[f"_{key}"][place])


def assert_found(columns: dict[str, Any], info: dict[str, Any], place: int) -> None:
    """Compare one info with what the columns have of it."""
    keys = {key for key in columns if key[:1] != "_"}
    assert {key for key in keys if has(columns, key, place)} >= info.keys() & keys
    for key, value in info.items():
        if key not in columns:  # dicts that are always empty
            assert value == {}
            continue
        column = columns[key]
        if isinstance(column, dict):
            assert_found(column, value, place)
        elif isinstance(column, list):
            found = column[place]
            if not (isinstance(value, str) and found == value):  # as it is, or as JSON
                assert json.dumps(json.loads(found)) == json.dumps(value)
        else:
            assert np.array_equal(column[place], np.asarray(value), equal_nan=True)
    for key in keys - info.keys():
        assert not has(columns, key, place)


@given(st.lists(infos, min_size=1, max_size=6), st.integers(1, 6))
def test_columns_have_every_value_in_parts_too(steps: list[Any], size: int) -> None:
    columns = InfoColumns()
    columns.add(steps)
    whole = columns.columns(steps)
    for place, info in enumerate(steps):
        assert_found(whole, info, place)
    for start in range(0, len(steps), size):
        part = columns.columns(steps[start : start + size])
        assert part.keys() == whole.keys()
        for key, column in part.items():
            one, other = value_at(column, 0), value_at(whole[key], start)
            assert json.dumps(one) == json.dumps(other)
            if isinstance(column, np.ndarray):
                assert column.dtype == whole[key].dtype


def test_a_reset_needs_no_mask() -> None:
    columns = InfoColumns()
    columns.add([{"seed": 3}], steps=False)
    columns.add([{"lives": 2, "speed": 0.5}, {"lives": 1, "speed": 1.0}])
    made = columns.columns([{"seed": 3}, {"lives": 2, "speed": 0.5}, {"lives": 1, "speed": 1.0}])
    assert [*made] == ["seed", "_seed", "lives", "speed"]
    assert made["lives"].tolist() == [0, 2, 1]
    assert np.isnan(made["speed"][0])
    assert made["_seed"].tolist() == [True, False, False]


def test_a_key_with_an_underscore_stays() -> None:
    columns = InfoColumns()
    steps: list[dict[str, Any]] = [{"a": 1, "_a": "mine"}, {"_a": "too"}]
    columns.add(steps)
    made = columns.columns(steps)
    assert (made["a"].tolist(), made["_a"]) == ([1, 0], ["mine", "too"])


def test_values_of_migrated_runs_are_json_with_their_markers() -> None:
    infos = [
        {"pair": (1, 2), "seen": {3}, "raw": [b"\0"], "at": [datetime(2024, 5, 1, tzinfo=UTC)]},
        {"pair": (3, 4), "seen": {3}, "raw": [b"\0"], "at": [datetime(2024, 5, 1, tzinfo=UTC)]},
    ]
    columns = InfoColumns()
    columns.add(infos)
    made = columns.columns(infos)
    assert made["pair"].tolist() == [[1, 2], [3, 4]]
    assert made["seen"] == ['{"__type__": "set", "data": [3]}'] * 2
    assert made["raw"] == ['[{"__type__": "bytes", "data": "AA=="}]'] * 2
    assert made["at"] == ['[{"__type__": "datetime", "value": "2024-05-01T00:00:00+00:00"}]'] * 2
