"""The parts of the bench, and who takes part."""

from __future__ import annotations

import shutil
from time import monotonic
from typing import TYPE_CHECKING

from benches.episodes.promises import Ledger
from benches.method import reason
from benches.peers.stream_datasets import HuggingFaceArrow, HuggingFaceLoader
from benches.peers.stream_lance import LanceDBTraining, LanceTraining
from benches.peers.stream_litdata import LitDataTraining
from benches.peers.stream_mosaic import MosaicTraining
from benches.peers.stream_relive import ReliveBatches, ReliveTorch
from benches.peers.stream_webdataset import WebDatasetTraining
from benches.publish.server import ROUND_TRIP_MS, serving
from benches.report import note
from benches.stream.caching import half_part, memory_part, warm_part
from benches.stream.contest import SLOW_RUNS, SLOW_S, Contest
from benches.stream.epochs import RANKS_RUNS, epochs_part, ranks_part
from benches.stream.resuming import RUNS, resume_part
from benches.stream.table import BATCH, FILES, GROUPS, StreamTable
from benches.summary import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benches.options import Options
    from benches.peers.stream_peer import StreamPeer
    from benches.report import Report, Section

PARTS: dict[str, Callable[[Contest, int, Ledger], Iterator[Section]]] = {
    "epochs": epochs_part,
    "ranks": ranks_part,
    "resume": resume_part,
    "warm": warm_part,
    "half": half_part,
    "memory": memory_part,
}


def run_parts(options: Options) -> Report:
    """The parts that were asked for, and last of all what is promised."""
    table = StreamTable.scaled(options.data_dir, options.scale)
    note(f"stream: {len(table.files)} files, {table.nbytes / 1e6:.0f} MB, {table.rows:,} rows")
    folder = options.data_dir / "stream"
    shutil.rmtree(folder, ignore_errors=True)
    ledger = Ledger()
    sections: list[Section] = []
    failed: list[str] = []
    with serving(folder) as server:
        peers = _peers(options, folder / "root")
        contest = Contest(server, table, peers, options.stream_limit_s)
        contest.prepare()
        for name, part in PARTS.items():
            if not options.parts or name in options.parts:
                begin = monotonic()
                try:
                    sections += part(contest, options.stream_runs, ledger)
                except Exception as error:  # noqa: BLE001 - what was measured is not lost
                    failed.append(f"{name}: {reason(error)}")
                    note(f"stream: {failed[-1]}")
                note(f"stream: {name} took {monotonic() - begin:.0f} s")
    shutil.rmtree(folder, ignore_errors=True)
    turns: dict[str, float | str] = {
        "runs": options.stream_runs,
        f"runs of those that train for more than {SLOW_S:.0f} s": min(
            options.stream_runs, SLOW_RUNS
        ),
        "runs, eight ranks": min(options.stream_runs, RANKS_RUNS),
        "runs, resumed": min(options.stream_runs, RUNS),
        "given up after seconds": options.stream_limit_s,
        "added round trip in ms": ROUND_TRIP_MS,
        "table": f"{table.rows:,} rows, {table.nbytes:,} bytes in {FILES} files of {GROUPS} row "
        "groups",
        "loop": f"batches of {BATCH} rows of all columns, shuffled; two columns as torch tensors",
        "measured": "in new processes each time, imports done, caches empty before the first epoch",
    }
    found = report("stream", options, (), [*sections, ledger.section()], turns)
    del found.method["rounds"]
    found.versions.update(contest.versions)
    found.not_run += [f"{name}: {why}" for name, why in contest.missing.items()]
    found.not_run += failed
    return found


def _peers(options: Options, root: Path) -> list[StreamPeer]:
    peers: list[StreamPeer] = [
        ReliveBatches(),
        ReliveTorch(),
        ReliveBatches(mode="remote"),
        ReliveBatches(local=str(root.absolute())),
        HuggingFaceLoader(),
        HuggingFaceArrow(),
        MosaicTraining(),
        LitDataTraining(),
        WebDatasetTraining(cached=False),
        WebDatasetTraining(cached=True),
        LanceTraining(cached=False),
        LanceTraining(cached=True),
        LanceDBTraining(),
    ]
    return [each for each in peers if not options.only_peers or each.family in options.only_peers]
