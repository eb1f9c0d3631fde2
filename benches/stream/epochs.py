"""Two epochs from an empty cache: of one rank, and of eight that train together."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benches.peers.stream_peer import DictForm
from benches.peers.stream_relive import BATCHES, LOCAL, REMOTE, TORCH
from benches.stream.contest import ahead, section_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benches.episodes.promises import Ledger
    from benches.report import Section
    from benches.stream.contest import Contest, Entry
    from benches.stream.worker import Epoch

RANKS = 8
RANKS_RUNS = 2
ORDER = ("first", "second")
MOST_FETCHED = 1.25
"""Times the table that eight ranks without a cache may fetch together."""
LEAST_S = 1e-3
LEAST_CACHED = 0.8
"""Times the rate of local Parquet that the second epoch must have."""


def epochs_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """One rank."""
    yield from _sections(contest, 1, runs, ledger)


def ranks_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """Eight ranks on one machine, with a cache that they share."""
    yield from _sections(contest, RANKS, min(runs, RANKS_RUNS), ledger)


def _sections(contest: Contest, world: int, runs: int, ledger: Ledger) -> Iterator[Section]:
    found, missing = contest.turns(world, runs)
    entries = {each.name: each for each in contest.entries(world)[0]}
    words = "one rank" if world == 1 else f"{world} ranks"
    for number, order in enumerate(ORDER):
        case = f"{order} epoch, {words}"
        epochs = {name: [run[number] for run in each] for name, each in found.items()}
        rates = {name: [epoch.rate for epoch in each] for name, each in epochs.items()}
        settings = {name: entry.setting for name, entry in entries.items()}
        section = section_of(case, rates, settings, missing, contest.table.rows)
        for row in section.rows:
            row.tried = entries[row.name].tried
        for name, each in epochs.items():
            taken = _taken(each, entries[name], contest.table.nbytes)
            if not number and max(contest.settled_s[name]) > LEAST_S:
                settled_s = statistics.median(contest.settled_s[name])
                taken += f", cache written {settled_s:.2f} s later"
            section.facts[name] = taken
        yield section
        dicts = {each.name for each in entries.values() if isinstance(each.peer, DictForm)}
        if world == 1:
            _promise(ledger, case, number, rates, dicts)
        if world > 1 and not number and epochs.get(REMOTE):
            fetched = statistics.median(each.counts.received for each in epochs[REMOTE])
            times = fetched / contest.table.nbytes
            ledger.most(f"{case}: {REMOTE}", times, MOST_FETCHED, "x the table fetched")


def _promise(
    ledger: Ledger, case: str, number: int, rates: dict[str, list[float]], dicts: set[str]
) -> None:
    """Ahead of every peer in the first epoch, near local files in the second.

    `to_torch` makes dicts of tensors and lists, and is compared with those who do, too.
    """
    if not number:
        peers = [name for name in rates if not name.startswith(BATCHES)]
        for ours in (BATCHES, TORCH):
            for theirs in peers if ours == BATCHES else [name for name in peers if name in dicts]:
                ratio = ahead(rates, ours, theirs)
                what = f"{case}: {ours} over {theirs}"
                if ratio is None:
                    ledger.facts[what] = "not measured; at least 1 is promised"
                else:
                    ledger.least(what, ratio.median, 1, "x the rows/s")
    else:
        ratio = ahead(rates, BATCHES, LOCAL)
        what = f"{case}: {BATCHES} over {LOCAL}"
        if ratio is None:
            ledger.facts[what] = f"not measured; at least {LEAST_CACHED} is promised"
        else:
            ledger.least(what, ratio.median, LEAST_CACHED, "x the rows/s")


def _taken(epochs: Sequence[Epoch], entry: Entry, nbytes: int) -> str:
    """Seconds with their range, the first batch, requests, bytes and mixing, in words."""
    seconds = [each.seconds for each in epochs]
    received = statistics.median(each.counts.received for each in epochs)
    groups, follow = entry.mixing
    parts = [
        f"{statistics.median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f})",
        f"first batch after {statistics.median(each.first_s for each in epochs):.3f} s",
        f"{statistics.median(each.counts.requests for each in epochs):.0f} requests",
        f"{received / 1e6:.1f} MB ({received / nbytes:.2f} x the table)",
        f"{groups:.1f} row groups in a batch, {follow:.0%} of rows follow their neighbour",
    ]
    return ", ".join(parts)
