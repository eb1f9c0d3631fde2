"""Reading: from opening the table to its first rows, two columns, everything, a filter."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from benches.peers.publish_relive import OWN_FILES, SAME_FILES, RelivePeer
from benches.publish.contest import Read, section_of, times
from benches.publish.needed import needed
from benches.publish.table import COLUMNS, TWO_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.episodes.promises import Ledger
    from benches.publish.contest import Contest, Found
    from benches.report import Section

FIRST_ROWS, HEAD_ROWS = 1_024, 5
ORIGINAL, ARROW = "warpdata", "pyarrow.dataset"


class Limit(NamedTuple):
    """What is promised of a read: `ours` takes at most `most` times the seconds of `other`."""

    how: str
    ours: str
    other: str
    most: float


LIMITS = (
    Limit("first", SAME_FILES, ORIGINAL, 0.3),
    Limit("first", OWN_FILES, ORIGINAL, 0.25),
    *(Limit("columns", ours, ORIGINAL, 1 / 8) for ours in (SAME_FILES, OWN_FILES)),
    *(Limit("everything", ours, ORIGINAL, 0.4) for ours in (SAME_FILES, OWN_FILES)),
    *(Limit("everything", ours, ARROW, 1.1) for ours in (SAME_FILES, OWN_FILES)),
)
MOST_REQUESTS = {SAME_FILES: 5, OWN_FILES: 3}
"""Until the first 1,024 rows are there."""
MOST_HEAD_MB = 2.0
HEADERS_BYTES = 1_024
"""Of one response, at most."""


def first_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """From opening the table to its first 1,024 rows."""
    case = f"open to the first {FIRST_ROWS:,} rows"
    found, section = _timed(contest, runs, Read(case, "first", [FIRST_ROWS], FIRST_ROWS))
    _promise(ledger, "first", case, found)
    for name, most in MOST_REQUESTS.items():
        if name in found:
            requests = statistics.median(each.requests for each in found[name])
            ledger.most(f"{case}: {name}", requests, most, "requests")
    yield section


def columns_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """Two columns of all rows."""
    case = f"two columns of {contest.table.nbytes / 1e6:.0f} MB"
    read = Read(case, "columns", [TWO_COLUMNS], wanted=contest.table.sums(TWO_COLUMNS))
    found, section = _timed(contest, runs, read)
    _promise(ledger, "columns", case, found)
    yield section


def all_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """All rows."""
    case = f"all of {contest.table.nbytes / 1e6:.0f} MB"
    read = Read(case, "everything", [], wanted=contest.table.sums())
    found, section = _timed(contest, runs, read)
    _promise(ledger, "everything", case, found)
    yield section


def head_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """The bytes of the first five rows."""
    case = f"head({HEAD_ROWS})"
    found, section = _timed(contest, runs, Read(case, "first", [HEAD_ROWS], HEAD_ROWS))
    if OWN_FILES in found:
        megabytes = statistics.median(each.received for each in found[OWN_FILES]) / 1e6
        ledger.most(f"{case}: {OWN_FILES}", megabytes, MOST_HEAD_MB, "MB")
    yield section


def filter_part(contest: Contest, runs: int, ledger: Ledger) -> Iterator[Section]:
    """Rows that follow one another, with all columns and with two."""
    begin, end = contest.table.between
    for how, columns, words in (
        ("between", COLUMNS, ""),
        ("between_columns", TWO_COLUMNS, ", two columns"),
    ):
        case = f"filter: {end - begin:,} rows by id{words}"
        wanted = contest.table.sums(columns, (begin, end))
        given = [begin, end] if columns is COLUMNS else [begin, end, columns]
        found, section = _timed(contest, runs, Read(case, how, given, wanted=wanted))
        for peer in contest.peers:
            if isinstance(peer, RelivePeer) and peer.name in found:
                need = needed(contest.server, peer, begin, end, columns)
                section.facts[f"{peer.name}, needed"] = f"{need}"
                received = statistics.median(each.received for each in found[peer.name])
                requests = statistics.median(each.counts.requests for each in found[peer.name])
                most = need.total + HEADERS_BYTES * requests
                ledger.most(f"{case}: {peer.name}", received / 1e6, most / 1e6, "MB")
        yield section


def _timed(contest: Contest, runs: int, read: Read) -> tuple[Found, Section]:
    missing = contest.check(read)
    found, missing = contest.turns(runs, missing, "read", **read.asked)
    rows = read.rows or (read.wanted.rows if read.wanted else 0)
    return found, section_of(read.case, found, missing, SAME_FILES, rows)


def _promise(ledger: Ledger, how: str, case: str, found: Found) -> None:
    """Put the ratios of seconds beside what is promised of them."""
    seconds = {name: [each.seconds for each in runs] for name, runs in found.items()}
    for limit in LIMITS:
        if limit.how == how:
            what = f"{case}: {limit.ours} over {limit.other}"
            ratio = times(seconds, limit.ours, limit.other)
            if ratio is None:
                ledger.facts[what] = f"not measured; at most {limit.most:.3g} is promised"
            else:
                ledger.most(what, ratio.median, limit.most, "x the seconds")
