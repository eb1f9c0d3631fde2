"""The scalar lane: steps and episodes in SQLite, for relive and for any other client."""

import math
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from relive.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    OutOfRangeError,
    UnknownNameError,
    UnsupportedError,
)
from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun, StepRecord, TelemetryStore
from relive.replay import run as run_module
from relive.replay.storage import schema
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import database_path

ROOT = Path(__file__).parents[2]


def frame(number: int) -> np.ndarray[Any, Any]:
    return np.full((2, 3, 3), number, np.uint8)


def record(root: Path, run_id: str, episodes: dict[str, list[float | None]], **about: Any) -> None:
    """Record episodes, given by their ids, with these rewards; a frame for every second step."""
    with ReplayRecorder(root, run_id, live=None, **about) as recorder:
        number = 0
        for episode_id, rewards in episodes.items():
            recorder.begin_episode(episode_id)
            for reward in rewards:
                recorder.step(
                    np.array([number / 2]),
                    number,
                    reward,
                    frame=frame(number) if number % 2 else None,
                    info={"number": number} if number else None,
                    ts_ns=1_700_000_000_123_456_789 + number,
                )
                number += 1
            recorder.end_episode()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that both have an episode `same`, and one of two agents."""
    made = tmp_path_factory.mktemp("root")
    record(made, "first", {"a": [1.0, 2.0, 0.5], "same": [-1.0]}, env_id="Toy-v0")
    record(made, "second", {"same": [4.0, None, math.nan], "b": [0.0] * 5})
    with ReplayRecorder(made, "agents", live=None) as recorder:
        for number in range(4):
            for agent in ("left", "right"):
                recorder.step(
                    action=number, reward=number, truncated=number == 3, agent_id=agent, ts_ns=5
                )
    return made


@pytest.fixture
def store(root: Path) -> Any:
    with TelemetryStore(root, read_only=True) as opened:
        yield opened


def test_a_step_is_a_record(store: TelemetryStore) -> None:
    steps = store.episode_steps("a")
    assert steps[1] == StepRecord(
        run_id="first",
        episode_id="a",
        step_index=1,
        agent_id="",
        row=1,
        action=1,
        action_ref=None,
        reward=2.0,
        terminated=False,
        truncated=False,
        frame_ref="h5://first/frames/1",
        obs_ref="h5://first/observations/1",
        info={"number": 1},
        ts_ns=1_700_000_000_123_456_790,
        timestamp="2023-11-14T22:13:20.123456+00:00",
    )
    assert (steps[0].frame_ref, steps[0].info) == (None, {})


def test_steps_of_an_episode_are_in_order(store: TelemetryStore) -> None:
    assert [step.step_index for step in store.episode_steps("b")] == [0, 1, 2, 3, 4]
    assert [step.row for step in store.episode_steps("b")] == [3, 4, 5, 6, 7]
    both = store.episode_steps("agents-ep0000") + store.episode_steps("agents-ep0001")
    assert [(step.agent_id, step.step_index) for step in both] == [
        *(("left", index) for index in range(4)),
        *(("right", index) for index in range(4)),
    ]
    assert store.episode_steps("agents-ep0000", agent_id="left", run_id="agents") == both[:4]
    with pytest.raises(UnknownNameError, match="no episode has the id 'nothing'"):
        store.episode_steps("nothing")
    with pytest.raises(UnknownNameError):
        store.episode_steps("a", run_id="second")
    with pytest.raises(UnknownNameError):
        store.episode_steps("a", agent_id="left")


def test_steps_of_several_agents_with_one_episode_id(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        for agent in ("b", "a"):
            recorder.begin_episode("one", agent_id=agent)
        for number in range(2):
            for agent in ("b", "a"):
                recorder.step(action=number, agent_id=agent)
    with TelemetryStore(tmp_path) as store:
        steps = store.episode_steps("one")
        assert [(step.step_index, step.agent_id) for step in steps] == [
            (0, "a"),
            (0, "b"),
            (1, "a"),
            (1, "b"),
        ]
        assert [step.agent_id for step in store.episode_steps("one", agent_id="b")] == ["b", "b"]


def test_an_episode_id_of_two_runs_needs_the_run(store: TelemetryStore) -> None:
    with pytest.raises(InvalidError, match=r"'same' exists in 2 runs: 'first', 'second'") as caught:
        store.episode_steps("same")
    assert caught.value.hint == "pass run_id="
    with pytest.raises(InvalidTypeError, match="`episode_id` must be a string, got None"):
        store.episode_steps(None)  # type: ignore[arg-type]
    assert [step.reward for step in store.episode_steps("same", run_id="first")] == [-1.0]
    rewards = [step.reward for step in store.episode_steps("same", run_id="second")]
    assert rewards == [4.0, None, None]  # NaN is kept in the arrays


def test_recent_steps(store: TelemetryStore) -> None:
    assert [step.row for step in store.recent_steps(3, run_id="second")] == [5, 6, 7]
    assert [step.row for step in store.recent_steps(100, run_id="first")] == [0, 1, 2, 3]
    assert [step.run_id for step in store.recent_steps(9)] == ["second"] + ["agents"] * 8
    assert [step.row for step in store.recent_steps(2, agent_id="left")] == [4, 6]
    assert store.recent_steps(0) == []
    assert store.recent_steps(5, run_id="nothing") == []
    assert {step.frame is None for step in store.recent_steps(100)} == {True}
    for wrong in (-1, 1.5, True):
        with pytest.raises((InvalidError, InvalidTypeError)):
            store.recent_steps(wrong)  # type: ignore[arg-type]


def test_recent_steps_with_their_arrays(store: TelemetryStore) -> None:
    steps = store.recent_steps(100, run_id="first", resolve=True)
    for number, step in enumerate(steps):
        assert step.observation.tolist() == [number / 2]
        if number % 2:
            np.testing.assert_array_equal(step.frame, frame(number))
        else:
            assert step.frame is None
    assert [step.frame_ref for step in steps] == [
        step.frame_ref for step in store.recent_steps(100, run_id="first")
    ]


def test_steps_are_filtered_by_reward_agent_and_run(store: TelemetryStore) -> None:
    def rewards(**conditions: Any) -> list[float | None]:
        return [step.reward for step in store.steps(**conditions)]

    assert rewards(run_id="first", min_reward=1.0) == [1.0, 2.0]
    assert rewards(run_id="first", max_reward=0.5) == [0.5, -1.0]
    assert rewards(min_reward=2.0, max_reward=4.0, agent_id="") == [2.0, 4.0]
    assert rewards(agent_id="right", min_reward=1) == [1.0, 2.0, 3.0]
    assert rewards(run_id="second", limit=2) == [0.0, 0.0]
    assert rewards(run_id="agents", agent_id="left", max_reward=0) == [0.0]
    assert rewards(min_reward=100) == []


def test_episodes_are_filtered(store: TelemetryStore) -> None:
    def ids(**conditions: Any) -> list[str]:
        return [episode.episode_id for episode in store.episodes(**conditions)]

    assert ids(run_id="first") == ["a", "same"]
    assert ids(min_return=3.5) == ["agents-ep0000", "agents-ep0001", "a", "same"]
    assert ids(max_return=0.0) == ["same", "b"]
    assert ids(min_return=0.0, max_return=3.75) == ["a", "b"]
    assert ids(min_length=4) == ["agents-ep0000", "agents-ep0001", "b"]
    assert ids(min_length=2, max_length=3) == ["a", "same"]
    assert ids(agent_id="right") == ["agents-ep0001"]
    assert ids(run_id="second", limit=1) == ["b"]
    assert ids(status="terminated") == []
    assert len(ids(status="truncated")) == 6
    first = store.episodes(run_id="first")[0]
    assert (first.total_reward, first.steps, first.truncated) == (3.5, 3, 1)


def test_numbers_of_numpy_are_numbers(store: TelemetryStore) -> None:
    kind: Any
    for kind in (np.int64, np.uint8, np.int32):
        assert store.episodes(min_length=kind(4)) == store.episodes(min_length=4)
        assert store.episodes(max_length=kind(3)) == store.episodes(max_length=3)
        rows = store.query("SELECT count(*) AS c FROM steps WHERE row >= ?", [kind(3)])
        assert rows.to_pylist() == [{"c": 11}]
        named = store.query("SELECT count(*) AS c FROM steps WHERE row >= :r", {"r": kind(3)})
        assert named == rows
    for kind in (np.float32, np.float64, np.float16, np.longdouble, int):
        assert store.episodes(min_return=kind(1)) == store.episodes(min_return=1.0) != []
        assert store.episodes(max_return=kind(1)) == store.episodes(max_return=1.0)
        assert store.steps(min_reward=kind(2)) == store.steps(min_reward=2.0)
        assert store.steps(max_reward=kind(2)) == store.steps(max_reward=2.0)
        assert store.query("SELECT typeof(?) AS t", [kind(1)])["t"].to_pylist() != ["blob"]


@pytest.mark.parametrize("wrong", ["a", True, np.bool_(1), np.array(1.0), np.array([1]), 1j, []])
def test_conditions_that_are_not_numbers_are_refused(store: TelemetryStore, wrong: Any) -> None:
    for name in ("min_return", "max_return", "min_length", "max_length"):
        with pytest.raises(InvalidTypeError):
            store.episodes(**{name: wrong})
    for name in ("min_reward", "max_reward"):
        with pytest.raises(InvalidTypeError):
            store.steps(**{name: wrong})
    with pytest.raises(InvalidTypeError, match="`min_length` must be an integer"):
        store.episodes(min_length=2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="`max_length` must be at least 0"):
        store.episodes(max_length=-1)


def test_queries_that_are_not_text_are_refused(store: TelemetryStore) -> None:
    for wrong in (5, None, b"SELECT 1"):
        with pytest.raises(InvalidTypeError, match="`sql` must be a string"):
            store.query(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="cannot be encoded"):
        store.query("SELECT '\ud800'")
    with pytest.raises(InvalidError, match="surrogates not allowed"):
        store.query("SELECT ?", ["\ud800"])
    with pytest.raises(InvalidError, match="surrogates not allowed"):
        store.recent_steps(run_id="\ud800")
    for parameters in (5, "a", b"a", {1}, np.arange(1)):
        with pytest.raises(InvalidTypeError, match="`parameters` must be a list or a dict"):
            store.query("SELECT ?", parameters)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="must not be an array"):
        store.query("SELECT ?", [np.array(5)])


def test_a_query_returns_an_arrow_table(store: TelemetryStore) -> None:
    table = store.query(
        "SELECT episode_id, count(*) AS steps, sum(reward) AS total FROM steps "
        "WHERE run_id = ? GROUP BY episode_id ORDER BY episode_id",
        ("first",),
    )
    assert isinstance(table, pa.Table)
    assert table.to_pydict() == {"episode_id": ["a", "same"], "steps": [3, 1], "total": [3.5, -1.0]}
    assert store.query("SELECT 1 AS x WHERE 0").to_pydict() == {"x": []}
    nested = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3) SELECT * FROM n"
    )
    assert store.query(nested).to_pydict() == {"i": [1, 2, 3]}
    mixed = store.query("SELECT 1 AS x UNION ALL SELECT 2.5 UNION ALL SELECT NULL")
    assert mixed["x"].to_pylist() == [1.0, 2.5, None]
    texts = store.query("SELECT 1 AS x UNION ALL SELECT 'a' UNION ALL SELECT x'ff'")
    assert texts["x"].to_pylist() == ["1", "a", "\\xff"]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM steps",
        "INSERT INTO runs (run_id) VALUES ('x')",
        "UPDATE steps SET reward = 0",
        "DROP TABLE steps",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "ATTACH 'other.sqlite' AS other",
        "DETACH main",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA writable_schema = 1",
        "PRAGMA user_version",
        "VACUUM",
        "VACUUM INTO 'copy.sqlite'",
        "REINDEX",
        "BEGIN IMMEDIATE",
        "SAVEPOINT s",
        "SELECT 1; DELETE FROM steps",
        "SELECT load_extension('x')",
        "nonsense",
        "SELECT * FROM nothing",
        "SELECT ?",
        "",
        "-- nothing",
    ],
)
def test_a_query_only_reads(
    root: Path, store: TelemetryStore, sql: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidError):
        store.query(sql)
    assert list(tmp_path.iterdir()) == []
    assert len(store.recent_steps(100)) == 20


def test_a_value_that_sqlite_cannot_have_is_refused(store: TelemetryStore) -> None:
    for wrong in (2**70, object()):
        with pytest.raises(InvalidError):
            store.query("SELECT ?", (wrong,))


def test_a_query_does_not_make_the_store_read_only(tmp_path: Path) -> None:
    with TelemetryStore(tmp_path) as store:
        store.query("SELECT 1 AS x")
        record(tmp_path, "run", {"a": [1.0]})
        assert len(store.recent_steps()) == 1


def test_runs_and_their_status(tmp_path: Path) -> None:
    record(tmp_path, "done", {"a": [1.0]}, env_id="Toy-v0")
    left = ReplayRecorder(tmp_path, "left", live=None)
    left.step(action=1)
    left.leave()
    recorder = ReplayRecorder(tmp_path, "failed", live=None)
    recorder.step(action=1)
    with pytest.raises(KeyError), recorder:
        raise KeyError
    recorder = ReplayRecorder(tmp_path, "live", live=None)
    recorder.step(action=1)
    recorder.flush()
    with TelemetryStore(tmp_path) as store:
        runs = {run["run_id"]: run for run in store.runs()}
        assert list(runs) == ["done", "left", "failed", "live"]
        assert {run_id: run["status"] for run_id, run in runs.items()} == {
            "done": "finished",
            "left": "interrupted",
            "failed": "failed",
            "live": "recording",
        }
        assert (runs["done"]["env_id"], runs["done"]["steps"], runs["done"]["episodes"]) == (
            "Toy-v0",
            1,
            1,
        )
        assert runs["live"]["ended_ns"] is None
        for run_id, run in runs.items():
            assert store.run_status(run_id) == run["status"] == ReplayRun(tmp_path, run_id).status
        recorder.close()
        assert store.run_status("live") == "finished"
        with pytest.raises(UnknownNameError):
            store.run_status("nothing")


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    for run_id in ("bad", "good"):
        record(tmp_path, run_id, {"a": [1.0]}, env_id="Toy-v0")
    with Database.create(database_path(tmp_path)) as database:
        database.rows("UPDATE runs SET env_id = 'other' WHERE run_id = 'bad'")
    with TelemetryStore(tmp_path, read_only=True) as store:
        bad, good = store.runs()
    assert (good["run_id"], good["status"], good["steps"]) == ("good", "finished", 1)
    assert (bad["run_id"], bad["status"], bad["uid"], bad["steps"]) == ("bad", "damaged", None, 0)
    assert bad.keys() == good.keys()
    assert 0 < bad["created_ns"] <= good["created_ns"]


def test_the_status_of_a_killed_recorder_is_interrupted(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from relive.replay import ReplayRecorder\n"
        "recorder = ReplayRecorder(sys.argv[1], 'run', live=None)\n"
        "recorder.step(action=1)\n"
        "recorder.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, timeout=60)
    assert done.returncode == -9
    with TelemetryStore(tmp_path) as store:
        assert store.run_status("run") == "interrupted"
        assert [step.action for step in store.recent_steps()] == [1]


def test_another_client_reads_during_a_run_and_nothing_is_lost(tmp_path: Path) -> None:
    recorder = ReplayRecorder(tmp_path, "run", config=ReplayConfig(flush_s=3600), live=None)
    program = (
        "import sqlite3, sys\n"
        "client = sqlite3.connect(sys.argv[1])\n"
        "print(*[row[0] for row in client.execute('SELECT action FROM steps ORDER BY row')])\n"
        "client.close()\n"
    )
    for number in range(3):
        recorder.step(action=number)
        recorder.flush()
        done = subprocess.run(
            [sys.executable, "-c", program, str(database_path(tmp_path))],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.split() == [str(seen) for seen in range(number + 1)]
    with sqlite3.connect(database_path(tmp_path)) as client:  # in the same process
        assert client.execute("SELECT count(*) FROM steps").fetchone() == (3,)
        client.execute("CREATE TABLE notes (text)")  # a table of the user's own
    client.close()
    recorder.step(action=3)
    recorder.close()
    assert ReplayRun(tmp_path, "run").steps["action"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.needs("duckdb")
def test_duckdb_reads_the_arrow_table(store: TelemetryStore) -> None:
    import duckdb

    steps = store.query("SELECT * FROM steps")
    with duckdb.connect() as connection:
        connection.register("steps", steps)
        found = connection.execute(
            "SELECT run_id, max(reward) FROM steps GROUP BY run_id ORDER BY run_id"
        ).fetchall()
    assert found == [("agents", 3.0), ("first", 2.0), ("second", 4.0)]


def test_the_tables_have_the_names_that_other_programs_use(root: Path) -> None:
    with Database.open(database_path(root)) as database:
        names = dict(
            database.rows(
                "SELECT name, tbl_name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
            )
        )
        assert names["idx_steps_frame_ref"] == "steps"
        assert names["idx_steps_run_id"] == "steps"
        keys = {
            table: [
                name
                for _, name in sorted(
                    (row[5], row[1])
                    for row in database.rows(f"PRAGMA table_info({table})")
                    if row[5]
                )
            ]
            for table in ("runs", "episodes", "steps")
        }
        assert keys["steps"] == ["run_id", "episode_id", "step_index", "agent_id"]
        assert keys["episodes"] == ["run_id", "episode_id", "agent_id"]
        assert keys["runs"] == ["run_id"]
        columns = [row[1] for row in database.rows("PRAGMA table_info(steps)")]
        assert {"episode_id", "step_index", "action", "reward", "terminated", "truncated"} < {
            *columns
        }
        assert {"frame_ref", "obs_ref", "info", "timestamp", "agent_id", "run_id"} < {*columns}
        plan = database.rows(
            "EXPLAIN QUERY PLAN SELECT * FROM steps WHERE frame_ref = 'h5://first/frames/1'"
        )
        assert "idx_steps_frame_ref" in plan[0][3]
        assert database.rows("PRAGMA journal_mode") == [("wal",)]
    client = sqlite3.connect(database_path(root))
    with pytest.raises(sqlite3.IntegrityError):  # (run_id, row) is unique
        client.execute("UPDATE steps SET row = 0 WHERE run_id = 'first'")
    client.rollback()
    client.close()


def set_version(path: Path, version: int) -> None:
    client = sqlite3.connect(path)
    client.execute(f"PRAGMA user_version = {version}")
    client.close()


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    record(tmp_path, "run", {"a": [1.0]})
    path = database_path(tmp_path)
    set_version(path, schema.VERSION + 1)
    for call in (
        lambda: TelemetryStore(tmp_path),
        lambda: TelemetryStore(tmp_path, read_only=True),
        lambda: ReplayRun(tmp_path, "run"),
        lambda: ReplayRecorder(tmp_path, "run", live=None),
        lambda: ReplayRecorder(tmp_path, "new", live=None),
    ):
        with pytest.raises(UnsupportedError, match=f"version {schema.VERSION + 1}") as caught:
            call()
        assert caught.value.hint == "upgrade relive"
    set_version(path, schema.VERSION)
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:  # its lock was released
        recorder.step([0.0])
    assert len(ReplayRun(tmp_path, "run")) == 2


def test_other_databases_are_refused(tmp_path: Path) -> None:
    path = database_path(tmp_path)
    path.parent.mkdir()
    client = sqlite3.connect(path)
    client.execute("CREATE TABLE steps (episode_id TEXT, observation BLOB)")
    client.close()
    before = path.read_bytes()
    with pytest.raises(UnsupportedError, match="not a replay database") as caught:
        TelemetryStore(tmp_path, read_only=True)
    assert "relive replay migrate" in str(caught.value.hint)
    assert path.read_bytes() == before
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(CorruptError):
        TelemetryStore(tmp_path, read_only=True)
    with pytest.raises(NotFoundError):
        TelemetryStore(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()


def test_an_empty_database_has_no_runs_yet(tmp_path: Path) -> None:
    path = database_path(tmp_path)
    path.parent.mkdir()
    path.touch()
    with pytest.raises(NotFoundError, match="no runs yet"):
        TelemetryStore(tmp_path, read_only=True)
    with TelemetryStore(tmp_path) as store:
        assert store.runs() == []
        assert store.recent_steps() == []


def test_the_path_of_a_database_is_a_store(root: Path, tmp_path: Path) -> None:
    with TelemetryStore(database_path(root), read_only=True) as store:
        assert store.root == root
        assert len(store.recent_steps(resolve=True)) == 20
    with TelemetryStore(tmp_path / "mine.sqlite") as store:
        assert store.runs() == []
    assert [path.name for path in tmp_path.glob("*.sqlite")] == ["mine.sqlite"]


@pytest.mark.parametrize("name", ["runs.db", "runs.sqlite"])
def test_a_directory_is_a_root_whatever_its_name(tmp_path: Path, name: str) -> None:
    record(tmp_path / name, "run", {"a": [1.0]})
    for read_only in (True, False):
        with TelemetryStore(tmp_path / name, read_only=read_only) as store:
            assert [run["run_id"] for run in store.runs()] == ["run"]
            assert store.root == tmp_path / name


def test_a_closed_store_refuses_calls(root: Path) -> None:
    store = TelemetryStore(root, read_only=True)
    assert str(database_path(root)) in repr(store)
    store.close()
    store.close()
    for call in (store.runs, store.recent_steps, store.episodes):
        with pytest.raises(ClosedError):
            call()


def use_in_a_fork(root: Path) -> tuple[int, int]:
    """Fork while a store is open; return the exit code of the child, and the runs in the parent."""
    with TelemetryStore(root, read_only=True) as store:
        child = os.fork()
        if not child:
            try:
                store.runs()
            except ClosedError:
                os._exit(0)
            os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(store.runs())


def test_a_store_of_the_parent_process_is_refused_in_a_fork(
    root: Path, spawned_pool: ProcessPoolExecutor
) -> None:
    assert spawned_pool.submit(use_in_a_fork, root).result(timeout=60) == (0, 3)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE steps SET reward = reward + 1 WHERE row = 1",
        "UPDATE steps SET info = '{}' WHERE row = 1",
        "DELETE FROM steps WHERE row = 1",
        "DELETE FROM steps WHERE row = 3",
        "DELETE FROM commits",
        "UPDATE runs SET steps = steps - 1",
    ],
)
def test_changed_rows_are_an_error(tmp_path: Path, sql: str) -> None:
    record(tmp_path, "run", {"a": [1.0, 2.0, 3.0, 4.0]})
    client = sqlite3.connect(database_path(tmp_path))
    client.execute(sql)
    client.commit()
    client.close()
    with TelemetryStore(tmp_path) as store:
        with pytest.raises(CorruptError):
            store.recent_steps(4)
        with pytest.raises(CorruptError):
            store.episode_steps("a")
        with pytest.raises(CorruptError):
            store.steps(max_reward=100)


def test_the_arrow_table_of_a_run_has_fixed_types(tmp_path: Path) -> None:
    record(tmp_path, "run", {"a": [None]})
    recorder = ReplayRecorder(tmp_path, "empty", live=None)
    recorder.begin_episode()
    recorder.end_episode()
    recorder.close()
    full, empty = (ReplayRun(tmp_path, run_id).steps for run_id in ("run", "empty"))
    assert empty.num_rows == 0
    assert full.schema == empty.schema
    assert full.schema.field("reward").type == pa.float64()


def test_infos_have_their_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_INFO_ROWS", 3)  # rows are read in groups
    large = [np.full((30, 30), row, np.float64) for row in range(8)]
    with ReplayRecorder(tmp_path, "r", live=None) as recorder:
        for row in range(8):
            info: Any = {"row": row, "a.b/c%2E": large[row]} if row % 2 else {"row": row}
            recorder.step([0.0], 1, 0.0, info=info if row else None)
    run = ReplayRun(tmp_path, "r")
    rows = [7, 0, 2, 7, 3]
    found = run.infos(rows)
    assert [info.get("row") for info in found] == [7, None, 2, 7, 3]
    assert [[*info] for info in found[:3]] == [["row", "a.b/c%2E"], [], ["row"]]
    for row, info in zip(rows, found, strict=True):
        if row % 2:
            np.testing.assert_array_equal(info["a.b/c%2E"], large[row])
    assert run.infos([]) == []
    with pytest.raises(OutOfRangeError, match="row 8 is out of range for 8 steps"):
        run.infos([0, 8])
