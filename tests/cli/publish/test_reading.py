"""`relive list-remote`, `schema`, `stream` and `diff`."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Relive
from tests.cli.publish.conftest import latest


def lines(text: str) -> list[dict[str, object]]:
    """Return JSON lines as objects."""
    return [json.loads(line) for line in text.splitlines()]


def test_list_remote(relive: Relive, root: Path, tmp_path: Path) -> None:
    assert relive("clone", "lab/kitchen@v1", "me/kitchen").status == 0
    assert relive("list-remote").out.splitlines() == ["dataset", "lab/kitchen", "me/kitchen"]
    assert relive("list-remote", "me/", "--json").json == [{"dataset": "me/kitchen"}]
    assert relive("list-remote", "me").out == "dataset\nme/kitchen\n"
    (found,) = relive("list-remote", "lab/", "--long", "--json").json
    assert found["latest"] == latest(relive)
    assert (found["tables"], found["rows"]) == (1, 300)
    assert found["bytes"] > 1000
    line = relive("list-remote", "lab/", "-l").out.splitlines()[1]
    assert line.split()[:2] == ["lab/kitchen", found["latest"][:12]]
    assert relive("list-remote", "no/").out == "no datasets\n"
    assert relive("list-remote", "a/b").status == 1
    assert relive("list-remote", "--root", tmp_path / "nothing", "--json").json == []


def test_schema(relive: Relive, root: Path) -> None:
    assert relive("schema", "lab/kitchen@v1").out.splitlines() == [
        "main: 200 rows",
        "column   type    nullable",
        "episode  int64   yes",
        "step     int64   yes",
        "reward   double  yes",
        "note     string  yes",
    ]
    found = relive("schema", "lab/kitchen", "--table", "main", "--json").json
    assert [field["name"] for field in found["main"]["fields"]] == [
        "episode",
        "step",
        "reward",
        "note",
    ]
    assert relive("schema", "lab/kitchen", "--table", "other").status == 1


def test_stream_json_lines(relive: Relive, root: Path) -> None:
    done = relive("stream", "lab/kitchen", "--batch-size", 7)
    assert (done.status, done.err) == (0, "")
    rows = lines(done.out)
    assert len(rows) == 300
    assert rows[101] == {"episode": 1, "step": 1, "reward": 0.1, "note": None}
    some = relive(
        *("stream", "relive://lab/kitchen", "--columns", "step,note", "--limit", 3, "--json"),
        *("--filter", "episode = 2 AND reward > 19"),
    )
    assert lines(some.out) == [
        {"step": 96, "note": "step 96"},
        {"step": 97, "note": None},
        {"step": 98, "note": "step 98"},
    ]


def test_stream_csv(relive: Relive, root: Path, tmp_path: Path) -> None:
    done = relive("stream", "lab/kitchen@v1", "--format", "csv", "--limit", 2)
    assert done.out.splitlines() == ["episode,step,reward,note", "0,0,0.0,step 0", "0,1,0.0,"]
    table = pa.table({"a": [[1, None], []], "b": [{"x": 'q"'}, None], "c": [b"\x01", b""]})
    pq.write_table(table, tmp_path / "nested.parquet")
    path = tmp_path / "nested.parquet"
    assert relive("publish", "lab/nested", "--table", f"rows={path}").status == 0
    assert relive("stream", "lab/nested", "--format", "csv").out.splitlines() == [
        "a,b,c",
        '"[1, null]","{""x"": ""q\\""""}",01',
        "[],,",
    ]


def test_stream_arrow(root: Path) -> None:
    # In a process, which has a binary stdout.
    line = ["stream", "lab/kitchen", "--format", "arrow", "--columns", "step", "--batch-size", "50"]
    for condition, expected in (("step >= 0", [*range(100)] * 3), ("step > 1000", [])):
        command = [sys.executable, "-m", "relive", *line, "--filter", condition]
        done = subprocess.run(command, capture_output=True, check=True)
        with pa.ipc.open_stream(io.BytesIO(done.stdout)) as reader:
            assert reader.read_all()["step"].to_pylist() == expected


