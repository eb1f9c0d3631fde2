"""Turns: all peers of a scene alternate, run after run."""

from __future__ import annotations

import statistics
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import sleep
from typing import TYPE_CHECKING, Any

from benches.method import PAUSE_S, Ratio, reason
from benches.replay.worker import enter
from benches.report import Row, Section, note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from benches.episodes.elsewhere import Contender
    from benches.episodes.promises import Ledger
    from benches.peers.replay_peer import ReplayPeer
    from benches.replay.scenes import Scene

OURS = "relive"

Answers = dict[str, list[dict[str, float]]]


@dataclass
class Contest:
    """All peers that run here, and why the others do not."""

    scene: Scene
    contenders: list[Contender]
    missing: dict[str, str] = field(default_factory=dict)

    def ask(self, contender: Contender, missing: dict[str, str], what: str, **given: Any) -> Any:
        """Ask one peer; None, and the reason in `missing`, if it cannot."""
        try:
            return contender.call(what, **given)
        except Exception as error:  # noqa: BLE001 - a peer may fail in any way
            lacks = isinstance(error, NotImplementedError)
            missing[contender.name] = str(error) if lacks else reason(error)
            return None

    def prepare(self, steps: int) -> None:
        """Let each peer write and check episodes; who cannot takes no further part."""
        for contender in self.contenders:
            note(f"replay: {self.scene.name}, {contender.name}")
            self.ask(contender, self.missing, "prepare", steps=steps)

    def turns(self, what: str, runs: int, **given: Any) -> tuple[Answers, dict[str, str]]:
        """The answers of each peer in `runs` runs; also who could not, and why."""
        answers: Answers = {each.name: [] for each in self.contenders}
        missing = dict(self.missing)
        for number in range(runs):
            note(f"replay: {self.scene.name}, {what}, run {number + 1} of {runs}")
            # Every other run goes backwards, so that no peer always follows the same one.
            for contender in self.contenders[:: -1 if number % 2 else 1]:
                if contender.name not in missing:
                    answer = self.ask(contender, missing, what, **given)
                    if answer is not None:
                        answers[contender.name].append(answer)
                    sleep(PAUSE_S)
        return {name: each for name, each in answers.items() if name not in missing}, missing


@contextmanager
def entered(
    peers: Sequence[ReplayPeer], scene: Scene, data: Path, folder: Path
) -> Iterator[Contest]:
    """All of `peers` that run here, each with a folder of its own below `folder`."""
    contest = Contest(scene, [])
    try:
        for peer in peers:
            place = folder / peer.name.replace(", ", "-").replace(" ", "-")
            try:
                contest.contenders.append(enter(peer, scene, data, place))
            except Exception as error:  # noqa: BLE001 - a peer may fail in any way
                contest.missing[peer.name] = reason(error)
        yield contest
    finally:
        for contender in contest.contenders:
            contender.close()


def rates_of(answers: Answers) -> dict[str, list[float]]:
    """Steps per second of each run of each peer."""
    return {
        name: [each["steps"] / each["seconds"] for each in found] for name, found in answers.items()
    }


def section_of(
    case: str, rates: Mapping[str, list[float]], missing: dict[str, str], steps: int
) -> Section:
    """A section of these rates, with how many times each of them relive's is."""
    ours = rates.get(OURS)
    rows = [
        Row(
            name=name,
            setting="",
            rates=each,
            rate=statistics.median(each),
            gb_per_s=0.0,
            ratio=ratio(ours, each),
        )
        for name, each in rates.items()
    ]
    return Section(
        case=case,
        record_bytes=0,
        records=steps,
        batch_size=1,
        ratio_of="relive is x",
        rows=rows,
        missing=missing,
        unit="steps",
    )


def ratio(ours: list[float] | None, theirs: list[float] | None) -> Ratio | None:
    """The ratio of rates, where both were measured in the same runs."""
    if not ours or not theirs or len(ours) != len(theirs):
        return None
    return Ratio.of(ours, theirs)


def promise(
    ledger: Ledger, case: str, rates: Mapping[str, list[float]], least: Mapping[str, float]
) -> None:
    """Put the ratios of rates beside what is promised of them."""
    for name, limit in least.items():
        found = ratio(rates.get(OURS), rates.get(name))
        if found is None:
            ledger.facts[f"{case} over {name}"] = f"not measured; at least {limit:.3g} is promised"
        else:
            ledger.least(f"{case} over {name}", found.median, limit, "x")
