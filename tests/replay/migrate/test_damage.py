"""Rows that cannot be read, and databases that are not to be migrated."""

import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.errors import CorruptError, InvalidError, NotFoundError
from relive.replay import ReplayRecorder, ReplayRoot, ReplayRun
from relive.replay.migrate import migrate
from relive.replay.migrate.blobs import DamagedError
from relive.replay.migrate.rows import step_values
from relive.replay.storage.layout import database_path
from tests.replay.migrate.original import STEPS, Original, checked, episodes_of

ARRAY = {
    "__type__": "ndarray",
    "dtype": "uint8",
    "shape": [2],
    "encoding": "base64",
    "data": "AAA=",
}


DAMAGED: list[tuple[str, Any, str]] = [
    ("observation", b"{", "`observation` is not JSON"),
    ("observation", b"\xff", "`observation` is not JSON"),
    ("observation", b"[" * 5000, "`observation` is not JSON"),
    ("observation", b"[" * 200 + b"]" * 200, "`observation` is nested more than 100 times"),
    (
        "observation",
        json.dumps({**ARRAY, "data": "AAAA"}),
        "`observation` has an array of 3 bytes, expected 2",
    ),
    (
        "observation",
        json.dumps({**ARRAY, "data": "A"}),
        "`observation` has an array that cannot be read",
    ),
    (
        "observation",
        json.dumps({**ARRAY, "data": None}),
        "`observation` has an array that cannot be read",
    ),
    (
        "observation",
        json.dumps({**ARRAY, "dtype": "x9"}),
        "`observation` has an array that cannot be read",
    ),
    ("observation", json.dumps({**ARRAY, "dtype": None}), "has an array with the dtype None"),
    ("observation", json.dumps({**ARRAY, "shape": [1 << 62, 4]}), "an array of 2 bytes, expected"),
    (
        "observation",
        json.dumps({**ARRAY, "shape": [-1]}),
        "`observation` has an array with the shape [-1]",
    ),
    (
        "observation",
        json.dumps({**ARRAY, "shape": "2"}),
        "`observation` has an array with the shape '2'",
    ),
    (
        "observation",
        json.dumps({**ARRAY, "encoding": "gzip"}),
        "`observation` has an array with the encoding 'gzip'",
    ),
    ("observation", '{"__type__": "ndarray"}', "`observation` has an array that cannot be read"),
    (
        "observation",
        '{"__type__": "float", "value": "x"}',
        "`observation` has a number that cannot be read",
    ),
    ("observation", '{"__type__": "tuple"}', "`observation` has a tuple whose items are None"),
    ("render_payload", b"", "`render_payload` is not JSON"),
    ("render_payload", json.dumps({"rgb": {**ARRAY, "data": ""}}), "`render_payload` has an array"),
    ("action", json.dumps({**ARRAY, "data": ""}).encode(), "`action` has an array of 0 bytes"),
    ("info", b"no", "`info` is not JSON"),
    ("info", json.dumps({"map": {**ARRAY, "data": ""}}), "`info` has an array of 0 bytes"),
    ("vector_metadata", b"no", "`vector_metadata` is not JSON"),
    ("timestamp", "yesterday", "`timestamp` must be an ISO time"),
    ("timestamp", "1969-12-31", "`timestamp` must be after 1970"),
    ("reward", "much", "`reward` must be a number, got 'much'"),
]


def test_damaged_row_is_named(original: Original, root: Path) -> None:
    for run, index in itertools.product(range(len(DAMAGED)), range(3)):
        original.step(f"run{run}-ep0", index, observation=[index, 1])
    for run, (column, value, message) in enumerate(DAMAGED):
        where = f"WHERE rowid = {3 * run + 2}"
        sql = f"SELECT {column} FROM steps {where}"  # noqa: S608 - names of the test
        (before,) = original.connection.execute(sql).fetchone()
        sql = f"UPDATE steps SET {column} = ? {where}"  # noqa: S608 - names of the test
        original.connection.execute(sql, (value,))
        with pytest.raises(CorruptError) as raised:
            migrate(original.path, root)
        assert message in raised.value.message
        assert f"row {3 * run + 2}, episode 'run{run}-ep0', step 1: " in raised.value.message
        assert len(ReplayRun(root, f"run{run}")) == 1
        original.connection.execute(sql, (before,))
    report = checked(migrate(original.path, root, verify=True))
    assert (report.copied, report.verified) == (2, 3 * len(DAMAGED))


