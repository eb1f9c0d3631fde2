"""From what was measured to what is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benches import machine
from benches.method import Ratio
from benches.peers import label
from benches.report import Report, Row, Section

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benches.method import Contender, Outcome
    from benches.options import Options
    from benches.peers import Peer

ALWAYS = ("relive", "numpy")


def against(outcome: Outcome, reference: str) -> Section:
    """Everyone's rate over that of `reference`."""
    base = outcome.find(reference)
    rows = [_row(outcome, each, each, base) for each in outcome.contenders]
    return _section(outcome, f"x {reference}", rows)


def ahead_of(outcome: Outcome, subject: str) -> Section:
    """The rate of `subject` over everyone's."""
    ours = outcome.find(subject)
    rows = [_row(outcome, each, ours, each) for each in outcome.contenders]
    return _section(outcome, "relive is x", rows)


def report(
    bench: str,
    options: Options,
    peers: Iterable[Peer],
    sections: list[Section],
    turns: dict[str, float | str] | None = None,
) -> Report:
    """`sections` with machine, versions and method; `turns` says what a turn is."""
    packages = {package for peer in peers for package in peer.packages}
    method: dict[str, float | str] = {
        "rounds": options.rounds,
        **(turns or {"seconds per contender and round": options.round_s, "page cache": "warm"}),
        "rates": "median of rounds",
        "ratios": "median [range] of ratios within rounds",
    }
    versions = machine.versions(packages.union(ALWAYS))
    return Report(bench, method, machine.shape(), versions, sections)


def _row(
    outcome: Outcome, shown: Contender, above: Contender | None, below: Contender | None
) -> Row:
    ratio = Ratio.of(above.rates, below.rates) if above and below else None
    return Row(
        name=shown.name,
        setting=label(shown.setting),
        rates=shown.rates,
        rate=shown.rate,
        gb_per_s=shown.rate * outcome.case.batch_bytes / 1e9,
        ratio=ratio,
        tried=shown.tried,
    )


def _section(outcome: Outcome, ratio_of: str, rows: list[Row]) -> Section:
    case = outcome.case
    return Section(
        case=case.name,
        record_bytes=case.record_bytes,
        records=case.records,
        batch_size=case.batch_size,
        ratio_of=ratio_of,
        rows=rows,
        missing=outcome.missing,
    )
