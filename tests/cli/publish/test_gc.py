"""`relive gc`: lists by default, deletes with `--yes`."""

from pathlib import Path

from relive.publish.retention.leases import Lease
from relive.store.roots import open_root
from tests.cli.conftest import Relive
from tests.cli.publish.conftest import latest


def blobs(root: Path) -> int:
    return sum(1 for _ in open_root(root).list("blobs"))


def test_gc(relive: Relive, root: Path) -> None:
    digest = latest(relive)
    assert blobs(root) == 3
    assert relive("rollback", "lab/kitchen").status == 0
    assert relive("delete", f"lab/kitchen@{digest}", "--yes").status == 0
    young = relive("gc")
    assert (young.status, young.out) == (0, "0 blobs, 0 bytes can be deleted\n")
    assert young.err == "1 blob that no version names: kept, younger than --grace\n"
    dry = relive("gc", "--grace", "0s")
    assert dry.out.startswith("1 blob, ")
    assert dry.out.endswith(" can be deleted\n")
    assert "--yes" in dry.err
    assert blobs(root) == 3
    found = relive("gc", "--grace", "0s", "--json")
    assert (found.json["garbage"], found.json["deleted"], found.json["dry_run"]) == (1, 0, True)
    done = relive("gc", "--grace", "0s", "--yes", "--root", str(root))
    assert done.out.startswith("1 blob, ")
    assert done.out.endswith(" deleted\n")
    assert blobs(root) == 2
    assert relive("gc", "--grace", "0s", "--yes", "--json").json["deleted"] == 0
    assert relive("validate", "lab/kitchen", "--level", "full").status == 0


def test_wait(relive: Relive, root: Path) -> None:
    digest = latest(relive)
    relive("rollback", "lab/kitchen")
    relive("delete", f"lab/kitchen@{digest}", "--yes")
    lease = Lease(open_root(root))
    assert lease.take()
    done = relive("gc", "--grace", "0s", "--yes", "--wait", "0s")
    assert done.status == 1
    assert "waiting for 1 publisher" in done.err
    assert "1 publisher of" in done.err
    assert blobs(root) == 3
    lease.release()
    assert relive("gc", "--grace", "0s", "--yes").status == 0
    assert blobs(root) == 2


def test_wrong_arguments(relive: Relive, root: Path) -> None:
    done = relive("gc", "--grace", "soon")
    assert done.status == 2
    assert "30d" in done.err


def test_the_only_version(relive: Relive, root: Path) -> None:
    first = relive("info", "lab/kitchen@v1", "--json").json["digest"]
    newest = latest(relive)
    assert relive("delete", f"lab/kitchen@{newest}", "--yes").status == 1
    relive("rollback", "lab/kitchen")
    relive("untag", "lab/kitchen", "v1")
    assert relive("delete", f"lab/kitchen@{newest}", "--yes").status == 0
    done = relive("delete", f"lab/kitchen@{first}", "--reason", "private", "--yes")
    assert done.status == 0, done.err
    gone = relive("head", "lab/kitchen")
    assert gone.status == 1
    assert "private" in gone.err
    assert relive("gc", "--grace", "0s", "--yes", "--json").json["deleted"] == 3
    assert blobs(root) == 0
