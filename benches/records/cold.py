"""Cold: before every turn a store leaves the page cache; then it is opened and read from."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from itertools import islice, repeat
from time import perf_counter
from typing import TYPE_CHECKING

from benches.data import files_under
from benches.method import compare
from benches.pagecache import evict, resident_share
from benches.peers import Peer, Setting, Stream
from benches.peers.record_store import Selective, able, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benches.data import Case
    from benches.method import Outcome, Pace
    from benches.peers.record_store import RecordCase

BATCHES = 4
"""Batches of one turn, behind the opening of the store."""


@dataclass(frozen=True)
class ColdStream(Stream):
    """A stream of turns: evict and then, on the clock, open and deliver some batches."""

    evict: Callable[[], Case] | None = None
    opened: Callable[[Case], Stream] | None = None

    def timed(self, count: int) -> float:
        """Seconds that `count` turns took, less evicting and closing."""
        assert self.evict is not None
        assert self.opened is not None
        taken = 0.0
        for _ in repeat(None, count):
            case = self.evict()
            begin = perf_counter()
            stream = self.opened(case)
            for _ in islice(stream.batches, BATCHES):
                pass
            taken += perf_counter() - begin
            stream.close()
            del stream  # with its map, which would hold pages
        return taken

    def check(self, case: Case) -> None:
        """Raise unless a cold store gives what it should."""
        assert self.evict is not None
        assert self.opened is not None
        self.evict()
        stream = self.opened(case)
        stream.check(case)
        stream.close()
        del stream


class Cold(Selective, Peer):
    """A peer whose files are not in memory when a turn begins."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.name = peer.name
        self.turns = 0
        self.resident = 0.0
        """The largest part of its files that was still in the page cache after eviction."""

    @property
    def family(self) -> str:  # type: ignore[override]
        """The family of the peer."""
        return self.peer.family

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]
        """The packages of the peer."""
        return self.peer.packages

    def refuses(self, case: RecordCase) -> bool:
        """Whatever the peer cannot keep."""
        return isinstance(self.peer, Selective) and self.peer.refuses(case)

    def settings(self, case: Case) -> Sequence[Setting]:
        """Those of the peer."""
        return self.peer.settings(case)

    def files(self, case: Case) -> list[Path]:
        """Those of the peer."""
        return self.peer.files(case)

    def prepare(self, case: Case) -> None:
        """As the peer does."""
        self.peer.prepare(case)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Nothing is open between turns: a map that is alive would hold its pages."""
        records = replace(records_of(case), cold=True)
        files = [file for path in self.peer.files(case) for file in files_under(path)]

        def emptied() -> Case:
            gc.collect()
            evict(files)
            self.resident = max(self.resident, resident_share(files))
            # Another order each turn, made before the clock starts.
            self.turns += 1
            shuffled = replace(records, seed=self.turns)
            shuffled.batches  # noqa: B018 - the case keeps them
            return shuffled

        def opened(wanted: Case) -> Stream:
            return self.peer.open(wanted, setting)

        return ColdStream(iter(()), None, evict=emptied, opened=opened)


def cold(peers: Sequence[Cold], case: RecordCase, pace: Pace) -> Outcome:
    """Time `peers`; a rate is not of turns but of their batches."""
    outcome = compare(able(peers, case), case, pace)
    for each in outcome.contenders:
        each.rates = [rate * BATCHES for rate in each.rates]
    return outcome
