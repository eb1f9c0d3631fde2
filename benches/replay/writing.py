"""Writing: steps per second until a run is closed and on the disk, and bytes per step."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benches.replay.contest import OURS, promise, rates_of, section_of
from benches.replay.scenes import GAMES
from benches.replay.worker import EPISODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.episodes.promises import Ledger
    from benches.options import Options
    from benches.replay.contest import Contest
    from benches.report import Section

STEPS = 4 * EPISODE
CHECKED = 100
"""Steps of the episodes that are checked before anything is timed: more than one block."""
LEAST = {"h5py, blosc-lz4": 0.7, "SQLite, JSON lists": 150.0, "SQLite, JSON base64": 10.0}
"""How many times the rate of a peer relive's is at least, for games."""
NO_LARGER_THAN = "h5py, gzip-4"


def write_part(contest: Contest, options: Options, ledger: Ledger) -> Iterator[Section]:
    """Every run begins with nothing; arrays and the database of each peer are counted."""
    contest.prepare(CHECKED)
    steps = max(1, round(STEPS * options.scale))
    answers, missing = contest.turns("write", options.runs, steps=steps)
    case = f"write: {contest.scene.name}"
    rates = rates_of(answers)
    section = section_of(case, rates, missing, steps)
    sizes = {
        name: statistics.median(each["bytes"] / each["steps"] for each in found)
        for name, found in answers.items()
    }
    for name, size in sizes.items():
        section.facts[f"{name}, bytes per step"] = f"{size:,.0f}"
    if contest.scene.name in GAMES:
        promise(ledger, case, rates, LEAST)
    if OURS in sizes and NO_LARGER_THAN in sizes:
        share = sizes[OURS] / sizes[NO_LARGER_THAN]
        ledger.most(f"{case}, bytes over {NO_LARGER_THAN}", share, 1.0, "x")
    yield section
