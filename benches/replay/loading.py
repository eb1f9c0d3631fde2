"""Loading: the frames and observations of an episode of 1000 steps, and its rows."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benches.replay.contest import promise, rates_of, section_of
from benches.replay.scenes import GAMES
from benches.replay.worker import EPISODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.episodes.promises import Ledger
    from benches.options import Options
    from benches.replay.contest import Contest
    from benches.report import Section

LEAST = {"h5py, blosc-lz4": 1 / 1.15, "SQLite, JSON lists": 300.0, "SQLite, JSON base64": 10.0}
"""How many times the rate of a peer relive's is at least, for games."""


def load_part(contest: Contest, options: Options, ledger: Ledger) -> Iterator[Section]:
    """The page cache is warm; every run opens the store again, which is not on the clock."""
    steps = max(1, round(EPISODE * options.scale))
    contest.prepare(steps)
    contest.turns("load", 1)
    answers, missing = contest.turns("load", options.runs)
    case = f"load: {contest.scene.name}"
    rates = rates_of(answers)
    section = section_of(case, rates, missing, steps)
    for name, found in answers.items():
        opened = statistics.median(each["open_s"] for each in found)
        section.facts[f"{name}, opening"] = f"{opened * 1e3:.2f} ms"
    if contest.scene.name in GAMES:
        promise(ledger, case, rates, LEAST)
    yield section
    answers, missing = contest.turns("query", options.runs)
    yield section_of(f"rows queried: {contest.scene.name}", rates_of(answers), missing, steps)
