"""Datasets as tables for DuckDB and pandas."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive.episodes.read.local_dataset import LocalDataset
from relive.errors import CorruptError
from relive.model.dataset import EpisodeList
from relive.model.episode import EpisodeView
from tests.episodes.by_hand import CREATED, episode_path, write_episode

duckdb = pytest.importorskip("duckdb")

X = [(float(n), 10 * n) for n in range(4)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    first = {"task": "pick", "id": 1, "pose": [1, 2.5]}
    write_episode(episode_path(root, 0), {"x": X, "cam.pose": X[:2]}, first, uid="a")
    write_episode(episode_path(root, 1), {"x": X[1:]}, {"task": "place", "id": 2}, created=7)
    write_episode(episode_path(root, 2), {"x": []}, {"task": None}, uid="c")
    outcome = {"ended": "interrupted", "finished_ts_ns": 9, "signals": {}}
    (episode_path(root, 0) / "outcome.json").write_text(json.dumps(outcome))
    return root


def test_one_row_per_episode(root: Path) -> None:
    table = LocalDataset(root).table()
    assert table.num_rows == 3
    assert table.to_pylist() == [
        {
            "position": 0,
            "uid": "a",
            "path": str(episode_path(root, 0)),
            "created_ts_ns": CREATED,
            "ended": "interrupted",
            "first_ts": 0,
            "start_ts": 0,
            "last_ts": 30,
            "duration_ns": 30,
            "rows": {"cam.pose": 2, "x": 4},
            "statics": {"id": 1, "pose": [1.0, 2.5], "task": "pick"},
        },
        {
            "position": 1,
            "uid": "ts-7",
            "path": str(episode_path(root, 1)),
            "created_ts_ns": 7,
            "ended": None,
            "first_ts": 10,
            "start_ts": 10,
            "last_ts": 30,
            "duration_ns": 20,
            "rows": {"cam.pose": None, "x": 3},
            "statics": {"id": 2, "pose": None, "task": "place"},
        },
        {
            "position": 2,
            "uid": "c",
            "path": str(episode_path(root, 2)),
            "created_ts_ns": CREATED,
            "ended": None,
            "first_ts": None,
            "start_ts": None,
            "last_ts": None,
            "duration_ns": None,
            "rows": {"cam.pose": None, "x": 0},
            "statics": {"id": None, "pose": None, "task": None},
        },
    ]


def query(episodes: pa.Table, text: str) -> list[Any]:
    with duckdb.connect() as database:
        database.register("episodes", episodes)
        found: list[Any] = database.execute(text).fetchall()
        return found


def test_duckdb_queries_the_table(root: Path) -> None:
    found = query(
        LocalDataset(root).table(),
        """
        SELECT uid, statics.task, rows.x, rows['cam.pose'], statics.pose[2]
        FROM episodes WHERE duration_ns > 0 ORDER BY statics.id DESC
        """,
    )
    assert found == [("ts-7", "place", 3, None, None), ("a", "pick", 4, 2, 2.5)]


def test_query_results_select_by_position(root: Path) -> None:
    dataset = LocalDataset(root)
    table = dataset.filter(lambda each: len(each["x"]) > 0).table()
    assert table["position"].to_pylist() == [0, 1]
    chosen = dataset.select(table.filter(pa.compute.field("last_ts") > 20)["position"].to_numpy())
    assert chosen.uids == ("a", "ts-7")


def test_edits_are_visible(root: Path) -> None:
    edits = LocalDataset(root).edits
    edits.cut("a", 15)
    edits.set_static("a#1", "task", "lift")
    edits.drop("c")
    table = LocalDataset(root).table()
    assert table["uid"].to_pylist() == ["a#0", "a#1", "ts-7"]
    assert table["last_ts"].to_pylist() == [10, 30, 30]
    assert [rows["x"] for rows in table["rows"].to_pylist()] == [2, 3, 3]
    assert [each["task"] for each in table["statics"].to_pylist()] == ["pick", "lift", "place"]
    assert table["path"][0].as_py() == str(episode_path(root, 0))


def column(*values: Any) -> tuple[pa.DataType, list[Any]]:
    """Return the type and the values of a static that the last episode does not have."""
    statics = [{"s": value} for value in values]
    episodes = [EpisodeView({}, each, {"uid": "u"}) for each in [*statics, {"t": 1}]]
    found = EpisodeList(episodes).table()["statics"].combine_chunks().field("s")
    *rest, last = found.to_pylist()
    assert last is None
    return found.type, rest


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, False, None], pa.bool_()),
        ([1, None, -(2**63)], pa.int64()),
        ([1, 2.5], pa.float64()),
        (["a", "ß"], pa.string()),
        ([b"\x00", b""], pa.binary()),
        ([None, None], pa.null()),
        ([[1, 2], [], None], pa.list_(pa.int64())),
        ([[[1.5]], [[2], []]], pa.list_(pa.list_(pa.float64()))),
        ([{"a": 1, "b": "x"}, {"a": 2, "b": None}], pa.struct({"a": pa.int64(), "b": pa.string()})),
    ],
)
def test_values_of_one_type_keep_it(values: list[Any], kind: pa.DataType) -> None:
    found, shown = column(*values)
    assert found == kind
    assert shown == values


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1, "1"], ["1", '"1"']),
        ([True, 1], ["true", "1"]),
        (["a", b"\x00"], ['"a"', '{"$bytes": "AA=="}']),
        ([2**70, None], [str(2**70), None]),
        ([{}, {}], ["{}", "{}"]),
        ([{"a": 1}, {"b": 2}], ['{"a": 1}', '{"b": 2}']),
        ([[1, "ß"]], ['[1, "ß"]']),
        ([[1], {"a": 1}], ["[1]", '{"a": 1}']),
        ([[{}]], ["[{}]"]),
        ([2**60 + 1, 0.5], [str(2**60 + 1), "0.5"]),
    ],
)
def test_values_of_several_types_are_json(values: list[Any], texts: list[str]) -> None:
    kind, shown = column(*values)
    assert kind == pa.string()
    assert shown == texts


def test_any_table_can_be_written_to_parquet(tmp_path: Path) -> None:
    none = EpisodeList([]).table()
    assert none.num_rows == 0
    bare = EpisodeList([EpisodeView({}), EpisodeView({}, {"": {}})]).table()
    assert bare["uid"].to_pylist() == ["", ""]
    assert bare["path"].to_pylist() == [None, None]
    empty = EpisodeList([EpisodeView({})]).table()
    for number, table in enumerate((none, bare, empty)):
        pq.write_table(table, tmp_path / f"{number}.parquet")
        assert query(table, "SELECT count(*) FROM episodes") == [(len(table),)]


def test_damaged_episode_is_named(root: Path) -> None:
    (episode_path(root, 1) / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptError, match=r"000000000001/x\.parquet"):
        LocalDataset(root).table()
