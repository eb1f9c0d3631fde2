"""Sampling: batches of 256 transitions of 50,000 steps, uniform and by priority.

Each peer takes turns with relive alone, since the arrays of all of them do not fit into memory.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import sleep
from typing import TYPE_CHECKING, Any

from benches.method import PAUSE_S, Ratio, reason
from benches.peers.buffer_cpprb import CpprbBuffer
from benches.peers.buffer_peer import BATCH
from benches.peers.buffer_relive import ReliveBuffer
from benches.peers.buffer_reverb import ReverbBuffer
from benches.peers.buffer_sb3 import Sb3Buffer
from benches.peers.buffer_torchrl import TorchRLBuffer
from benches.replay.drawing import enter
from benches.replay.stacks import AXES, STACK_BYTES
from benches.report import Row, Section, note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benches.episodes.elsewhere import There
    from benches.episodes.promises import Ledger
    from benches.options import Options
    from benches.peers.buffer_peer import BufferPeer

STEPS = 50_000
LARGE = 20
"""How many times more steps the large run has."""
TURN_S = 0.4
MIB = 1 << 20
OURS: tuple[BufferPeer, ...] = tuple(
    ReliveBuffer(kind)
    for kind in ("raw", "cached", "sample", "raw prioritized", "cached prioritized")
)
THEIRS: tuple[BufferPeer, ...] = (
    *(CpprbBuffer(kind) for kind in ("both", "next_of", "stacks")),
    *(TorchRLBuffer(kind) for kind in ("memmap", "tensor")),
    *(Sb3Buffer(kind) for kind in ("both", "shared")),
    ReverbBuffer("uniform"),
    *(CpprbBuffer(f"{kind} prioritized") for kind in ("both", "next_of")),
    *(TorchRLBuffer(f"{kind} prioritized") for kind in ("memmap", "tensor")),
)
PROMISED = ("relive, planes mapped", "relive, planes cached")
LEAST = {"cpprb": 1.0, "cpprb, next_of": 1.0, "TorchRL LazyMemmapStorage": 4.0}
LEAST_PRIORITIZED = {"cpprb": 0.8, "cpprb, next_of": 0.8}
"""How many times the rate of a peer relive's is at least."""
MOST_BYTES = 1 / 7
"""The share of a peer's arrays that relive's may have, if they hold every stack twice."""
LEAST_LARGE = 0.7


