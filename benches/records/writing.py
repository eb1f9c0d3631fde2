"""Writing, at once and one by one: every turn writes whole stores, from the same memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import TYPE_CHECKING

from benches.method import Outcome, compare
from benches.payloads import BATCH_SIZE, discard
from benches.peers import Peer, Setting, Stream, nothing
from benches.peers.record_store import Selective, able, at_spot, record_case, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benches.data import Case
    from benches.method import Pace
    from benches.options import Options
    from benches.peers.record_store import Job, RecordCase, RecordPeer

SYNCED = ", synced"
MOST_BYTES = (8 << 20, 48 << 20)
"""What one turn writes at most, compressed and raw."""
MOST = (100_000, 8192)
"""The records of one turn at most, at once and one by one."""


@dataclass(frozen=True)
class WriteStream(Stream):
    """A stream whose batches are stores: made ready, written on the clock, removed."""

    job: Callable[[], Job] | None = None
    remove: Callable[[], None] = nothing
    reader: Callable[[], Stream] | None = None

    def timed(self, count: int) -> float:
        """Seconds that writing `count` stores took, less what comes before and after."""
        taken = 0.0
        for _ in repeat(None, count):
            self.remove()
            taken += self._once()
        self.remove()
        return taken

    def check(self, case: Case) -> None:
        """Raise unless what was written reads as it should."""
        self.remove()
        self._once()
        assert self.reader is not None
        stream = self.reader()
        try:
            stream.check(case)
        finally:
            stream.close()
        self.remove()

    def _once(self) -> float:
        assert self.job is not None
        job = self.job()
        begin = perf_counter()
        after = job()
        taken = perf_counter() - begin
        after()
        return taken


class Writing(Selective, Peer):
    """A kind of store that is written over and over: at once, synced or not, or one by one."""

    def __init__(self, store: RecordPeer, how: str) -> None:
        self.store = store
        self.how = how
        self.name = f"{store.name}{SYNCED}" if how == "synced" else store.name

    @property
    def family(self) -> str:  # type: ignore[override]
        """The family of the store."""
        return self.store.family

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]
        """The packages of the store."""
        return self.store.packages

    def refuses(self, case: RecordCase) -> bool:
        """Whatever the store cannot keep."""
        return self.store.refuses(case)

    def files(self, case: Case) -> list[Path]:
        """What is there while it is written."""
        return self.store.files(case)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Nothing is open: every turn begins with nothing."""
        del setting
        records = records_of(case)
        (path,) = self.store.files(case)

        def job() -> Job:
            if self.how == "each":
                return self.store.each(records, path)
            return self.store.bulk(records, path, synced=self.how == "synced")

        def reader() -> Stream:
            return self.store.open(case, self.store.settings(case)[0])

        return WriteStream(iter(()), None, job=job, remove=partial(discard, path), reader=reader)


def write_case(options: Options, size: int, content: str, how: str) -> RecordCase:
    """The records of one turn, at a place of their own."""
    most_bytes, most = MOST_BYTES[content == "random"], MOST[how == "each"]
    records = max(round(min(most_bytes / size, most) * options.scale), BATCH_SIZE)
    return at_spot(record_case(options.data_dir, size, records, content), "written")


def written(peers: Sequence[Peer], case: RecordCase, pace: Pace) -> Outcome:
    """Time `peers`; a rate is not of stores but of batches of as many records."""
    outcome = compare(able(peers, case), case, pace)
    for each in outcome.contenders:
        each.rates = [rate * case.records / case.batch_size for rate in each.rates]
    return outcome


def outcome_of(outcome: Outcome, how: str) -> Outcome:
    """Those who wrote in one way; who is missing is missing in all of them."""
    found = [
        each
        for each in outcome.contenders
        if isinstance(each.peer, Writing) and each.peer.how == how
    ]
    synced = {name: why for name, why in outcome.missing.items() if name.endswith(SYNCED)}
    plain = {name: why for name, why in outcome.missing.items() if name not in synced}
    return Outcome(outcome.case, found, synced if how == "synced" else plain)
