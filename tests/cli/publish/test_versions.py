"""`relive tag`, `untag`, `rollback`, `clone`, `delete` and `reindex`."""

from pathlib import Path

import pytest

from relive.errors import VersionWithdrawnError
from relive.publish import dataset
from tests.cli.conftest import Relive
from tests.cli.publish.conftest import latest, write_episode


def digest_of(relive: Relive, reference: str) -> str:
    """Return the digest of a version."""
    digest: str = relive("info", reference, "--json").json["digest"]
    return digest


def publish_another(relive: Relive, data: Path, episode: int) -> str:
    """Publish a version of one episode and return its digest."""
    write_episode(data / "new.parquet", episode, rows=10)
    done = relive("publish", "lab/kitchen", "--table", f"main={data}/new.parquet", "--json")
    digest: str = done.json["digest"]
    return digest


def test_tag_and_untag(relive: Relive, root: Path) -> None:
    digest = latest(relive)
    done = relive("tag", "lab/kitchen", "v2")
    assert done.status == 0
    assert done.out == f"lab/kitchen@v2: lab/kitchen@{digest[:12]}\n"
    assert digest_of(relive, "lab/kitchen@v2") == digest
    again = relive("tag", f"lab/kitchen@{digest[:8]}", "v2", "--json")
    assert again.json == {"dataset": "lab/kitchen", "tag": "v2", "digest": digest}
    taken = relive("tag", "lab/kitchen@v1", "v2")
    assert taken.status == 1
    assert "v2" in taken.err
    assert relive("tag", "lab/kitchen@v1", "v2", "--force").status == 0
    assert digest_of(relive, "lab/kitchen@v2") == digest_of(relive, "lab/kitchen@v1")
    done = relive("untag", "lab/kitchen", "v2")
    assert (done.status, done.out) == (0, "lab/kitchen: tag v2 removed\n")
    assert relive("info", "lab/kitchen@v2").status == 1
    assert relive("untag", "lab/kitchen", "v2").status == 1
    assert relive("untag", "lab/kitchen", "v1", "--json").json == {
        "dataset": "lab/kitchen",
        "tag": "v1",
    }


@pytest.mark.parametrize("tag", ["latest", "deadbeef", "a/b", "-x", "a" * 65])
def test_names_that_may_not_be_tags(relive: Relive, root: Path, tag: str) -> None:
    done = relive("tag", "lab/kitchen", "--", tag)
    assert done.status == 1
    assert "hint: " in done.err


def test_rollback(relive: Relive, root: Path, data: Path) -> None:
    first, second = digest_of(relive, "lab/kitchen@v1"), latest(relive)
    done = relive("rollback", "lab/kitchen")
    assert (done.status, done.out) == (0, f"lab/kitchen: latest is lab/kitchen@{first[:12]}\n")
    assert dataset("lab/kitchen").table().count() == 200
    found = relive("rollback", f"lab/kitchen@{second}", "--json").json
    assert found == {"dataset": "lab/kitchen", "latest": second}
    assert latest(relive) == second
    assert relive("rollback", "lab/nothing").status == 1
    assert relive("rollback", "lab/kitchen@v9").status == 1


def test_clone(relive: Relive, root: Path) -> None:
    blobs = sorted(path for path in (root / "blobs").rglob("*") if path.is_file())
    done = relive("clone", "lab/kitchen@v1", "me/kitchen", "--tag", "fork", "-m", "mine")
    assert done.status == 0, done.err
    digest = digest_of(relive, "lab/kitchen@v1")
    short = digest[:12]
    assert done.out == f"me/kitchen@{short}: the same as lab/kitchen@{short}\n"
    assert digest_of(relive, "me/kitchen") == digest_of(relive, "me/kitchen@fork") == digest
    assert sorted(path for path in (root / "blobs").rglob("*") if path.is_file()) == blobs
    assert relive("clone", "lab/kitchen@v1", "me/kitchen@x").status == 1
    assert relive("clone", "lab/nothing", "me/kitchen").status == 1
    found = relive("clone", "lab/kitchen@v1", "me/other", "--json").json
    assert found == {"source": "lab/kitchen", "dataset": "me/other", "digest": digest}