@dataclass
class Turns:
    """What the contenders of one section did."""

    filled: dict[str, dict[str, Any]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[tuple[str, str], Ratio] = field(default_factory=dict)
    """The ratio of each of ours over each of theirs."""
    cold: dict[str, dict[str, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def sample_part(scene: str, options: Options, ledger: Ledger, folder: Path) -> Iterator[Section]:
    """Stacks on either axis, uniform and by priority."""
    steps = max(2 * BATCH, round(STEPS * options.scale))
    for axis in AXES if not options.axes else sorted(options.axes):
        for is_prioritized in (False, True):
            case = f"sample: {'prioritised' if is_prioritized else 'uniform'}, {axis} axis"
            contest = _Contest(scene, axis, steps, options, folder / "sample", case)
            turns = contest.held(is_prioritized=is_prioritized)
            _promise(ledger, case, turns, is_prioritized=is_prioritized)
            yield _section(case, steps, turns)


def large_part(scene: str, options: Options, ledger: Ledger, folder: Path) -> Iterator[Section]:
    """A run of a million steps takes turns with one of 50,000, both mapped."""
    small = max(2 * BATCH, round(STEPS * options.scale))
    for axis in AXES if not options.axes else sorted(options.axes):
        case = f"sample: {LARGE * small:,} steps, {axis} axis"
        turns = Turns()
        contest = _Contest(scene, axis, small, options, folder / "large", case)
        with contest.entered(ReliveBuffer("raw"), small, turns) as few:
            large = ReliveBuffer("raw")
            large.name = f"relive, {LARGE * small:,} steps"
            with contest.entered(large, LARGE * small, turns) as many:
                if few is not None and many is not None:
                    contest.turns([few], many, turns)
                    for each in (few, many):
                        contest.chill(each, turns)
        ratio = turns.ratios.get(("relive, planes mapped", large.name))
        if ratio is not None:
            share = Ratio(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
            ledger.least(f"{case}, share of the rate", share.median, LEAST_LARGE, "")
        yield _section(case, LARGE * small, turns)


@dataclass
class _Contest:
    scene: str
    axis: str
    steps: int
    options: Options
    folder: Path
    case: str

    def held(self, *, is_prioritized: bool) -> Turns:
        """Let each peer take turns with relive."""
        turns = Turns()
        chosen = self.options.only_peers
        wanted = [
            peer
            for peer in (*OURS, *THEIRS)
            if peer.is_prioritized == is_prioritized and (not chosen or peer.family in chosen)
        ]
        with ExitStack() as stack:
            ours = []
            for peer in wanted:
                if peer in OURS:
                    one = stack.enter_context(self.entered(peer, self.steps, turns))
                    ours += [] if one is None else [one]
            for peer in wanted:
                if peer not in OURS:
                    with self.entered(peer, self.steps, turns) as theirs:
                        if theirs is not None:
                            self.turns(ours, theirs, turns)
                            self.chill(theirs, turns)
            if ours and all(peer in OURS for peer in wanted):
                self.turns(ours[:-1], ours[-1], turns)
            for one in ours:
                self.chill(one, turns)
        return turns

    @contextmanager
    def entered(self, peer: BufferPeer, steps: int, turns: Turns) -> Iterator[There | None]:
        """Start and fill a peer; None if it does not run here."""
        note(f"replay: {self.case}, {peer.name}")
        place = self.folder / f"{self.axis}-{peer.family}-{peer.kind.replace(' ', '-')}-{steps}"
        keeps = self.options.keep_stores and peer.family == "relive"
        try:
            found = enter(peer, self.scene, self.axis, self.options.data_dir, place, keeps=keeps)
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way
            turns.missing[peer.name] = reason(error)
            yield None
            return
        try:
            try:
                turns.versions |= found.call("versions")
                turns.filled[peer.name] = found.call("fill", steps=steps)
                turns.rates[peer.name] = []
            except Exception as error:  # noqa: BLE001 - a peer may fail in any way
                lacks = isinstance(error, NotImplementedError)
                turns.missing[peer.name] = str(error) if lacks else reason(error)
                yield None
            else:
                yield found
                found.call("close")
        finally:
            found.close()

    def turns(self, ours: list[There], theirs: There, turns: Turns) -> None:
        """Draw in turns, every other run backwards."""
        rates: dict[str, list[float]] = {each.name: [] for each in (*ours, theirs)}
        for number in range(self.options.runs):
            for each in [*ours, theirs][:: -1 if number % 2 else 1]:
                done = each.call("draw", seconds=TURN_S)
                rates[each.name].append(done["steps"] / done["seconds"])
                sleep(PAUSE_S)
        for name, found in rates.items():
            turns.rates[name] += found
        for each in ours:
            turns.ratios[each.name, theirs.name] = Ratio.of(rates[each.name], rates[theirs.name])

    def chill(self, contender: There, turns: Turns) -> None:
        """Draw with nothing of its files in the page cache."""
        try:
            turns.cold[contender.name] = contender.call("cold")
        except NotImplementedError:
            return
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way
            turns.missing[f"{contender.name}, cold"] = reason(error)


def _section(case: str, steps: int, turns: Turns) -> Section:
    """The rates, what relive's are of them, and what everything takes in memory and on the disk."""
    first = next((name for name in PROMISED if name in turns.rates), "")
    rows = []
    for name, rates in turns.rates.items():
        if rates:
            rate = statistics.median(rates)
            rows.append(
                Row(
                    name=name,
                    setting=turns.filled[name]["setting"],
                    rates=rates,
                    rate=rate,
                    gb_per_s=rate * BATCH * 2 * STACK_BYTES / 1e9,
                    ratio=turns.ratios.get((first, name)),
                )
            )
    section = Section(
        case=case,
        record_bytes=2 * STACK_BYTES,
        records=steps,
        batch_size=BATCH,
        ratio_of=f"{first} is x" if first else "-",
        rows=rows,
        missing=turns.missing,
    )
    for (mine, theirs), ratio in turns.ratios.items():
        if mine != first:
            section.facts[f"{mine}, over {theirs}"] = (
                f"{ratio.median:.2f} [{ratio.low:.2f}-{ratio.high:.2f}]"
            )
    for name, found in turns.filled.items():
        section.facts[f"{name}, MiB"] = (
            f"arrays {found['array_bytes'] / MIB:,.0f}, on disk {found['disk_bytes'] / MIB:,.0f}, "
            f"resident {found['private_bytes'] / MIB:,.0f} of its own "
            f"and {found['mapped_bytes'] / MIB:,.0f} mapped"
        )
    for name, found in turns.cold.items():
        section.facts[f"{name}, cold"] = (
            f"first batch {found['first_s'] * 1e3:,.0f} ms, then "
            f"{found['steps'] / found['seconds']:,.0f} batches/s "
            f"({found['left']:.0%} was still in the page cache)"
        )
    section.facts["versions"] = ", ".join(f"{k} {v}" for k, v in sorted(turns.versions.items()))
    return section


def _promise(ledger: Ledger, case: str, turns: Turns, *, is_prioritized: bool) -> None:
    """Put what was measured beside what is promised of it."""
    for mine in PROMISED:
        for theirs, limit in (LEAST_PRIORITIZED if is_prioritized else LEAST).items():
            told = f"{case}, {mine} over {theirs}"
            ratio = turns.ratios.get((mine, theirs))
            if ratio is None:
                ledger.facts[told] = f"not measured; at least {limit:g} is promised"
            else:
                ledger.least(told, ratio.median, limit, "x")
    for theirs in () if is_prioritized else ("cpprb", "TorchRL LazyMemmapStorage"):
        filled = turns.filled
        if PROMISED[0] in filled and theirs in filled:
            share = filled[PROMISED[0]]["array_bytes"] / filled[theirs]["array_bytes"]
            ledger.most(f"{case}, array bytes over {theirs}", share, MOST_BYTES, "x")
