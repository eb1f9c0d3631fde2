"""Results as a table, as JSON and as a plot."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from benches.method import Ratio

SCHEMA = 1


@dataclass
class Row:
    """One contender on one case; rates are batches per second."""

    name: str
    setting: str
    rates: list[float]
    rate: float
    gb_per_s: float
    ratio: Ratio | None = None
    tried: dict[str, float] = field(default_factory=dict)
    latency_ms: dict[str, float] = field(default_factory=dict)


@dataclass
class Section:
    """All rows of one case, and what follows from them."""

    case: str
    record_bytes: int
    records: int
    batch_size: int
    ratio_of: str
    rows: list[Row]
    missing: dict[str, str]
    facts: dict[str, float | str] = field(default_factory=dict)
    unit: str = "batches"
    """What a rate counts; bytes per second are shown of batches alone."""


@dataclass
class Report:
    """One bench: its sections, with the machine and the versions they belong to."""

    bench: str
    method: dict[str, float | str]
    machine: dict[str, str | int]
    versions: dict[str, str]
    sections: list[Section]
    not_run: list[str] = field(default_factory=list)


def say(text: str) -> None:
    """Write a line of result to stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a line of progress to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def show(report: Report) -> None:
    """Print the whole report."""
    say(f"\n# {report.bench}")
    say("machine: " + ", ".join(f"{key} {value}" for key, value in report.machine.items()))
    say("versions: " + ", ".join(f"{key} {value}" for key, value in report.versions.items()))
    say("method: " + ", ".join(f"{key} {value}" for key, value in report.method.items()))
    for section in report.sections:
        _show_section(section)
    for line in report.not_run:
        say(f"not run: {line}")


def _show_section(section: Section) -> None:
    if not section.rows:
        say(f"\n## {section.case}")
        _show_rest(section)
        return
    say(f"\n## {section.case} ({section.records} records, batches of {section.batch_size})")
    slow = next((list(row.latency_ms) for row in section.rows if row.latency_ms), [])
    batches = section.unit == "batches"
    head = ["contender", "setting", f"{section.unit}/s", *(["GB/s"] if batches else [])]
    head.append(section.ratio_of)
    table = [head + [f"{key} ms" for key in slow]]
    for row in section.rows:
        cells = [row.name, row.setting, _rate_text(row.rate)]
        cells += [f"{row.gb_per_s:.2f}"] if batches else []
        cells.append(_ratio_text(row.ratio))
        cells += [f"{row.latency_ms[key]:.3g}" for key in slow]
        table.append(cells)
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        say("  ".join(left + right).rstrip())
    _show_rest(section)


def _show_rest(section: Section) -> None:
    for name, why in section.missing.items():
        say(f"missing: {name}: {why}")
    for name, value in section.facts.items():
        say(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _ratio_text(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio.median:.2f} [{ratio.low:.2f}-{ratio.high:.2f}]"


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    return {"schema": SCHEMA, **asdict(report)}


def write_json(report: Report, path: Path) -> None:
    """Write the report to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(report), indent=1) + "\n", encoding="utf-8")
