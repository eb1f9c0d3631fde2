"""What the pack promises of its speed: how many times another's rate its own is at least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benches.method import Ratio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benches.method import Outcome
    from benches.report import Section


@dataclass(frozen=True)
class Bound:
    """The contender `ours` is at least `least` times as fast as `theirs`."""

    ours: str
    theirs: str
    least: float

    def told(self, outcome: Outcome) -> str:
        """The ratio that was measured, and whether the promise holds."""
        ours, theirs = outcome.find(self.ours), outcome.find(self.theirs)
        if ours is None or theirs is None:
            return f"not measured; at least {self.least:g} is promised"
        ratio = Ratio.of(ours.rates, theirs.rates)
        return f"{ratio.median:.2f} [{ratio.low:.2f}-{ratio.high:.2f}], " + verdict(
            ratio.median >= self.least, f"at least {self.least:g}"
        )


def verdict(kept: bool, promise: str) -> str:  # noqa: FBT001 - the one thing it is about
    """A promise in words, and whether it was kept."""
    return f"{promise}: {'holds' if kept else 'MISSED'}"


def add_bounds(section: Section, outcome: Outcome, bounds: Iterable[Bound]) -> Section:
    """Put every bound among the facts of `section`."""
    for bound in bounds:
        section.facts[f"{bound.ours} over {bound.theirs}"] = bound.told(outcome)
    return section
