"""Turns: all contenders of an operation are open at once and alternate, round after round."""

from __future__ import annotations

import statistics
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import sleep
from typing import TYPE_CHECKING, Any

from benches.episodes.elsewhere import enter
from benches.method import PAUSE_S, Ratio, reason
from benches.report import Row, Section, note

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.episodes.elsewhere import Contender
    from benches.episodes.robot import Robot
    from benches.peers.episode_peer import EpisodePeer

REFERENCE = "positronic"
"""Whose rates the others are compared with."""
BY_NAME = ", by name"
EMPTY = "empty timed loop"
"""What a clock costs; it does nothing, so that nobody is compared with it."""


@dataclass
class Entry:
    """What was measured of one contender, round by round."""

    name: str
    setting: str = ""
    rates: list[float] = field(default_factory=list)
    tried: dict[str, float] = field(default_factory=dict)
    latency_ms: dict[str, float] = field(default_factory=dict)


@dataclass
class Field:
    """All who take part, and why the others do not."""

    robot: Robot
    folder: Path
    contenders: list[Contender]
    missing: dict[str, str]

    def folder_of(self, contender: Contender) -> Path:
        """Where a contender keeps its files."""
        return _place(self.folder, contender.name)

    def attempt(
        self, contender: Contender, missing: dict[str, str], what: str, **given: Any
    ) -> Any:
        """Ask one contender; None, and the reason in `missing`, when it cannot."""
        try:
            return contender.call(what, **given)
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way
            lacks = isinstance(error, NotImplementedError)
            missing[contender.name] = str(error) if lacks else reason(error)
            return None


@contextmanager
def entered(peers: Sequence[EpisodePeer], robot: Robot, rows: int, folder: Path) -> Iterator[Field]:
    """All of `peers` that run here, each with a folder of its own below `folder`."""
    contenders: list[Contender] = []
    missing: dict[str, str] = {}
    try:
        for peer in peers:
            try:
                contenders.append(enter(peer, robot, rows, _place(folder, peer.name)))
            except Exception as error:  # noqa: BLE001 - a peer may fail in any way
                missing[peer.name] = reason(error)
        yield Field(robot, folder, contenders, missing)
    finally:
        for contender in contenders:
            contender.close()


def compete(
    contest: Field, operation: str, rounds: int, missing: dict[str, str] | None = None
) -> tuple[list[Entry], dict[str, str]]:
    """Time `operation` in `rounds` rounds; also who could not, and why."""
    lost = {**contest.missing, **(missing or {})}
    entries: dict[str, Entry] = {}
    note(f"episodes: {operation}")
    for contender in contest.contenders:
        if contender.name not in lost:
            ways = contest.attempt(contender, lost, "prepare", operation=operation)
            entry = None if ways is None else _fastest(contest, contender, operation, ways, lost)
            if entry is not None:
                entries[contender.name] = entry
    for number in range(rounds):
        # Every other round runs backwards: nobody always follows the same neighbour.
        for contender in contest.contenders[:: -1 if number % 2 else 1]:
            entry = entries.get(contender.name)
            if entry is None:
                continue
            given = {"operation": operation, "way": entry.setting, "number": number}
            answer = contest.attempt(contender, lost, "turn", **given)
            if answer is None:
                del entries[contender.name]
                continue
            units, seconds = answer
            entry.rates.append(units / seconds)
            sleep(PAUSE_S)
    return list(entries.values()), lost


def _fastest(
    contest: Field, contender: Contender, operation: str, ways: list[str], lost: dict[str, str]
) -> Entry | None:
    """Try each way twice, which also warms it up; keep the one that was faster at last."""
    tried: dict[str, float] = {}
    for way in ways:
        for number in (-3, -2):
            given = {"operation": operation, "way": way, "number": number}
            answer = contest.attempt(contender, lost, "turn", **given)
            if answer is None:
                return None
            tried[way] = answer[0] / answer[1]
    best = max(tried, key=lambda way: tried[way])
    return Entry(contender.name, best, tried=tried if len(tried) > 1 else {})


def section_of(
    case: str,
    unit: str,
    entries: Sequence[Entry],
    missing: dict[str, str],
    *,
    records: int,
    batch: int = 1,
) -> Section:
    """A section of these entries, each beside the reference."""
    found = {entry.name: entry for entry in entries}
    rows = []
    for entry in entries:
        by_name = REFERENCE + BY_NAME
        base = found.get(by_name if entry.name.endswith(BY_NAME) else REFERENCE)
        if entry.name == EMPTY:
            base = None
        rows.append(
            Row(
                name=entry.name,
                setting=entry.setting,
                rates=entry.rates,
                rate=statistics.median(entry.rates),
                gb_per_s=0.0,
                ratio=ratio_of(entry, base),
                tried=entry.tried,
                latency_ms=entry.latency_ms,
            )
        )
    return Section(
        case=case,
        record_bytes=0,
        records=records,
        batch_size=batch,
        ratio_of=f"x {REFERENCE}",
        rows=rows,
        missing=missing,
        unit=unit,
    )


def _place(folder: Path, name: str) -> Path:
    return folder / name.replace(", ", "-").replace(" ", "-")


def ratio_of(entry: Entry | None, base: Entry | None) -> Ratio | None:
    """The rates of `entry` over those of `base`, where both were measured in the same rounds."""
    if entry is None or base is None or len(entry.rates) != len(base.rates):
        return None
    return Ratio.of(entry.rates, base.rates)
