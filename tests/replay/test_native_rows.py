"""Rows of steps, their checksums and their text, against the same in plain Python."""

import json
import math
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relive._native import Step, StepArrays, StepRows, crc32c, json_crc, plain_json, timestamp
from relive.errors import UnsupportedError
from relive.replay.storage import schema
from relive.replay.storage.tables import STEPS, EpisodeRow, insert_steps, rows_checksum
from relive.replay.writing.steps import End

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(codec=None, exclude_categories=[]))  # surrogates too
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def python_crc(name: str, values: Any) -> int:
    text = json.dumps([name, *values], separators=(",", ":"), ensure_ascii=False, default=repr)
    return crc32c(text.encode("utf-8", "surrogatepass"))


@given(st.lists(SCALARS | st.tuples(SCALARS, SCALARS) | st.lists(SCALARS)))
@example([1e16, 1e-5, 0.0001, 123456789012345680.0, -0.0, 5e-324, 1.7976931348623157e308])
@example(['\x7f\x00\x1f"\\\n\r\t\b\f', "\ud800", np.float64(0.1), 1 << 70])
def test_checksum_of_values(values: list[Any]) -> None:
    assert json_crc("table", values) == python_crc("table", values)


@given(st.lists(st.floats(width=32), min_size=100, max_size=200))
def test_checksum_of_short_floats(values: list[float]) -> None:
    """Texts that are as near as others are frequent among them."""
    assert json_crc("table", values) == python_crc("table", values)


@given(st.dictionaries(TEXT, SCALARS))
@example({"lives": 3, "frame_number": 12, "x": 0.1, "y": math.nan, "done": False, "s": "a b"})
@example({})
def test_plain_json(values: dict[str, Any]) -> None:
    found = plain_json(values)
    if found is not None:
        assert found == json.dumps(values)
    needs_escapes = any(
        isinstance(text, str) and json.dumps(text) != f'"{text}"'
        for text in (*values, *values.values())
    )
    is_plain = all(
        value is None
        or type(value) in {bool, float, str}
        or (type(value) is int and -(1 << 63) <= value < 1 << 63)
        for value in values.values()
    )
    assert (found is not None) == (is_plain and not needs_escapes)


@pytest.mark.parametrize(
    "values", [{1: 2}, {"a": np.int64(1)}, {"a": [1]}, {"a": {}}, {"a": np.float64(0.5)}]
)
def test_json_that_is_not_plain(values: dict[Any, Any]) -> None:
    assert plain_json(values) is None


