"""Cold and larger than memory: how long a batch takes when its bytes are on the disk.

Cold: before every turn, the contender's files leave the page cache; it then
opens them and delivers a fixed number of batches. Larger than memory: the same
turns in a memory cgroup half as large as the file, the page cache kept as the
one before left it.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from benches import cgroup
from benches.data import files_under
from benches.method import Ratio, reason
from benches.pagecache import evict, fill, resident_share
from benches.peers import label
from benches.peers.loaderx_loader import LoaderxLoader
from benches.peers.numpy_take import NumpyTake
from benches.peers.relive_source import ReliveLoader
from benches.peers.torch_loader import TorchLoader
from benches.report import Report, Row, Section, note
from benches.summary import report

if TYPE_CHECKING:
    from benches.data import Case
    from benches.options import Options
    from benches.peers import Peer, Setting

BATCHES = 1024
TRIAL_BATCHES = 24
TURN_S = 3.0
"""A turn ends after this long, however few batches it delivered."""
FILE_PER_LIMIT = 2
TURNS: dict[str, float | str] = {
    "batches per turn": BATCHES,
    "seconds per turn at most": TURN_S,
    "page cache": "emptied before each turn, or limited by the cgroup",
}


@dataclass
class Turns:
    """What one contender did, turn by turn; seconds per batch."""

    peer: Peer
    setting: Setting
    tried: dict[str, float]
    latencies: list[list[float]] = field(default_factory=list)
    resident: float = 0.0
    opened: int = 0

    @property
    def rates(self) -> list[float]:
        """Batches per second of each turn, the first batch included."""
        return [len(turn) / sum(turn) for turn in self.latencies]


def run(options: Options) -> Report:
    """The cold cases here, then the limited ones in a child inside a cgroup."""
    peers = options.chosen(
        [
            NumpyTake(),
            TorchLoader("batch"),
            LoaderxLoader(),
            ReliveLoader(options.workers),
            ReliveLoader(options.workers, "block"),
        ]
    )
    limit = options.memory_limit_mib << 20
    if options.limited:
        cases = [case.at_least(limit * FILE_PER_LIMIT) for case in options.cases()]
        sections = [_section(case, peers, options, keep=True) for case in cases]
        return report("cold", options, peers, sections, TURNS)
    sections = [_section(case, peers, options, keep=False) for case in options.cases()]
    whole = report("cold", options, peers, sections, TURNS)
    if limit:
        _add_limited(whole, peers, options)
    return whole


def _section(case: Case, peers: list[Peer], options: Options, *, keep: bool) -> Section:
    case.make()
    entered: list[Turns] = []
    missing: dict[str, str] = {}
    for peer in peers:
        note(f"{case.name}: {peer.name}")
        try:
            peer.prepare(case)
            entered.append(_tuned(peer, case, keep=keep))
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way
            missing[peer.name] = reason(error)
    for number in range(options.rounds):
        note(f"{case.name}: round {number + 1} of {options.rounds}")
        for turns in entered[:: -1 if number % 2 else 1]:
            turns.latencies.append(_turn(turns, turns.setting, case, BATCHES, keep=keep))
    state = f"in {options.memory_limit_mib} MiB" if keep else "cold"
    return Section(
        case=f"{case.name}, {state}",
        record_bytes=case.record_bytes,
        records=case.records,
        batch_size=case.batch_size,
        ratio_of="relive is x",
        rows=_rows(entered, case),
        missing=missing,
        facts={} if keep else {"largest part still cached after eviction": _most(entered)},
    )


def _tuned(peer: Peer, case: Case, *, keep: bool) -> Turns:
    """`peer` at the best of its settings, each tried for a few batches."""
    settings = list(peer.settings(case))
    turns = Turns(peer, settings[0], {})
    if keep:
        fill(_files(peer, case))
    best = 0.0
    for setting in settings:
        taken = _turn(turns, setting, case, TRIAL_BATCHES, keep=keep)
        rate = len(taken) / sum(taken)
        turns.tried[label(setting)] = rate
        if rate > best:
            best, turns.setting = rate, setting
    return turns


def _turn(turns: Turns, setting: Setting, case: Case, count: int, *, keep: bool) -> list[float]:
    """Open, deliver `count` batches, close: seconds of each batch."""
    gc.collect()  # a map that is still alive somewhere would hold its pages
    if not keep:
        files = _files(turns.peer, case)
        evict(files)
        turns.resident = max(turns.resident, resident_share(files))
    # Another order each turn: what the last turn left in the cache is no help to this one.
    turns.opened += 1
    shuffled = replace(case, seed=turns.opened)
    shuffled.batches  # noqa: B018 - made here, so that the first batch need not wait for it
    stream = turns.peer.open(shuffled, setting)
    taken: list[float] = []
    try:
        begin = before = perf_counter()
        while len(taken) < count and before - begin < TURN_S:
            next(stream.batches)
            now = perf_counter()
            taken.append(now - before)
            before = now
    finally:
        stream.close()
    return taken


def _files(peer: Peer, case: Case) -> list[Path]:
    return [file for path in peer.files(case) for file in files_under(path)]


def _most(entered: list[Turns]) -> float:
    return max((turns.resident for turns in entered), default=0.0)


def _rows(entered: list[Turns], case: Case) -> list[Row]:
    ours = next((turns for turns in entered if turns.peer.name.endswith("shuffle")), None)
    rows = []
    for turns in entered:
        rate = statistics.median(turns.rates)
        later = np.concatenate([turn[1:] for turn in turns.latencies]) * 1e3
        p50, p99 = (float(value) for value in np.percentile(later, (50, 99)))
        first = statistics.median(turn[0] for turn in turns.latencies) * 1e3
        rows.append(
            Row(
                name=turns.peer.name,
                setting=label(turns.setting),
                rates=turns.rates,
                rate=rate,
                gb_per_s=rate * case.batch_bytes / 1e9,
                ratio=Ratio.of(ours.rates, turns.rates) if ours else None,
                tried=turns.tried,
                latency_ms={"p50": p50, "p99": p99, "first": first},
            )
        )
    return rows


def _add_limited(whole: Report, peers: list[Peer], options: Options) -> None:
    """Run this bench once more in a child inside a cgroup, and take over its sections."""
    limit = options.memory_limit_mib << 20
    for case in options.cases():
        larger = case.at_least(limit * FILE_PER_LIMIT)
        note(f"{case.name}: files of {larger.records * larger.record_bytes >> 20} MiB")
        larger.make()
        for peer in peers:
            try:
                peer.prepare(larger)
                evict(_files(peer, larger))  # pages count for whoever reads them first
            except Exception as error:  # noqa: BLE001 - the child names who is missing
                note(f"{peer.name}: {reason(error)}")
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "limited.json"
        command = [sys.executable, "-m", "benches", "cold", "--limited", "--json", str(found)]
        command += ["--memory-limit", str(options.memory_limit_mib)]
        command += ["--scale", str(options.scale), "--rounds", str(options.rounds)]
        command += ["--workers", str(options.workers), "--data-dir", str(options.data_dir)]
        if options.only_peers:
            command += ["--only-peers", ",".join(sorted(options.only_peers))]
        if options.only_cases:
            command += ["--only-cases", ",".join(str(size) for size in options.only_cases)]
        try:
            with cgroup.limited(limit) as group:
                status = cgroup.run_inside(group, command)
        except OSError as error:
            whole.not_run.append(f"larger than memory: {reason(error)}")
            return
        if status:
            whole.not_run.append(f"larger than memory: the limited child ended with {status}")
            return
        for section in json.loads(found.read_text(encoding="utf-8"))["sections"]:
            rows = [Row(**{**row, "ratio": _ratio(row["ratio"])}) for row in section["rows"]]
            whole.sections.append(Section(**{**section, "rows": rows}))


def _ratio(found: dict[str, float] | None) -> Ratio | None:
    return Ratio(**found) if found else None