def test_delete_a_version(relive: Relive, root: Path, data: Path) -> None:
    old = latest(relive)
    publish_another(relive, data, 5)
    asked = relive("delete", f"lab/kitchen@{old[:10]}")
    assert asked.status == 1
    assert "hint: pass --yes" in asked.err
    done = relive("delete", f"lab/kitchen@{old[:10]}", "--reason", "wrong labels", "--yes")
    assert (done.status, done.out) == (0, f"lab/kitchen@{old[:12]}: withdrawn\n")
    gone = relive("head", f"lab/kitchen@{old}")
    assert gone.status == 1
    assert "wrong labels" in gone.err
    with pytest.raises(VersionWithdrawnError):
        dataset(f"lab/kitchen@{old}")


def test_versions_that_are_named_are_not_deleted(relive: Relive, root: Path) -> None:
    for reference in (f"lab/kitchen@{latest(relive)}", "lab/kitchen@v1"):
        done = relive("delete", reference, "--yes")
        assert done.status == 1
        assert done.err.startswith("error: ")
    assert relive("info", "lab/kitchen").status == 0


def test_delete_by_rule(relive: Relive, root: Path, data: Path) -> None:
    second = latest(relive)
    third = publish_another(relive, data, 5)
    publish_another(relive, data, 6)
    listed = relive("delete", "lab/kitchen", "--keep-last", 1)
    assert listed.status == 0
    assert listed.out.splitlines() == [f"lab/kitchen@{each[:12]}" for each in (second, third)]
    assert "pass --yes" in listed.err
    assert relive("info", f"lab/kitchen@{second}").status == 0
    assert relive("delete", "lab/kitchen", "--keep-last", 2, "--json").json["selected"] == [second]
    young = relive("delete", "lab/kitchen", "--keep-last", 0, "--older-than", "1h", "--yes")
    assert (young.status, young.out) == (0, "0 versions withdrawn\n")
    done = relive("delete", "lab/kitchen", "--keep-last", 1, "--yes", "--json")
    assert done.json == {
        "dataset": "lab/kitchen",
        "selected": [second, third],
        "withdrawn": [second, third],
    }
    assert relive("info", f"lab/kitchen@{third}").status == 1
    assert relive("delete", "lab/kitchen", "--keep-last", 1).out == "no versions\n"
    assert relive("info", "lab/kitchen@v1").status == 0


@pytest.mark.parametrize(
    "args",
    [
        ["delete", "lab/kitchen"],
        ["delete", "lab/kitchen@v1", "--keep-last", "1"],
        ["delete", "lab/kitchen", "--older-than", "30"],
        ["delete", "lab/kitchen", "--older-than", "1y"],
        ["delete", "lab/kitchen", "--keep-last", "-1"],
        ["tag", "lab/kitchen"],
        ["clone", "lab/kitchen"],
    ],
    ids=" ".join,
)
def test_wrong_usage(relive: Relive, root: Path, args: list[str]) -> None:
    done = relive(*args)
    assert (done.status, done.out) == (2, "")


def test_reindex(relive: Relive, root: Path) -> None:
    folder = root / "manifests" / "lab"
    (folder / "index.json").unlink()
    (folder / "kitchen" / "log.json").unlink()
    assert relive("list-remote", "lab/").out == "no datasets\n"
    done = relive("reindex", "lab/")
    assert (done.status, done.out) == (0, "lab/kitchen: 2 versions\n")
    assert relive("list-remote", "lab/").out == "dataset\nlab/kitchen\n"
    assert relive("reindex", "lab/kitchen", "--json").json == [
        {"dataset": "lab/kitchen", "versions": 2}
    ]
    assert relive("reindex").status == 0
    assert relive("reindex", "a b/").status == 1