@given(INT64)
@example(0)
@example(-1)
def test_timestamp(ts_ns: int) -> None:
    when = EPOCH + timedelta(microseconds=ts_ns // 1000)
    assert timestamp(ts_ns) == when.isoformat(timespec="microseconds")


PRESENT = st.sampled_from([(), ("frames",), ("observations", "actions"), ("actions", "frames")])
FLOATS = st.floats(allow_nan=False).map(lambda value: value + 0.0)  # SQLite has no -0.0
ACTIONS = st.none() | INT64 | FLOATS | st.just("[1, 2]")
ROWS = st.lists(
    st.builds(
        Step,
        row=INT64,
        episode=st.builds(
            EpisodeRow, st.just("run-é"), st.text(), st.text(), INT64, st.just(0), st.none(), INT64
        ),
        step_index=INT64,
        arrays=st.just(StepArrays(0, [])),
        present=PRESENT,
        action=ACTIONS,
        has_action_ref=st.booleans(),
        reward=st.none() | st.floats(),
        terminated=st.booleans(),
        truncated=st.booleans(),
        info=st.none() | st.text(),
        ts_ns=INT64,
        end=st.none(),
        dropped=st.just(0),
        total_reward=st.just(0.0),
        nbytes=st.just(0),
    ),
    max_size=4,
    unique_by=(lambda step: step.row, lambda step: step.step_index),
)


@given(ROWS, st.integers(0, 4))
def test_rows_of_steps(steps: list[Step], cut: int) -> None:
    made = StepRows('run-"é')
    scalars: dict[str, Any] = {}
    for part in (steps[:cut], steps[cut:]):
        added = made.add(part)
        assert added.steps == len(part)
        assert added.first_row == (part[0].row if part else 0)
        assert made.values is made.values  # also between two parts
        for name, values in added.scalars.items():
            scalars[name] = np.concatenate((scalars.get(name, values[:0]), values))
    assert len(made) == len(steps)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection, ":memory:")
    insert_steps(connection, made)
    rows = connection.execute(f"SELECT {STEPS} FROM steps ORDER BY rowid").fetchall()  # noqa: S608
    connection.close()
    assert len(rows) == len(steps)
    if steps:
        assert made.checksum == rows_checksum(rows)
    for row, step in zip(rows, steps, strict=True):
        refs = [
            f'h5://run-"é/{name}/{step.row}' if is_there else None
            for name, is_there in (
                ("actions", step.has_action_ref),
                ("frames", "frames" in step.present),
                ("observations", "observations" in step.present),
            )
        ]
        reward = None if step.reward is None or math.isnan(step.reward) else step.reward + 0.0
        assert row == (
            'run-"é',
            step.episode.episode_id,
            step.step_index,
            step.episode.agent_id,
            step.row,
            step.action,
            refs[0],
            reward,
            int(step.terminated),
            int(step.truncated),
            refs[1],
            refs[2],
            step.info,
            step.ts_ns,
            timestamp(step.ts_ns),
        )
        assert [type(value) for value in row[8:10]] == [int, int]
        if row[7] == 0.0:
            assert math.copysign(1.0, row[7]) == 1.0  # never -0.0
    wanted = {
        "rewards": [math.nan if step.reward is None else step.reward for step in steps],
        "has_reward": [step.reward is not None for step in steps],
        "terminated": [step.terminated for step in steps],
        "truncated": [step.truncated for step in steps],
        "episode": [step.episode.number for step in steps],
        "step_index": [step.step_index for step in steps],
        "ts_ns": [step.ts_ns for step in steps],
    }
    assert scalars.keys() == wanted.keys()
    for name, listed in wanted.items():
        np.testing.assert_array_equal(scalars[name], listed)
    dtypes = {name: array.dtype.str for name, array in scalars.items()}
    assert {dtypes[name] for name in ("episode", "step_index", "ts_ns")} == {"<i8"}
    assert {dtypes[name] for name in ("has_reward", "terminated", "truncated")} == {"|b1"}
    assert dtypes["rewards"] == "<f8"


def test_groups_of_items() -> None:
    def item(number: int, row: int, present: tuple[str, ...]) -> Step:
        return Step(
            row=row,
            episode=rows[number],
            step_index=row,
            arrays=StepArrays(0, []),
            present=present,
            action=1,
            has_action_ref=False,
            reward=0.5,
            terminated=False,
            truncated=False,
            info=None,
            ts_ns=row,
            end=None,
            dropped=0,
            total_reward=0.0,
            nbytes=0,
        )

    rows = [EpisodeRow("run", f"episode {number}", "", number, 0, None, 0) for number in range(3)]
    both, one = ("frames", "actions"), ("actions",)
    end = End(
        rows[1], terminated=True, truncated=False, ts_ns=0, arrays=None, present=(), dropped=0
    )
    made = StepRows("run")
    added = made.add([item(0, 0, both), item(0, 1, both), item(1, 2, both), end, item(2, 3, both)])
    assert (added.steps, added.first_row, added.groups) == (4, 0, [2, 4, 5])
    assert added.present is both
    added = made.add([item(2, 4, both), item(2, 5, one)])
    assert (added.steps, added.first_row, added.groups, added.present) == (2, 4, [2], None)
    added = made.add([end])
    assert (added.steps, added.groups, added.present, len(made)) == (0, [1], None, 6)
    added = made.add([])
    assert (added.steps, added.groups, added.present) == (0, [], None)
    assert len(made.values) == 6 * len(made)


def test_sqlite_without_json() -> None:
    def without_json(action: int, _: str | None, name: str | None, *_rest: str | None) -> int:
        is_json = action == sqlite3.SQLITE_FUNCTION and name == "json_extract"
        return sqlite3.SQLITE_DENY if is_json else sqlite3.SQLITE_OK

    connection = sqlite3.connect(":memory:")
    schema.check_functions(connection)
    connection.set_authorizer(without_json)
    with pytest.raises(UnsupportedError, match="has no JSON functions"):
        schema.check_functions(connection)
    connection.close()
