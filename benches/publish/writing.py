"""Publishing: the same content once more, and 1,000 rows more, fewer or other ones."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benches.peers.publish_relive import OWN_FILES, SAME_FILES, RelivePeer
from benches.publish.contest import section_of
from benches.publish.needed import manifest_of, store_of
from benches.publish.worker import ask
from benches.report import Section, note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.episodes.promises import Ledger
    from benches.publish.contest import Contest

MOST_REQUESTS, MOST_SHARDS = 4, 3
PLACES = 20
CHANGED = 1_000
KINDS = ("insert", "change", "delete")


def republish_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """The same files again; digests of local files are kept from the time before."""
    case = "republish the same content"
    files = [str(path) for path in contest.table.files]
    given = {"how": "republish", "given": {"files": files}}
    with tempfile.TemporaryDirectory(prefix="relive-bench-") as scratch:
        folders = {peer.name: Path(scratch) / str(at) for at, peer in enumerate(contest.peers)}
        for folder in folders.values():
            folder.mkdir()
        _, missing = contest.turns(1, contest.missing, "call", folders=folders, **given)
        found, missing = contest.turns(runs, missing, "call", folders=folders, **given)
    section = section_of(case, found, missing, SAME_FILES, contest.table.rows)
    section.unit = "publications"
    for name, measured in found.items():
        writes = max(each.counts.writes + each.afterwards.writes for each in measured)
        requests = max(each.requests + each.afterwards.requests for each in measured)
        section.facts[f"{name}, requests that write"] = f"{writes}"
        if name in (SAME_FILES, OWN_FILES):
            ledger.most(f"{case}: {name}", requests, MOST_REQUESTS, "requests")
            ledger.most(f"{case}: {name}, PUTs", writes, 0, "PUTs")
    yield section


def change_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """1,000 rows in one place, at places that are spread over the table; relive's own files."""
    del runs
    peer = next((each for each in contest.peers if each.name == OWN_FILES), None)
    if not isinstance(peer, RelivePeer) or peer.name in contest.missing:
        return
    store = store_of(contest.server, peer.bucket)
    before = _shards(manifest_of(store, peer.dataset))
    files = [str(path) for path in contest.table.files]
    total = sum(before.values())
    facts: dict[str, float | str] = {"shards of the table": f"{len(before)}, {total / 1e6:.1f} MB"}
    for kind in KINDS:
        note(f"publish: {kind} {CHANGED:,} rows at {PLACES} places")
        given = {"files": files, "kind": kind, "rows": CHANGED, "places": PLACES}
        measured = ask(peer, contest.server, "call", how="change", given=given)
        new = [_new(store, peer.dataset, digest, before) for digest in measured.answer]
        counts, sizes = [len(each) for each in new], [sum(each) for each in new]
        sent = (measured.counts.sent + measured.afterwards.sent) / PLACES
        facts[f"{kind} {CHANGED:,} rows"] = (
            f"{statistics.median(counts):g} shards ({min(counts)}-{max(counts)}), "
            f"{statistics.median(sizes) / 1e6:.1f} MB; sent on average {sent / 1e6:.1f} MB in "
            f"{measured.counts.writes / PLACES:.1f} writes, {measured.seconds / PLACES:.1f} s"
        )
        ledger.most(
            f"{kind} {CHANGED:,} rows, median of {PLACES} places",
            statistics.median(counts),
            MOST_SHARDS,
            "shards",
        )
    yield Section(
        case=f"{CHANGED:,} rows changed in one place: {OWN_FILES}",
        record_bytes=0,
        records=contest.table.rows,
        batch_size=1,
        ratio_of="",
        rows=[],
        missing={},
        facts=facts,
        unit="",
    )


def _shards(manifest: dict[str, object]) -> dict[str, int]:
    """The digest of each shard, and its bytes."""
    tables: dict[str, dict[str, list[dict[str, int]]]] = manifest["tables"]  # type: ignore[assignment]
    return {str(shard["digest"]): shard["bytes"] for shard in tables["main"]["shards"]}


def _new(store: object, dataset: str, digest: str, before: dict[str, int]) -> list[int]:
    """The bytes of each shard that the version `digest` has and `before` has not."""
    found = _shards(manifest_of(store, dataset, digest))
    return [size for shard, size in found.items() if shard not in before]
