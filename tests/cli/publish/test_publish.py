"""`relive publish`: what it uploads, prints and refuses."""

from pathlib import Path

import pytest

from relive.cli.progress import Progress
from relive.publish import dataset
from tests.cli.conftest import Relive
from tests.cli.publish.conftest import latest, write_episode

PUBLISH = ("publish", "lab/kitchen")


def test_first_version_and_the_same_again(relive: Relive, data: Path, tmp_path: Path) -> None:
    root = tmp_path / "other"
    line = (*PUBLISH, "--table", f"main={data}/*.parquet", "--root", root)
    planned = relive(*line, "--dry-run")
    assert planned.status == 0, planned.err
    assert "3 blobs" in planned.out
    assert "to upload" in planned.out
    assert not (root / "manifests").exists()
    done = relive(*line, "--json")
    assert (done.status, done.err) == (0, "")
    found = done.json
    assert (found["dataset"], found["rows"], found["tables"]) == ("lab/kitchen", 300, {"main": 300})
    assert found["uploaded"]["blobs"] == 3
    assert found["pinned"] == f"lab/kitchen@{found['digest']}"
    again = relive(*line, "--json").json
    assert again["digest"] == found["digest"]
    assert again["uploaded"] == {"blobs": 0, "bytes": 0}
    assert "nothing to upload" in relive(*line).out


def test_base_append_replace_and_drop(relive: Relive, root: Path, data: Path) -> None:
    before = latest(relive)
    assert dataset("lab/kitchen").table().count() == 300
    done = relive(*PUBLISH, "--base", "v1", "--table", f"extra={data}/2.parquet", "--json")
    assert done.json["tables"] == {"extra": 100, "main": 200}
    parent = relive("info", "lab/kitchen", "--json").json["parent"]
    assert parent == relive("info", "lab/kitchen@v1", "--json").json["digest"] != before
    done = relive(*PUBLISH, "--base", "latest", "--table", f"main={data}/0.parquet", "--json")
    assert done.json["tables"] == {"extra": 100, "main": 100}
    done = relive(*PUBLISH, "--base", "latest", "--drop", "extra", "--json")
    assert done.json["tables"] == {"main": 100}
    assert dataset("lab/kitchen@v1").table().count() == 200


def test_several_tables_and_files(relive: Relive, root: Path, data: Path) -> None:
    tables = ("--table", f"a={data}/0.parquet", "--table", f"a={data}/1.parquet")
    done = relive(*PUBLISH, *tables, "--table", f"b={data}", "--json")
    assert done.json["tables"] == {"a": 200, "b": 300}


def test_tag_latest_and_message(relive: Relive, root: Path, data: Path) -> None:
    before = latest(relive)
    line = (*PUBLISH, "--table", f"main={data}/0.parquet", "--no-set-latest")
    done = relive(*line, "--tag", "small", "-m", "one episode", "--author", "me", "--json")
    assert done.status == 0, done.err
    assert latest(relive) == before
    found = relive("info", "lab/kitchen@small", "--json").json
    assert (found["digest"], found["message"], found["author"]) == (
        done.json["digest"],
        "one episode",
        "me",
    )
    taken = relive(*PUBLISH, "--table", f"main={data}/1.parquet", "--tag", "small")
    assert taken.status == 1
    assert "small" in taken.err
    moved = relive(*PUBLISH, "--table", f"main={data}/1.parquet", "--tag", "small", "--force-tag")
    assert moved.status == 0


def test_rewrite_with_a_key(relive: Relive, root: Path, data: Path) -> None:
    line = (*PUBLISH, "--table", f"main={data}", "--rewrite", "--key", "episode,step", "--json")
    done = relive(*line)
    assert done.status == 0, done.err
    assert dataset("lab/kitchen").table().arrow()["step"].to_pylist() == [*range(100)] * 3


