"""Turns: all peers take them one after the other, run after run, each time in a new process."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from benches.method import PAUSE_S, Ratio, reason
from benches.publish.table import Sums
from benches.publish.worker import ask
from benches.report import Row, Section, note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benches.peers.publish_peer import PublishPeer
    from benches.publish.server import DelayedServer
    from benches.publish.table import Table
    from benches.publish.worker import Measured

LONGEST = 300
"""Characters of a reason."""

Found = dict[str, list["Measured"]]


class Read(NamedTuple):
    """One way to read the table."""

    case: str
    how: str
    """The method of a peer."""
    given: list[Any]
    rows: int = 0
    """How many rows are taken; 0: all that come."""
    wanted: Sums | None = None
    """What all that come add up to."""

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments of `Work.read`."""
        return {"how": self.how, "given": self.given, "rows": self.rows}


@dataclass
class Contest:
    """All peers whose table is on the server, and why the others are not there."""

    server: DelayedServer
    table: Table
    peers: list[PublishPeer]
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    published: set[str] = field(default_factory=set)

    def prepare(self) -> None:
        """Let each peer put the table on the server, with no delay."""
        for peer in self.peers:
            note(f"publish: {peer.name}, on its way to the server")
            self.missing |= self._try(peer, partial(self._publish, peer))

    def _publish(self, peer: PublishPeer) -> None:
        self.versions |= ask(peer, self.server, "versions", far=False).answer
        if peer.stored not in self.published:
            self.server.make_bucket(peer.bucket)
            files = [str(path) for path in self.table.files]
            ask(peer, self.server, "publish", far=False, files=files)
            self.published.add(peer.stored)

    def check(self, read: Read) -> dict[str, str]:
        """Read once and compare; return who cannot, and why."""
        missing = dict(self.missing)
        for peer in self.peers:
            if peer.name not in missing:
                missing |= self._try(peer, partial(self._check, peer, read))
        return missing

    def _check(self, peer: PublishPeer, read: Read) -> None:
        found = Sums(*ask(peer, self.server, "check", far=False, **read.asked).answer)
        wanted = read.wanted
        if wanted is None:  # the first rows, and what else is in the last batch
            wanted = found._replace(
                rows=max(found.rows, read.rows), ids=found.rows * (found.rows - 1) // 2
            )
        if found != wanted:
            message = f"read other rows than were published: {found}, not {wanted}"
            raise AssertionError(message)

    def turns(
        self,
        runs: int,
        missing: dict[str, str],
        what: str,
        folders: Mapping[str, Path] | None = None,
        **given: Any,
    ) -> tuple[Found, dict[str, str]]:
        """What was measured of each peer in `runs` runs; also who could not, and why.

        `folders` are those that a peer keeps from one run to the next, by its name.
        """
        found: Found = {peer.name: [] for peer in self.peers}
        missing = dict(missing)
        for number in range(runs):
            note(f"publish: {given.get('how', what)}, run {number + 1} of {runs}")
            # Every other run goes backwards, so that no peer always follows the same one.
            for peer in self.peers[:: -1 if number % 2 else 1]:
                if peer.name not in missing:
                    kept = (folders or {}).get(peer.name)
                    attempt = partial(ask, peer, self.server, what, scratch=kept, **given)
                    missing |= self._try(peer, attempt, found[peer.name])
                    sleep(PAUSE_S)
        return {name: each for name, each in found.items() if name not in missing}, missing

    @staticmethod
    def _try(
        peer: PublishPeer, attempt: Callable[[], Any], found: list[Any] | None = None
    ) -> dict[str, str]:
        """Add the result to `found`; return the reason if there is none."""
        try:
            result = attempt()
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way
            lacks = isinstance(error, NotImplementedError)
            return {peer.name: (str(error) if lacks else reason(error))[:LONGEST]}
        if found is not None:
            found.append(result)
        return {}


def section_of(case: str, found: Found, missing: dict[str, str], ours: str, rows: int) -> Section:
    """A section of reads per second, and of each what it took."""
    seconds = {name: [each.seconds for each in runs] for name, runs in found.items()}
    lines = [
        Row(
            name=name,
            setting="",
            rates=[1 / each for each in taken],
            rate=statistics.median(1 / each for each in taken),
            gb_per_s=0.0,
            ratio=times(seconds, name, ours),
        )
        for name, taken in seconds.items()
    ]
    return Section(
        case=case,
        record_bytes=0,
        records=rows,
        batch_size=1,
        ratio_of=f"{ours} is x",
        rows=lines,
        missing=missing,
        facts={name: taken(runs) for name, runs in found.items()},
        unit="reads",
    )


def times(seconds: Mapping[str, Sequence[float]], above: str, below: str) -> Ratio | None:
    """How many times the seconds of `below` those of `above` are, run by run."""
    theirs, ours = seconds.get(above), seconds.get(below)
    if not ours or not theirs or len(ours) != len(theirs):
        return None
    return Ratio.of(theirs, ours)


def taken(runs: Sequence[Measured]) -> str:
    """Seconds with their range, processor time, requests and bytes, in words."""
    seconds = [each.seconds for each in runs]
    parts = [
        f"{statistics.median(seconds):.3f} s ({min(seconds):.3f}-{max(seconds):.3f})",
        f"processor {statistics.median(each.processor_s for each in runs):.3f} s",
        f"{statistics.median(each.requests for each in runs):.0f} requests",
        f"{statistics.median(each.counts.received for each in runs) / 1e6:.2f} MB",
    ]
    ahead = statistics.median(each.afterwards.received for each in runs) / 1e6
    if ahead >= 0.01:
        parts.append(f"and {ahead:.2f} MB that were read ahead")
    return ", ".join(parts)
