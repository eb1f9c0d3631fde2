"""What only relive is measured on: warming, a cache of half the table, and memory."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benches.peers.stream_relive import ReliveBatches
from benches.report import Section, note
from benches.stream.epochs import RANKS
from benches.stream.table import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benches.episodes.promises import Ledger
    from benches.stream.contest import Contest

MOST_WARMED, MOST_HALF = 1.05, 0.7
SMALL_BATCH = 32
COUNTS = (1_000, 10_000)
MOST_GROWTH_MIB = 32.0
SAMPLE_S = 0.02


def warm_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """Eight processes that warm one dataset into one cache."""
    del runs
    peer = ReliveBatches()
    note(f"stream: {RANKS} processes warming one dataset")
    with contest.session(peer, world=RANKS) as session:
        contest.server.take()
        session.ask("call", how="warm", given={})
        counts = contest.server.take()
        times = counts.received / contest.table.nbytes
        with contest.session(peer, scratch=session.scratch) as later:
            later.open({}, BATCH)
            epoch = later.epoch(0, group_rows=contest.table.group_rows)
    contest.compare(epoch.sums)
    ledger.most(f"{RANKS} processes warming", times, MOST_WARMED, "x the table fetched")
    yield _facts(
        "warming",
        {
            f"{RANKS} processes": f"{times:.3f} x the table, {counts.requests} requests",
            "an epoch after it": f"{epoch.counts.received / 1e6:.2f} MB, "
            f"{epoch.counts.requests} requests",
        },
    )


def half_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """Two epochs with a cache of half the table; its size is sampled all the time."""
    del runs
    note("stream: a cache of half the table")
    limit = contest.table.nbytes // 2
    variables = {"RELIVE_CACHE_LIMIT": f"{limit}"}
    with contest.session(ReliveBatches(), variables=variables) as session:
        session.open({}, BATCH)
        with _largest(session.scratch / "relive") as largest:
            epochs = [session.epoch(n, group_rows=contest.table.group_rows) for n in range(3)]
    for epoch in epochs:
        contest.compare(epoch.sums)
    shares = [each.counts.received / contest.table.nbytes for each in epochs]
    ledger.most("cache of half the table, second epoch", shares[1], MOST_HALF, "x the table")
    ledger.most(
        "cache of half the table, allocated", largest[0] / 1e6, limit / 1e6, "MB at any time"
    )
    yield _facts(
        "a cache of half the table",
        {
            "fetched, by epoch": ", ".join(f"{each:.2f} x the table" for each in shares),
            "allocated at most": f"{largest[0] / 1e6:.2f} MB of {limit / 1e6:.2f} MB, "
            f"in {largest[1]} samples",
        },
    )


def memory_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """Resident memory after 1,000 and after 10,000 batches."""
    del runs
    note("stream: memory of 10,000 batches")
    with contest.session(ReliveBatches(), far=False) as session:
        session.open({}, SMALL_BATCH)
        (found,) = session.ask("memory", counts=list(COUNTS))
    mib = [each / (1 << 20) for each in found]
    ledger.most(
        f"memory from batch {COUNTS[0]:,} to {COUNTS[1]:,}", mib[1] - mib[0], MOST_GROWTH_MIB, "MiB"
    )
    yield _facts(
        f"resident memory, batches of {SMALL_BATCH}",
        {f"after {count:,}": f"{each:.1f} MiB" for count, each in zip(COUNTS, mib, strict=True)},
    )


@contextmanager
def _largest(folder: Path) -> Iterator[list[int]]:
    """Sample the allocated bytes of a folder; its list has the most, and how many samples."""
    found = [0, 0]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            found[0] = max(found[0], _allocated(folder))
            found[1] += 1

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def _allocated(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(f"{parent}/{name}").st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _facts(case: str, facts: dict[str, float | str]) -> Section:
    return Section(
        case=case,
        record_bytes=0,
        records=0,
        batch_size=0,
        ratio_of="",
        rows=[],
        missing={},
        facts=facts,
        unit="",
    )
