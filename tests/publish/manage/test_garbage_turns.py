"""A gc beside publishers, request by request in drawn orders: what is named is never deleted.

`RELIVE_GC_TURNS` says how many orders are drawn for each combination (`make faults`: 300).
"""

import os
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from relive.errors import LockedError, ReliveError
from relive.publish.manage.garbage import collect_garbage
from relive.publish.manage.references import References
from relive.publish.retention import announcements, held_object, leases
from relive.publish.version.catalog import Catalog
from relive.publish.version.names import DatasetId, Reference, parse_reference
from relive.publish.write.builder import DatasetBuilder
from relive.store.blobs import blob_key
from relive.store.roots.memory import MemoryRoot
from relive.store.roots.root import Root
from tests.publish.manage.turns import KilledError, Turns

TURNS = int(os.environ.get("RELIVE_GC_TURNS", "8"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
ID = DatasetId("lab", "arm")
EXPIRED = -1e9
pytestmark = pytest.mark.timeout(3600)

Act = Callable[[Root], Any]


def table(number: int) -> pa.Table:
    return pa.table({"n": [number] * 3})


def publish(root: Root, *tables: int, base: str | None = None, **options: Any) -> str:
    """Publish a version with one table for each number."""
    with DatasetBuilder(f"{ID}", root, base) as builder:
        for number in tables:
            builder.replace_table(f"t{number}", table(number))
        return str(builder.publish(on_conflict="move", **options))


def withdraw(root: Root, digest: str) -> str:
    return Catalog(root).withdraw(Reference(ID, digest), "for a test")


def gc(root: Root) -> Any:
    return collect_garbage(root, grace_s=0, dry_run=False)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[Root, dict[str, str]]]:
    """Return a function that fills a root: a withdrawn version, an old one, and the latest."""
    monkeypatch.setattr(held_object, "POLL_S", 0)

    def fill(number: int) -> tuple[Root, dict[str, str]]:
        root = MemoryRoot(f"turns-{number}")
        root.delete([entry.key for entry in root.list()])
        made = {
            "gone": publish(root, 1, 2),
            "old": publish(root, 3, 4),
            "latest": publish(root, 5),
        }
        withdraw(root, made["gone"])
        return root, made

    return fill


def actors(made: dict[str, str], draw: random.Random) -> dict[str, Act]:
    """Return some of the things that are done to a root at the same time as a gc."""
    old = made["old"]
    other = DatasetId("lab", "leg")
    every: dict[str, Act] = {
        "again": lambda root: publish(root, 1, 2),
        "again, a part": lambda root: publish(root, 2, 6, set_latest=False),
        "on top of the old": lambda root: publish(root, 7, base=old),
        "old in part": lambda root: publish(root, 3, base=made["latest"], tag="v3"),
        "withdraw the old": lambda root: withdraw(root, old),
        "clone the old": lambda root: Catalog(root).clone(parse_reference(f"{ID}@{old}"), other),
        "tag the old": lambda root: Catalog(root).tag(parse_reference(f"{ID}@{old}"), "old"),
        "roll back": lambda root: Catalog(root).rollback(ID),
        "second gc": gc,
    }
    chosen = draw.sample(sorted(every), draw.choice([1, 2, 2, 3]))
    return {"gc": gc, **{name: every[name] for name in chosen}}


def check(root: Root) -> References:
    """Check that everything exists that a manifest or a pointer names."""
    references = References(root)
    references.update()
    missing = [digest for digest in references.digests if not root.exists([blob_key(digest)])[0]]
    assert not missing
    return references


def check_clean(root: Root) -> None:
    """Check that a gc leaves exactly what is named, and no lease or list."""
    gc(root)
    references = check(root)
    there = {entry.key for entry in root.list("blobs")}
    assert there == {blob_key(digest) for digest in references.digests}
    assert list(root.list("leases")) == []
    assert [entry.key for entry in root.list("gc")] == [announcements.KEY]


@pytest.mark.parametrize("expired", [False, True], ids=["", "every lease expires at once"])
def test_nothing_named_is_lost(
    make: Callable[[int], tuple[Root, dict[str, str]]],
    expired: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if expired:
        monkeypatch.setattr(leases, "SLACK_S", EXPIRED)
    deleted = published = 0
    for number in range(SEED * 10_000, SEED * 10_000 + 4 * TURNS):
        root, made = make(number)
        turns = Turns(number)
        turns.run(root, actors(made, random.Random(number)))  # noqa: S311
        try:
            check(root)
            for name, result in turns.results.items():
                assert isinstance(result, ReliveError) or "gc" in name or len(result) == 64
                if name.startswith("again") and isinstance(result, str):
                    published += 1
                    Catalog(root).resolve(Reference(ID, result))
            assert not isinstance(turns.results["gc"], Exception), turns.results["gc"]
            deleted += turns.results["gc"].deleted
            check_clean(root)
        except BaseException:
            print(number, turns.results, *turns.log, sep="\n")  # noqa: T201
            raise
    assert deleted
    assert published


@pytest.mark.parametrize("who", ["gc", "again"])
def test_kills(
    who: str,
    make: Callable[[int], tuple[Root, dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed at any request; the next gc and the next publisher finish the work."""
    kills = 0
    for number in range(SEED * 20_000, SEED * 20_000 + 2 * TURNS):
        draw = random.Random(number)  # noqa: S311
        root, _ = make(number)
        turns = Turns(number, {who: draw.randrange(1, 30)})
        chosen: dict[str, Act] = {"gc": gc}
        if who == "again":
            # The gc would wait for the lease of the killed publisher for five minutes.
            chosen["gc"] = lambda root: collect_garbage(root, grace_s=0, dry_run=False, wait_s=0)
            chosen["again"] = lambda root: publish(root, 1, 2)
        turns.run(root, chosen)
        try:
            kills += isinstance(turns.results[who], KilledError)
            if who == "again":
                assert isinstance(turns.results["gc"], LockedError) or turns.results["gc"]
            check(root)
            with monkeypatch.context() as patch:
                patch.setattr(leases, "SLACK_S", EXPIRED)
                patch.setattr(announcements, "SLACK_S", EXPIRED)
                again = publish(root, 1, 2)
                check(root)
                assert Catalog(root).resolve(Reference(ID, None)).digest == again
                check_clean(root)
        except BaseException:
            print(number, turns.results, *turns.log, sep="\n")  # noqa: T201
            raise
    assert kills > TURNS // 2