def test_damaged_rows_are_left_out(original: Original, root: Path) -> None:
    for index in range(5):
        value = b"{" if index == 3 else [index, 1]
        original.step("run-ep0", index, observation=value)
    report = checked(migrate(original.path, root, skip_damaged=True, verify=True))
    assert (report.copied, report.damaged, report.verified) == (4, 1, 4)
    assert report.is_verified
    steps = episodes_of(root)[0].arrays()["step_index"].tolist()
    assert steps == [0, 1, 2, 4]
    report = migrate(original.path, root, verify=True)
    assert (report.late, report.problem_count) == (1, 1)
    assert "`observation` is not JSON" in report.problems[0].message
    report = migrate(original.path, root, skip_damaged=True, drop_blobs=True)
    assert (report.late, report.dropped) == (1, ("observation", "render_payload"))
    assert report.kept == 1
    left_out = original.connection.execute("SELECT step_index, observation FROM left_out_steps")
    assert left_out.fetchall() == [(3, b"{")]


def test_rows_without_a_key_are_damaged(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(STEPS.replace(" NOT NULL", "").replace(" TEXT", ""))
    for row in [
        (None, 0, None, None),
        ("", 0, None, None),
        (b"e", 0, None, None),
        ("e", None, None, None),
        ("e", "first", None, None),
        ("e", -1, None, None),
        ("e", 0, 3, None),
        ("e", 0, None, b"r"),
        ("e", 0, "a", "r"),
    ]:
        connection.execute(
            "INSERT INTO steps (episode_id, step_index, agent_id, run_id, timestamp) "
            "VALUES (?, ?, ?, ?, '2024-01-01')",
            row,
        )
    connection.execute("INSERT INTO steps (episode_id) VALUES (CAST(x'ff' AS TEXT))")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptError, match=r"row 1: `episode_id` must be text, got None"):
        migrate(path, root)
    report = checked(migrate(path, root, skip_damaged=True, verify=True))
    assert (report.damaged, report.copied, report.verified) == (9, 1, 1)
    assert ReplayRun(root, "r").step(0).reward is None


MARKERS = st.sampled_from(["ndarray", "tuple", "set", "bytes", "datetime", "float", "stored", "x"])
HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["base64", "uint8", "<f8", "O", "U3", "datetime64[ns]", "(2,)u1", "AAAA", ""])
    | st.lists(st.integers(-1, 1 << 40), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data", "encoding", "value", "rgb", "a", ""]), inner
        ).flatmap(lambda made: MARKERS.map(lambda marker: {**made, "__type__": marker}))
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(
    documents=st.dictionaries(
        st.sampled_from(["observation", "render_payload", "info", "action", "vector_metadata"]),
        HOSTILE.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=30),
    )
)
def test_any_document_is_read_or_reported_with_its_column(documents: dict[str, bytes]) -> None:
    row = dict.fromkeys(["reward", "terminated", "truncated"], 0)
    problem = None
    try:
        step_values({**row, "timestamp": "2024-01-01", **documents})
    except DamagedError as error:
        problem = str(error)
    assert problem is None or any(problem.startswith(f"`{column}` ") for column in documents)


def test_run_of_which_every_row_is_damaged_is_left_out(original: Original, root: Path) -> None:
    original.step("bad-ep0", 0, observation=b"{")
    original.step("good-ep0", 0)
    report = checked(migrate(original.path, root, skip_damaged=True, verify=True))
    assert (report.damaged, report.copied) == (1, 1)
    assert list(ReplayRoot(root)) == ["good"]


def test_wrong_input_is_a_typed_error(original: Original, tmp_path: Path, root: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        migrate(tmp_path / "missing.sqlite", root)
    with pytest.raises(InvalidError, match="is a directory, expected a SQLite database"):
        migrate(tmp_path, root)
    (tmp_path / "text").write_text("no database, but long enough to be one: " * 40)
    with pytest.raises(CorruptError, match="not a database"):
        migrate(tmp_path / "text", root)
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidError, match="no table `steps`"):
        migrate(tmp_path / "empty", root)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE steps (episode_id, step_index, reward)")
    other.close()
    with pytest.raises(InvalidError, match="no column `terminated`, `truncated`, `timestamp`"):
        migrate(tmp_path / "other.sqlite", root)
    assert not root.exists()
    ReplayRecorder(root, "run").close()
    with pytest.raises(InvalidError, match="is a directory") as caught:
        migrate(root, tmp_path / "root2")
    assert caught.value.hint == f"pass `{database_path(root)}`"
    with pytest.raises(InvalidError, match="is a database of relive"):
        migrate(database_path(root), tmp_path / "root2")
    with pytest.raises(InvalidError, match="has nothing to migrate"):
        migrate(database_path(root), root)