def test_stream_arrow_needs_a_pipe(
    relive: Relive, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = relive("stream", "lab/kitchen", "--format", "arrow")
    assert done.status == 1
    assert "stdout is a terminal" in done.err


def test_stream_of_more_ranks_than_rows(relive: Relive, root: Path) -> None:
    line = ("stream", "lab/kitchen", "--limit", "3", "--shard", "7/8", "--batch-size", 1)
    done = relive(*line)
    assert done.status == 1
    assert 'tail="pad"' in done.err
    padded = relive(*line, "--tail", "pad")
    assert (padded.status, len(lines(padded.out))) == (0, 1)


def test_warm_of_a_shard_that_is_not_there(relive: Relive, root: Path) -> None:
    done = relive("warm", "lab/kitchen", "--shards", "7")
    assert done.status == 1
    assert " has 3 shards, got 7" in done.err
    assert relive("warm", "lab/kitchen", "--shards", "2", "--json").json["shards"] == 1
    assert relive("warm", "lab/kitchen", "--shards", "2:7", "--json").json["shards"] == 1


def test_unpin_what_is_not_pinned(relive: Relive, root: Path) -> None:
    done = relive("cache", "unpin", "lab/kitchen")
    assert done.status == 1
    assert "`lab/kitchen` is not pinned" in done.err


@pytest.mark.parametrize("command", [["stats"], ["gc"], ["verify"], ["unpin", "lab/kitchen"]])
def test_a_cache_that_is_a_file(
    relive: Relive, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        monkeypatch.setenv("RELIVE_CACHE_DIR", str(tmp_path / place))
        done = relive("cache", *command)
        assert (done.status, done.out) == (1, "")
        assert "file` is not a directory" in done.err
        assert "hint: set RELIVE_CACHE_DIR" in done.err


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["--columns", "nothing"], 1),
        (["--filter", "nothing > 1"], 1),
        (["--filter", "step >"], 1),
        (["--table", "other"], 1),
        (["--split", "train"], 1),
        (["--limit", "0"], 2),
        (["--batch-size", "x"], 2),
        (["--format", "xml"], 2),
        (["--format", "csv", "--json"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_stream_wrong_input(relive: Relive, root: Path, args: list[str], status: int) -> None:
    done = relive("stream", "lab/kitchen", *args)
    assert done.status == status
    assert "error: " in done.err
    assert "Traceback" not in done.err


def test_table_must_be_named_if_there_are_several(relive: Relive, root: Path, data: Path) -> None:
    tables = ("--table", f"a={data}/0.parquet", "--table", f"b={data}/1.parquet")
    assert relive("publish", "lab/two", *tables).status == 0
    done = relive("stream", "lab/two")
    assert done.status == 1
    assert "`a`, `b`" in done.err
    assert "hint: pass --table NAME" in done.err
    assert len(lines(relive("stream", "lab/two", "--table", "b").out)) == 100
    assert relive("head", "lab/two", "--table", "a", "-n", 1).status == 0


def test_diff(relive: Relive, root: Path, data: Path) -> None:
    out = relive("diff", "lab/kitchen@v1", "lab/kitchen").out.splitlines()
    assert out[0].endswith(": different")
    assert out[2].split()[:4] == ["main", "changed", "200", "to"]
    assert "2 the same, 1 added" in out[2]
    same = relive("diff", "lab/kitchen", "lab/kitchen", "--json").json
    assert same["is_same"]
    assert same["tables"][0]["change"] == "same"
    table = pq.read_table(data / "0.parquet").drop_columns(["note"])
    pq.write_table(table.append_column("x", pa.array([1] * 100)), data / "0.parquet")
    line = ("--table", f"main={data}/0.parquet", "--table", f"extra={data}/1.parquet")
    assert relive("publish", "lab/kitchen", *line, "--license", "MIT").status == 0
    found = relive("diff", "lab/kitchen@v1", "lab/kitchen", "--json").json
    changes = {each["name"]: each for each in found["tables"]}
    assert changes["extra"]["change"] == "added"
    columns = {each["name"]: each["change"] for each in changes["main"]["columns"]}
    assert columns == {"note": "removed", "x": "added"}
    assert changes["main"]["rows"] == [200, 100]
    assert found["sections"] == ["about"]
    text = relive("diff", "lab/kitchen@v1", "lab/kitchen").out
    assert "main.note: removed, string before, - after" in text
    assert "also different: about" in text
    assert relive("diff", "lab/kitchen", "lab/nothing").status == 1
    assert relive("diff", "lab/kitchen").status == 2


def test_diff_of_rows(relive: Relive, root: Path, data: Path) -> None:
    line = ("publish", "lab/kitchen", "--table", f"main={data}")
    assert relive(*line, "--rewrite").status == 0
    assert relive("tag", "lab/kitchen", "rewritten").status == 0
    assert relive(*line).status == 0
    pair = ("diff", "lab/kitchen@rewritten", "lab/kitchen")
    (unread,) = relive(*pair, "--json").json["tables"]
    assert (unread["change"], unread["has_same_rows"]) == ("changed", None)
    (read,) = relive(*pair, "--rows", "--json").json["tables"]
    assert read["has_same_rows"] is True
    assert "main: the same rows in other files" in relive(*pair, "--rows").out
    (other,) = relive("diff", "lab/kitchen@v1", "lab/kitchen", "--rows", "--json").json["tables"]
    assert other["has_same_rows"] is False
