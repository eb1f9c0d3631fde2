"""Rows of steps, their checksums and their text, against the same in plain Python."""

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relive._native import Step, StepArrays, crc32c, json_crc, plain_json, step_rows, timestamp
from relive.replay.storage.tables import EpisodeRow

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
ACTIONS = st.none() | INT64 | st.floats(allow_nan=False) | st.just("[1, 2]")
STEPS = st.lists(
    st.builds(
        Step,
        row=st.integers(0, 1 << 40),
        episode=st.builds(
            EpisodeRow, st.just("run-é"), st.text(), st.text(), INT64, st.just(0), st.none(), INT64
        ),
        step_index=st.integers(0, 1 << 40),
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
)


@given(STEPS)
def test_rows_of_steps(steps: list[Step]) -> None:
    rows, scalars = step_rows("run-é", steps)
    assert len(rows) == len(steps)
    for row, step in zip(rows, steps, strict=True):
        refs = [
            f"h5://run-é/{name}/{step.row}" if is_there else None
            for name, is_there in (
                ("actions", step.has_action_ref),
                ("frames", "frames" in step.present),
                ("observations", "observations" in step.present),
            )
        ]
        reward = None if step.reward is None or math.isnan(step.reward) else step.reward + 0.0
        assert row == (
            "run-é",
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
    for name, values in wanted.items():
        np.testing.assert_array_equal(scalars[name], values)
    dtypes = {name: array.dtype.str for name, array in scalars.items()}
    assert {dtypes[name] for name in ("episode", "step_index", "ts_ns")} == {"<i8"}
    assert {dtypes[name] for name in ("has_reward", "terminated", "truncated")} == {"|b1"}
    assert dtypes["rewards"] == "<f8"
