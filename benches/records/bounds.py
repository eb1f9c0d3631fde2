"""What the record store promises of its speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benches.method import Ratio
from benches.pack.bounds import verdict

if TYPE_CHECKING:
    from benches.method import Outcome
    from benches.report import Section


@dataclass(frozen=True)
class BetterBound:
    """The contender `ours` is at least `least` times as fast as the fastest of `theirs`."""

    ours: str
    theirs: tuple[str, ...]
    least: float

    def add(self, section: Section, outcome: Outcome) -> None:
        """Put the ratio that was measured, and whether the promise holds, among the facts."""
        head = f"{self.ours} over the better of {' and '.join(self.theirs)}"
        ours = outcome.find(self.ours)
        found = [each for name in self.theirs if (each := outcome.find(name))]
        if ours is None or not found:
            section.facts[head] = f"not measured; at least {self.least:g} is promised"
            return
        best = max(found, key=lambda each: each.rate)
        ratio = Ratio.of(ours.rates, best.rates)
        section.facts[head] = (
            f"{ratio.median:.2f} [{ratio.low:.2f}-{ratio.high:.2f}] ({best.name}), "
            + verdict(ratio.median >= self.least, f"at least {self.least:g}")
        )
