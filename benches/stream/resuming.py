"""Resuming in the middle of an epoch: how long until the next batch, and whether it is exact."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

from benches.method import PAUSE_S
from benches.peers.stream_relive import LOCAL
from benches.publish.table import Sums
from benches.report import note
from benches.stream.contest import are_same, section_of
from benches.stream.table import BATCH
from benches.stream.worker import add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.episodes.promises import Ledger
    from benches.report import Section
    from benches.stream.contest import Contest, Entry

CASES = {"another": "resume on another machine", "same": "resume on the same machine"}
"""Caches are empty, or as the stopped process left them."""
RUNS = 3


def resume_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """From opening the table in a new process to the batch after the one that was the last."""
    del ledger
    entries, missing = contest.entries(1)
    entries = [each for each in entries if each.name != LOCAL]
    missing = dict(missing)
    with tempfile.TemporaryDirectory(prefix="relive-bench-") as folder:
        stopped = {}
        for at, entry in enumerate(entries):
            stop = partial(_stopped, contest, entry, Path(folder) / str(at))
            found = contest.attempt(entry.peer, missing, stop)
            if found is not None:
                stopped[entry.name] = found
        for how, case in CASES.items():
            yield _section(contest, case, min(runs, RUNS), stopped, missing, kept=how == "same")


class Stopped:
    """A training that was stopped: its state, its caches, and how a resumed one went on."""

    def __init__(self, entry: Entry, folder: Path, state: str, before: Sums) -> None:
        self.entry = entry
        self.folder = folder
        self.state = state
        self.before = before
        self.verdict = ""


def _stopped(contest: Contest, entry: Entry, folder: Path) -> Stopped:
    """Train for half an epoch, and stop."""
    note(f"stream: {entry.name}, stopped in the middle of an epoch")
    folder.mkdir()
    batches = contest.table.rows // BATCH // 2
    group_rows = contest.table.group_rows
    with contest.session(entry.peer, scratch=folder) as session:
        session.open(entry.setting, BATCH)
        before = session.epoch(0, batches=batches, group_rows=group_rows)
        (state,) = session.ask("state")
    return Stopped(entry, folder, state, before.sums)


def _verdict(found: Sums, wanted: Sums, score_error: float) -> str:
    if are_same(found, wanted, score_error):
        return "every row of the epoch once"
    if found.rows == wanted.rows:
        return "as many rows as the epoch has, but not each of them once"
    return f"{found.rows - wanted.rows:+,} rows of {wanted.rows:,}"


def _section(
    contest: Contest,
    case: str,
    runs: int,
    stopped: dict[str, Stopped],
    missing: dict[str, str],
    *,
    kept: bool,
) -> Section:
    missing = dict(missing)
    seconds: dict[str, list[float]] = {name: [] for name in stopped}
    megabytes: dict[str, list[float]] = {name: [] for name in stopped}
    for number in range(runs):
        note(f"stream: {case}, run {number + 1} of {runs}")
        # Every other run goes backwards, so that no peer always follows the same one.
        for name, each in list(stopped.items())[:: -1 if number % 2 else 1]:
            if name in missing:
                continue
            resume = partial(_resumed, contest, each, kept=kept)
            epoch = contest.attempt(each.entry.peer, missing, resume)
            if epoch is not None:
                seconds[name].append(epoch[0])
                megabytes[name].append(epoch[1])
            sleep(PAUSE_S)
    seconds = {name: taken for name, taken in seconds.items() if name not in missing}
    rates = {name: [1 / each for each in taken] for name, taken in seconds.items()}
    settings = {name: each.entry.setting for name, each in stopped.items()}
    section = section_of(case, rates, settings, missing, contest.table.rows)
    section.unit = "resumptions"
    for name, taken in seconds.items():
        if taken:
            section.facts[name] = (
                f"{statistics.median(taken):.3f} s ({min(taken):.3f}-{max(taken):.3f}), "
                f"{statistics.median(megabytes[name]):.2f} MB until then; "
                f"{stopped[name].verdict}"
            )
    return section


def _resumed(contest: Contest, stopped: Stopped, *, kept: bool) -> tuple[float, float]:
    """Seconds and megabytes until the first batch of a new process.

    The first time, it then goes on to the end of the epoch, and both halves together are compared
    with the table.
    """
    entry = stopped.entry
    folder = None
    try:
        if kept:
            folder = Path(tempfile.mkdtemp(prefix="relive-bench-"))
            shutil.copytree(stopped.folder, folder, dirs_exist_ok=True)
        with contest.session(entry.peer, scratch=folder) as session:
            session.open(entry.setting, BATCH)
            check = 0 if stopped.verdict else contest.table.group_rows
            epoch = session.epoch(0, batches=1, state=stopped.state, group_rows=check)
            if check:
                (rest,) = session.ask("rest")
                found = add([stopped.before, epoch.sums, Sums(*rest)])
                stopped.verdict = _verdict(found, contest.wanted, entry.peer.score_error)
            return epoch.first_s, epoch.counts.received / 1e6
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
