"""Turns: all peers take them one after the other, run after run, each time in new processes."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from benches.method import PAUSE_S, Ratio, reason
from benches.peers import label
from benches.peers.stream_relive import BATCHES
from benches.publish.contest import LONGEST
from benches.report import Row, Section, note
from benches.stream.table import BATCH
from benches.stream.worker import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benches.peers import Setting
    from benches.peers.stream_peer import StreamPeer
    from benches.publish.server import DelayedServer
    from benches.publish.table import Sums
    from benches.stream.table import StreamTable
    from benches.stream.worker import Epoch

EPOCHS = 2
SLOW_S, SLOW_RUNS = 20.0, 3
"""A peer that trains longer than that in a run takes part in the first three runs alone."""

Result = TypeVar("Result")
Found = dict[str, list[list["Epoch"]]]
"""Of each peer, the epochs of each run."""


@dataclass
class Entry:
    """A peer that takes part, with the setting that was fastest."""

    peer: StreamPeer
    setting: Setting
    tried: dict[str, float]
    mixing: tuple[float, float] = (0.0, 0.0)

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.peer.name


@dataclass
class Contest:
    """All peers whose table is on the server, and why the others are not there."""

    server: DelayedServer
    table: StreamTable
    peers: list[StreamPeer]
    limit_s: float
    """How long a session of a peer may take."""
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    wanted: Sums = field(init=False)
    settled_s: dict[str, list[float]] = field(default_factory=dict)
    """How long each peer took after its first epochs until its cache was written."""
    _entries: dict[int, tuple[list[Entry], dict[str, str]]] = field(default_factory=dict)

    def session(self, peer: StreamPeer, **given: Any) -> Session:
        """A session with the limit of this contest."""
        return Session(peer, self.server, limit_s=self.limit_s, **given)

    def prepare(self) -> None:
        """Let each peer put the table on the server, without the added round trip."""
        self.wanted = self.table.sums()
        published: set[str] = set()
        for peer in self.peers:
            if peer.stored not in published or not self.versions.keys() >= set(peer.packages):
                note(f"stream: {peer.name}, on its way to the server")
                self.attempt(peer, self.missing, partial(self._publish, peer, published))

    def _publish(self, peer: StreamPeer, published: set[str]) -> None:
        with self.session(peer, far=False) as session:
            self.versions |= session.ask("versions")[0]
            if peer.stored not in published:
                self.server.make_bucket(peer.bucket)
                session.ask("publish", files=[str(path) for path in self.table.files])
                published.add(peer.stored)

    def entries(self, world: int) -> tuple[list[Entry], dict[str, str]]:
        """Who can train with so many ranks, and why the others cannot; found out once.

        Every setting is tried once, for one epoch.
        """
        if world not in self._entries:
            missing = dict(self.missing)
            found = []
            for peer in self.peers:
                if peer.name not in missing and (world == 1 or not peer.only_alone):
                    entry = self.attempt(peer, missing, partial(self._tuned, peer, world))
                    if entry is not None:
                        found.append(entry)
            self._entries[world] = found, missing
        return self._entries[world]

    def _tuned(self, peer: StreamPeer, world: int) -> Entry:
        settings = list(peer.settings(world))
        if len(settings) == 1:
            return Entry(peer, settings[0], {})
        rates: dict[str, float] = {}
        failure: Exception | None = None
        for setting in settings:
            note(f"stream: {peer.name}, {world} ranks, trying {label(setting)}")
            try:
                (epoch,) = self.train(peer, setting, world, epochs=1)
            except Exception as error:  # noqa: BLE001 - another setting may work
                failure = error
                continue
            rates[label(setting)] = epoch.rate
        if failure is not None and not rates:
            raise failure
        best = max(settings, key=lambda setting: rates.get(label(setting), 0.0))
        return Entry(peer, best, rates)

    def compare(self, found: Sums, score_error: float = 0.0) -> None:
        """Raise unless these are the sums of all rows; only scores may be off, by that much."""
        if not are_same(found, self.wanted, score_error):
            message = f"read other rows than were published: {found}, not {self.wanted}"
            raise AssertionError(message)

    def train(
        self, peer: StreamPeer, setting: Setting, world: int, *, epochs: int = EPOCHS
    ) -> list[Epoch]:
        """Train for some epochs, from empty caches; each must have as many rows as the table."""
        with self.session(peer, world=world) as session:
            session.open(setting, BATCH)
            return [self._epoch(session, number) for number in range(epochs)]

    def _epoch(self, session: Session, number: int) -> Epoch:
        found = session.epoch(number)
        if found.rows != self.table.rows:
            message = f"epoch {number} had {found.rows:,} rows, not {self.table.rows:,}"
            raise AssertionError(message)
        return found

    def _run(self, entry: Entry, world: int, number: int) -> list[Epoch]:
        """A run; in the first, the rows of one more epoch are added up and compared.

        So no row was lost or repeated. That epoch is not timed: adding up takes time.
        """
        with self.session(entry.peer, world=world) as session:
            session.open(entry.setting, BATCH)
            epochs = []
            for each in range(EPOCHS):
                epochs.append(self._epoch(session, each))
                settled_s = max(session.ask("settle"))
                if not each:
                    self.settled_s.setdefault(entry.name, []).append(settled_s)
            if not number:
                checked = session.epoch(EPOCHS, group_rows=self.table.group_rows)
                self.compare(checked.sums, entry.peer.score_error)
                entry.mixing = checked.mixing
            return epochs

    def turns(self, world: int, runs: int) -> tuple[Found, dict[str, str]]:
        """The epochs of each peer in `runs` runs; also who could not, and why."""
        entries, missing = self.entries(world)
        missing = dict(missing)
        found: Found = {each.name: [] for each in entries}
        slow = set()
        for number in range(runs):
            begin = monotonic()
            # Every other run goes backwards, so that no peer always follows the same one.
            for entry in entries[:: -1 if number % 2 else 1]:
                if entry.name in missing or (entry.name in slow and number >= SLOW_RUNS):
                    continue
                epochs = self.attempt(entry.peer, missing, partial(self._run, entry, world, number))
                if epochs is not None:
                    found[entry.name].append(epochs)
                    if sum(each.seconds for each in epochs) > SLOW_S:
                        slow.add(entry.name)
                sleep(PAUSE_S)
            taken = monotonic() - begin
            note(f"stream: {world} ranks, run {number + 1} of {runs}, took {taken:.0f} s")
        return {name: each for name, each in found.items() if name not in missing}, missing

    @staticmethod
    def attempt(
        peer: StreamPeer, missing: dict[str, str], work: Callable[[], Result]
    ) -> Result | None:
        """The result of `work`, or None with the reason in `missing`."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way
            says_all = isinstance(error, NotImplementedError | TimeoutError)
            missing[peer.name] = (str(error) if says_all else reason(error))[:LONGEST]
            note(f"stream: {peer.name}: {missing[peer.name]}")
            return None


