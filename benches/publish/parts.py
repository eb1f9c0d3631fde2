"""The parts of the bench, and who takes part."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from benches.episodes.promises import Ledger
from benches.peers.publish_arrow import ArrowDataset
from benches.peers.publish_datasets import HuggingFaceStreaming
from benches.peers.publish_lance import LanceTable
from benches.peers.publish_mosaic import MosaicStreaming
from benches.peers.publish_relive import RelivePeer
from benches.peers.publish_warpdata import WarpData
from benches.publish.contest import Contest
from benches.publish.reading import all_part, columns_part, filter_part, first_part, head_part
from benches.publish.server import ROUND_TRIP_MS, serving
from benches.publish.table import Table
from benches.publish.writing import change_part, republish_part
from benches.report import note
from benches.summary import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benches.options import Options
    from benches.peers.publish_peer import PublishPeer
    from benches.report import Report, Section

PEERS: tuple[PublishPeer, ...] = (
    RelivePeer(rewrite=False),
    RelivePeer(rewrite=True),
    WarpData(),
    WarpData(connected=True),
    ArrowDataset(),
    HuggingFaceStreaming(),
    LanceTable(),
    MosaicStreaming(),
)
PARTS: dict[str, Callable[[Contest, int, Ledger], Iterator[Section]]] = {
    "first": first_part,
    "columns": columns_part,
    "all": all_part,
    "head": head_part,
    "filter": filter_part,
    "republish": republish_part,
    "change": change_part,
}


def run_parts(options: Options) -> Report:
    """The parts that were asked for, and last of all what is promised."""
    table = Table.scaled(options.data_dir, options.scale)
    note(f"publish: {len(table.files)} files, {table.nbytes / 1e6:.0f} MB, {table.rows:,} rows")
    folder = options.data_dir / "publish"
    shutil.rmtree(folder, ignore_errors=True)
    ledger = Ledger()
    sections: list[Section] = []
    with serving(folder) as server:
        contest = Contest(server, table, _peers(options))
        contest.prepare()
        for name, part in PARTS.items():
            if not options.parts or name in options.parts:
                sections += part(contest, options.publish_runs, ledger)
    shutil.rmtree(folder, ignore_errors=True)
    turns: dict[str, float | str] = {
        "runs": options.publish_runs,
        "added round trip in ms": ROUND_TRIP_MS,
        "table": f"{table.rows:,} rows, {table.nbytes:,} bytes in {len(table.files)} files",
        "measured": "in a new process each time, imports done, caches empty",
    }
    found = report("publish", options, (), [*sections, ledger.section()], turns)
    del found.method["rounds"]
    found.versions.update(contest.versions)
    found.not_run += [f"{name}: {why}" for name, why in contest.missing.items()]
    return found


def _peers(options: Options) -> list[PublishPeer]:
    return [each for each in PEERS if not options.only_peers or each.family in options.only_peers]
