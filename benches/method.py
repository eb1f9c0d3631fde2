"""How speed is compared.

All contenders of a case are open at once in one process and take turns: round
after round, each delivers a fixed number of its own batches after a warm-up that
empties what it had prepared, and then has time to fill it again. A rate is the
median over rounds; a ratio is the median of the ratios within rounds, given with
its range. Every contender reads the same index list (or shuffles the same
records, where it brings a sampler of its own), writes to a preallocated output
where it can, and its first batches are compared with the file before anything is
timed. The page cache is warm.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from benches.peers import label
from benches.report import note

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benches.data import Case
    from benches.peers import Peer, Setting, Stream


PAUSE_S = 0.05
"""Silence between turns, beside the time it takes to fill what was emptied."""

SLOWEST_S = 2.0
"""What a slow contender may take for a warm-up, or for a round that must hold several batches."""


@dataclass(frozen=True)
class Pace:
    """How long things take: rounds, seconds of a round, of a trial, of settling in."""

    rounds: int = 9
    round_s: float = 0.3
    trial_s: float = 0.4
    settle_s: float = 2.0


@dataclass
class Contender:
    """An open peer with what was measured of it."""

    peer: Peer
    setting: Setting
    stream: Stream
    tried: dict[str, float]
    count: int = 0
    rates: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.peer.name

    @property
    def rate(self) -> float:
        """Batches per second, median of rounds."""
        return statistics.median(self.rates)


@dataclass
class Outcome:
    """Who was timed on a case, and who could not be, with the reason."""

    case: Case
    contenders: list[Contender]
    missing: dict[str, str]

    def find(self, name: str) -> Contender | None:
        """The contender called `name`, if it ran."""
        return next((each for each in self.contenders if each.name == name), None)


@dataclass(frozen=True)
class Ratio:
    """Median of the ratios within rounds, and their range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, rates: Sequence[float], reference: Sequence[float]) -> Ratio:
        """How many times `reference` is contained in `rates`, round by round."""
        ratios = [mine / theirs for mine, theirs in zip(rates, reference, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))


def reason(error: BaseException) -> str:
    """An error in one line, for the list of those who could not run."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def _run_for(stream: Stream, seconds: float, limit: int) -> float:
    """Deliver at most `limit` batches, for about `seconds`; give the rate."""
    begin = perf_counter()
    done = 0
    step = 1
    while done < limit and perf_counter() - begin < seconds:
        stream.timed(step)
        done += step
        step = min(step * 2, 64)
    return done / (perf_counter() - begin)


def _tune(peer: Peer, case: Case, pace: Pace) -> tuple[Setting, dict[str, float]]:
    """The fastest of a peer's settings, and the rate at each."""
    settings = list(peer.settings(case))
    if len(settings) == 1:
        return settings[0], {}
    rates: dict[str, float] = {}
    best: tuple[float, Setting] | None = None
    failure: Exception | None = None
    for setting in settings:
        try:
            with contextlib.closing(peer.open(case, setting)) as stream:
                stream.begin()
                _run_for(stream, SLOWEST_S, stream.ahead + 2)
                rate = _run_for(stream, pace.trial_s, 1 << 30)
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way
            failure = error
            continue
        rates[label(setting)] = rate
        if best is None or rate > best[0]:
            best = (rate, setting)
    if best is None:
        raise failure or RuntimeError(peer.name)
    return best[1], rates


def _enter(peer: Peer, case: Case, pace: Pace) -> Contender:
    """Prepare, tune, open, check and settle one peer."""
    peer.prepare(case)
    setting, tried = _tune(peer, case, pace)
    stream = peer.open(case, setting)
    try:
        stream.begin()
        stream.check(case)
        _run_for(stream, pace.settle_s, len(case.batches))
        rate = _run_for(stream, pace.round_s, 1 << 30)
    except BaseException:
        stream.close()
        raise
    several = min(2 * stream.ahead, round(rate * SLOWEST_S))
    count = max(2, several, round(rate * pace.round_s))
    return Contender(peer, setting, stream, tried, count)


def _rounds(entered: list[Contender], missing: dict[str, str], rounds: int) -> None:
    """Take turns; whoever fails on the way is moved to `missing`."""
    for number in range(rounds):
        # Every other round runs backwards: nobody always follows the same neighbour.
        for contender in entered[:: -1 if number % 2 else 1]:
            stream = contender.stream
            try:
                stream.begin()
                _run_for(stream, SLOWEST_S, max(stream.ahead, contender.count // 10))
                seconds = stream.timed(contender.count)
            except Exception as error:  # noqa: BLE001 - a peer may fail in any way
                missing[contender.name] = reason(error)
                stream.close()
                entered.remove(contender)
                continue
            contender.rates.append(contender.count / seconds)
            # Workers go on until they are as far ahead as they may be, and must not do so
            # in the next one's time.
            refill = stream.ahead * seconds / contender.count
            sleep(PAUSE_S + min(SLOWEST_S, refill))


def compare(peers: Iterable[Peer], case: Case, pace: Pace) -> Outcome:
    """Time all `peers` on `case`, taking turns."""
    case.make()
    entered: list[Contender] = []
    missing: dict[str, str] = {}
    with _all_closed(entered):
        for peer in peers:
            note(f"{case.name}: {peer.name}")
            try:
                entered.append(_enter(peer, case, pace))
            except Exception as error:  # noqa: BLE001 - a peer may fail in any way
                missing[peer.name] = reason(error)
        note(f"{case.name}: {pace.rounds} rounds of {len(entered)} contenders")
        _rounds(entered, missing, pace.rounds)
        return Outcome(case, list(entered), missing)


@contextlib.contextmanager
def _all_closed(entered: list[Contender]) -> Iterator[None]:
    try:
        yield
    finally:
        for contender in entered:
            contender.stream.close()