def test_about(relive: Relive, root: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Kitchen\n")
    done = relive(
        *(*PUBLISH, "--base", "latest", "--readme", tmp_path / "README.md"),
        *("--license", "CC0-1.0", "--creator", "lab", "--url", "https://example.org"),
    )
    assert done.status == 0, done.err
    found = relive("info", "lab/kitchen", "--json").json
    assert found["about"] == {"license": "CC0-1.0", "creator": "lab", "url": "https://example.org"}
    assert found["readme"] == "# Kitchen\n"


@pytest.mark.parametrize(
    "args",
    [
        ["publish"],
        ["publish", "lab/kitchen", "--table", "main"],
        ["publish", "lab/kitchen", "--table", "=x.parquet"],
        ["publish", "lab/kitchen", "--append", "main=x.parquet"],
        ["publish", "lab/kitchen", "--drop", "main"],
        ["publish", "lab/kitchen", "--table", "main=x", "--workers", "0"],
        ["publish", "lab/kitchen", "--table", "main=x", "--on-conflict", "win"],
    ],
    ids=" ".join,
)
def test_wrong_usage(relive: Relive, root: Path, args: list[str]) -> None:
    done = relive(*args)
    assert (done.status, done.out) == (2, "")
    assert "error: " in done.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lab/kitchen@v1", "--table", "main=data"], "names a version"),
        (["Lab/kitchen", "--table", "main=data"], "is not the name of a dataset"),
        (["lab/kitchen", "--table", "main=nothing/*.parquet"], "nothing"),
        (["lab/kitchen", "--table", "a b=data"], "a b"),
        (["lab/kitchen", "--table", "main=data", "--tag", "latest"], "latest"),
        (["lab/kitchen", "--base", "v9", "--table", "main=data"], "v9"),
        (["lab/kitchen", "--base", "latest", "--drop", "other"], "other"),
        (["lab/kitchen", "--table", "main=data", "--key", "name", "--rewrite"], "name"),
        (["lab/kitchen", "--table", "main=data", "--readme", "no.md"], "no.md"),
        (["lab/kitchen"], "table"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors(relive: Relive, root: Path, args: list[str], message: str) -> None:
    done = relive("publish", *args)
    assert (done.status, done.out) == (1, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_files_of_different_schemas(relive: Relive, root: Path, data: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"episode": ["text"]}), data / "9.parquet")
    done = relive(*PUBLISH, "--table", f"main={data}")
    assert done.status == 1
    assert "9.parquet" in done.err
    assert "episode" in done.err


def test_files_that_change_are_published_again(relive: Relive, root: Path, data: Path) -> None:
    before = latest(relive)
    write_episode(data / "2.parquet", episode=7)
    done = relive(*PUBLISH, "--table", f"main={data}", "--rehash", "--json")
    assert done.json["digest"] != before
    assert done.json["uploaded"]["blobs"] == 1


def test_conflict_with_another_publisher(
    relive: Relive, root: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    from relive.publish import DatasetBuilder
    from relive.publish.write.upload import upload

    module = "relive.publish.write.builder.upload"

    def meanwhile(*args: object, **options: object) -> dict[str, bytes]:
        monkeypatch.setattr(module, upload)
        other = DatasetBuilder("lab/kitchen")
        other.add_table("main", pa.table({"x": [len(str(args))]}))
        other.publish()
        return upload(*args, **options)  # type: ignore[arg-type]

    line = (*PUBLISH, "--base", "latest", "--append", f"main={data}/0.parquet")
    monkeypatch.setattr(module, meanwhile)
    done = relive(*line)
    assert (done.status, done.out) == (1, "")
    assert "hint: " in done.err
    assert "--on-conflict move" in done.err
    assert dataset("lab/kitchen").table().schema().names == ["x"]
    monkeypatch.setattr(module, meanwhile)
    moved = relive(*line, "--on-conflict", "move", "--base", "v1")
    assert moved.status == 0, moved.err
    assert dataset("lab/kitchen").table().count() == 300


def test_progress_is_reported_in_bytes(
    relive: Relive, root: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int | None]] = []

    class Recorded(Progress):
        def __call__(self, done: int, total: int | None = None) -> None:
            seen.append((done, total))

    monkeypatch.setattr("relive.cli.publish.publish.Progress", Recorded)
    write_episode(data / "0.parquet", episode=4)
    assert relive(*PUBLISH, "--table", f"main={data}/0.parquet").status == 0
    assert seen[-1] == ((data / "0.parquet").stat().st_size,) * 2
