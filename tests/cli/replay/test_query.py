"""`relive replay query`."""

import csv
import io
from pathlib import Path

import pytest
from pyarrow import parquet as pq

from relive.replay.recorder import ReplayRecorder
from tests.cli.conftest import Relive

STATEMENT = "SELECT episode_id, count(*) AS steps, sum(reward) AS total FROM steps GROUP BY 1"


def test_result_is_a_table(relive: Relive, root: Path) -> None:
    done = relive("replay", "query", root, f"{STATEMENT} LIMIT 2")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "episode_id    steps  total",
        "toy-1-ep0000      7    8.5",
        "toy-1-ep0001      7   30.5",
    ]


def test_statement_may_be_several_words(relive: Relive, root: Path) -> None:
    done = relive("replay", "query", root, *["SELECT", "run_id,", "steps", "FROM", "runs"])
    assert done.out.splitlines()[1:] == ["toy-1        21", "vector-1     30"]


def test_result_as_json(relive: Relive, root: Path) -> None:
    found = relive("replay", "query", root, "SELECT row, action FROM steps LIMIT 2", "--json").json
    assert found == [{"row": 0, "action": 0}, {"row": 1, "action": 1}]
    assert relive("replay", "query", root, "SELECT 1 WHERE 0", "--json").json == []


def test_result_as_csv(relive: Relive, root: Path, tmp_path: Path) -> None:
    with ReplayRecorder(root, "odd", live=None) as recorder:
        recorder.begin_episode('a,"b"\nc')
        recorder.step(reward=0.5)
    sql = "SELECT episode_id, reward, action FROM steps WHERE run_id = 'odd'"
    done = relive("replay", "query", root, sql, "--csv")
    assert (done.status, done.err) == (0, "")
    expected = [["episode_id", "reward", "action"], ['a,"b"\nc', "0.5", ""]]
    assert list(csv.reader(io.StringIO(done.out))) == expected
    out = tmp_path / "odd.csv"
    assert relive("replay", "query", root, sql, "--output", out).out.startswith(f"{out}: 1 row, ")
    assert out.read_text() == done.out


def test_result_as_parquet(relive: Relive, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.parquet"
    done = relive("replay", "query", root, STATEMENT, "--output", out, "--json")
    assert done.json == {"path": str(out), "rows": 12, "file_bytes": out.stat().st_size}
    assert pq.read_table(out).column_names == ["episode_id", "steps", "total"]
    done = relive("replay", "query", root, STATEMENT, "--output", out)
    assert done.status == 1
    assert done.err.splitlines()[-1] == "hint: pass --overwrite to replace it"
    assert relive("replay", "query", root, STATEMENT, "--output", out, "--overwrite").status == 0


def test_result_without_rows(relive: Relive, root: Path) -> None:
    assert relive("replay", "query", root, "SELECT * FROM steps WHERE 0").out == "no rows\n"
    done = relive("replay", "query", root, "SELECT row FROM steps WHERE 0", "--csv")
    assert done.out == "row\n"


def test_values_of_every_type(relive: Relive, root: Path) -> None:
    sql = "VALUES (1, 'a', x'00ff', NULL), (1.5, 2, NULL, NULL), (1152921504606846977, 'b', x'', 1)"
    done = relive("replay", "query", root, sql, "--json")
    assert done.json[0] == {"column1": 1.0, "column2": "a", "column3": "00ff", "column4": None}
    assert done.json[2]["column1"] == pytest.approx(1.152921504606847e18)
    assert relive("replay", "query", root, sql, "--csv").out.splitlines()[2] == "1.5,2,,"


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM steps",
        "UPDATE runs SET steps = 0",
        "INSERT INTO runs (run_id) VALUES ('x')",
        "DROP TABLE steps",
        "VACUUM",
        "VACUUM INTO 'OUT'",
        "ATTACH 'OUT' AS other",
        "/* SELECT */ -- SELECT\n ATTACH 'OUT' AS other",
        "PRAGMA journal_mode = DELETE",
        "WITH gone AS (SELECT 1) DELETE FROM steps",
        "SELECT 1; DELETE FROM steps",
        "",
        "SELEC 1",
        "SELECT * FROM nothing",
    ],
)
def test_statement_that_does_not_read_fails(
    relive: Relive, root: Path, tmp_path: Path, sql: str
) -> None:
    out = tmp_path / "out.sqlite"
    done = relive("replay", "query", root, sql.replace("OUT", str(out)))
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    assert not out.exists()
    assert relive("replay", "query", root, "SELECT count(*) AS n FROM steps", "--json").json == [
        {"n": 51}
    ]


def test_hints_about_wrong_statements(relive: Relive, root: Path) -> None:
    for sql in ("SELECT nope FROM steps", "SELECT 1 FROM nope"):
        done = relive("replay", "query", root, sql)
        assert done.err.splitlines()[1].startswith("hint: the tables are runs, episodes and steps")
    # As a shell replaces a * that is not in quotes.
    done = relive("replay", "query", root, "SELECT", "a.txt", "b", "c", "FROM", "steps")
    assert done.err.splitlines()[0].endswith('near "c": syntax error')
    assert done.err.splitlines()[1].startswith("hint: put the statement in quotes")
    assert relive("replay", "query", root, "SELECT a b c").err.count("\n") == 1


@pytest.mark.parametrize("sql", ["select 1", "\n -- why\n/* how */ Select 1", "VALUES (1)"])
def test_statement_that_reads_is_recognised(relive: Relive, root: Path, sql: str) -> None:
    assert relive("replay", "query", root, sql).status == 0


def test_two_columns_of_one_name(relive: Relive, root: Path, tmp_path: Path) -> None:
    sql = "SELECT 1 AS a, 2 AS a"
    assert relive("replay", "query", root, sql).out.splitlines() == ["a  a", "1  2"]
    assert relive("replay", "query", root, sql, "--csv").out == "a,a\n1,2\n"
    for more in (["--json"], ["--output", tmp_path / "x.parquet"]):
        done = relive("replay", "query", root, sql, *more)
        assert (done.status, done.out) == (1, "")
        assert "'a'" in done.err
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize(
    "more", [["--csv", "--json"], ["--csv", "--output", "x.csv"], ["--output", "x.txt"]]
)
def test_wrong_usage(relive: Relive, root: Path, more: list[str]) -> None:
    done = relive("replay", "query", root, "SELECT 1", *more)
    assert (done.status, done.out) == (2, "")
    assert relive("replay", "query", root).status == 2


def test_runs_are_queried_while_they_are_recorded(relive: Relive, root: Path) -> None:
    with ReplayRecorder(root, "open", live=None) as recorder:
        for count in range(1, 3):
            recorder.step(reward=1.0)
            recorder.flush()
            sql = "SELECT count(*) AS n FROM steps WHERE run_id = 'open'"
            assert relive("replay", "query", root, sql, "--json").json == [{"n": count}]