def are_same(found: Sums, wanted: Sums, score_error: float) -> bool:
    """Whether sums are equal, but for a relative error of the scores."""
    is_near = math.isclose(found.scores, wanted.scores, rel_tol=score_error)
    return is_near and found._replace(scores=0) == wanted._replace(scores=0)


def ahead(rates: Mapping[str, list[float]], ours: str, theirs: str) -> Ratio | None:
    """How many times the rate of `theirs` that of `ours` is, in the runs of both."""
    pairs = list(zip(rates.get(ours, []), rates.get(theirs, []), strict=False))
    if not pairs:
        return None
    return Ratio.of([above for above, _ in pairs], [below for _, below in pairs])


def section_of(
    case: str,
    rates: Mapping[str, list[float]],
    settings: Mapping[str, Setting],
    missing: dict[str, str],
    rows: int,
) -> Section:
    """A section of rates, and how many times each relive's is."""
    lines = [
        Row(
            name=name,
            setting=label(settings.get(name, {})),
            rates=each,
            rate=statistics.median(each),
            gb_per_s=0.0,
            ratio=ahead(rates, BATCHES, name),
        )
        for name, each in rates.items()
        if each
    ]
    return Section(
        case=case,
        record_bytes=0,
        records=rows,
        batch_size=BATCH,
        ratio_of=f"{BATCHES} is x",
        rows=lines,
        missing=missing,
        unit="rows",
    )
