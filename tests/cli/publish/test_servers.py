"""Commands about published datasets over SeaweedFS and nginx."""

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Relive
from tests.servers import Nginx, SeaweedFS


@pytest.mark.needs("seaweedfs", "obstore", "duckdb")
def test_commands_on_an_object_store(
    relive: Relive, data: Path, bucket: str, s3: SeaweedFS
) -> None:
    where = ("--root", bucket)
    line = ("publish", "lab/kitchen", "--table", f"main={data}/[01].parquet", "--tag", "v1", *where)
    first = relive(*line, "--json")
    assert first.status == 0, first.err
    assert relive(*line, "--json").json["uploaded"] == {"blobs": 0, "bytes": 0}
    more = ("--base", "latest", "--append", f"main={data}/2.parquet")
    assert relive("publish", "lab/kitchen", *more, *where).status == 0
    assert relive("list-remote", *where).out == "dataset\nlab/kitchen\n"
    assert relive("info", "lab/kitchen", *where, "--json").json["rows"] == 300
    assert len(relive("head", "lab/kitchen", *where).out.splitlines()) == 6
    assert relive("stats", "lab/kitchen", *where, "--json").json["rows"] == 300
    assert relive("validate", "lab/kitchen", "--level", "full", *where).status == 0
    assert relive("schema", "lab/kitchen", *where).out.startswith("main: 300 rows\n")
    rows = relive("stream", "lab/kitchen@v1", "--filter", "step = 3", *where).out
    assert len(rows.splitlines()) == 2
    assert "1 added" in relive("diff", "lab/kitchen@v1", "lab/kitchen", *where).out
    assert relive("tag", "lab/kitchen", "v2", *where).status == 0
    assert relive("untag", "lab/kitchen", "v2", *where).status == 0
    back = relive("rollback", "lab/kitchen", "--json", *where).json
    assert back["latest"] == first.json["digest"]
    assert relive("clone", "lab/kitchen", "me/kitchen", *where).status == 0
    gone = relive("delete", "lab/kitchen", "--keep-last", 0, "--yes", "--json", *where).json
    assert len(gone["withdrawn"]) == 1
    assert relive("reindex", *where).out == "lab/kitchen: 2 versions\nme/kitchen: 1 version\n"


@pytest.mark.needs("seaweedfs", "obstore")
def test_a_reader_may_not_publish(
    relive: Relive, data: Path, bucket: str, s3: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("publish", "lab/kitchen", "--table", f"main={data}", "--root", bucket)
    assert relive(*line).status == 0
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "reader-secret")
    assert relive("head", "lab/kitchen", "--root", bucket).status == 0
    done = relive(*line, "--tag", "v1")
    assert done.status == 1
    assert "denied" in done.err
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    done = relive("head", "lab/kitchen", "--root", bucket)
    assert done.status == 1
    assert "credentials" in done.err
    assert "wrong-secret" not in done.err


@pytest.mark.needs("nginx", "obstore")
def test_commands_on_a_web_server(relive: Relive, root: Path, data: Path, nginx: Nginx) -> None:
    shutil.copytree(root, nginx.files / "datasets")
    where = ("--root", f"{nginx.url}/datasets")
    assert relive("list-remote", "lab/", *where).out == "dataset\nlab/kitchen\n"
    assert relive("info", "lab/kitchen", *where, "--json").json["tags"].keys() == {"v1"}
    assert len(relive("stream", "lab/kitchen@v1", *where).out.splitlines()) == 200
    assert relive("validate", "lab/kitchen", "--level", "full", *where).status == 0
    nothing = relive("list-remote", *where)
    assert nothing.status == 1
    assert "hint: name a workspace" in nothing.err
    done = relive("publish", "lab/kitchen", "--table", f"main={data}/0.parquet", *where)
    assert done.status == 1
    assert "read-only" in done.err
    assert relive("tag", "lab/kitchen", "v2", *where).status == 1
