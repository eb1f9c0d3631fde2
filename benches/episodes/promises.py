"""What is promised of episodes, beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benches.pack.bounds import verdict
from benches.report import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.method import Ratio

TITLE = "what is promised"


@dataclass(frozen=True)
class Promise:
    """In the section `case`, `ours` is at least `least` times positronic's rate."""

    case: str
    ours: str
    least: float


PROMISES = (
    Promise("random frame", "relive record", 2.5),
    Promise("random batch of 64 frames", "relive record", 3),
    Promise("window of 16 frames", "relive record", 2),
    Promise("random frame", "relive compact", 1.3),
    Promise("random batch of 64 frames", "relive compact", 1.3),
    Promise("window of 16 frames", "relive compact", 1.3),
    Promise("recording", "relive record", 2),
    Promise("time[t]", "relive", 4),
    Promise("time[[20,000 times]], a list", "relive", 15),
    Promise("time[[20,000 times]], an array", "relive", 15),
    Promise("windows of 100 rows", "relive", 10),
    Promise("open and first value", "relive", 10),
    Promise("open and first lookup", "relive", 10),
    Promise("append a vector", "relive", 1),
)
MOST_BYTES = {"relive record": 3.5, "relive compact": 1.5}
"""How many times positronic's bytes the films of a profile may take."""


@dataclass
class Ledger:
    """Promises that were looked at, in words."""

    facts: dict[str, float | str] = field(default_factory=dict)

    def look(self, sections: Sequence[Section]) -> None:
        """Look for every ratio that is promised, in the sections that were measured."""
        cases = {section.case for section in sections}
        found = {
            (section.case, row.name): row.ratio for section in sections for row in section.rows
        }
        for promise in PROMISES:
            if promise.case in cases:
                self.ratio(promise, found.get((promise.case, promise.ours)))

    def ratio(self, promise: Promise, ratio: Ratio | None) -> None:
        """Put one ratio beside its promise."""
        told = f"at least {promise.least:g} x positronic"
        measured = (
            f"{ratio.median:.2f} [{ratio.low:.2f}-{ratio.high:.2f}], "
            + verdict(ratio.median >= promise.least, told)
            if ratio
            else f"not measured; {told} is promised"
        )
        self.facts[f"{promise.ours}, {promise.case}"] = measured

    def most(self, what: str, value: float, limit: float, unit: str) -> None:
        """Put a value beside the most it may be."""
        told = f"at most {limit:.3g} {unit}"
        self.facts[what] = f"{value:.3g}, {verdict(value <= limit, told)}"

    def least(self, what: str, value: float, limit: float, unit: str) -> None:
        """Put a value beside the least it may be."""
        told = f"at least {limit:.4g} {unit}"
        self.facts[what] = f"{value:.4g}, {verdict(value >= limit, told)}"

    def section(self) -> Section:
        """All of them as the last section of a report."""
        return Section(
            case=TITLE,
            record_bytes=0,
            records=0,
            batch_size=0,
            ratio_of="",
            rows=[],
            missing={},
            facts=self.facts,
            unit="",
        )
