"""A picture of a report: one panel per case, one bar per contender."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benches.report import note

if TYPE_CHECKING:
    from pathlib import Path

    from benches.report import Report, Row, Section

_OURS, _THEIRS = "#c8553d", "#588b8b"


def write_plot(report: Report, path: Path) -> None:
    """Draw `report` to `path`; without matplotlib, say so and go on."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        note(f"no plot: {error}")
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sections = [section for section in report.sections if section.rows]
    if not sections:
        return
    heights = [0.6 + 0.32 * len(section.rows) for section in sections]
    figure, axes = plt.subplots(
        len(sections),
        1,
        figsize=(9, 1 + sum(heights)),
        squeeze=False,
        layout="constrained",
        gridspec_kw={"height_ratios": heights},
    )
    for section, axis in zip(sections, axes[:, 0], strict=True):
        _panel(section, axis)
    shape = report.machine
    figure.suptitle(f"{report.bench}: {shape['processor']}, {shape['cores']} cores", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(section: Section, axis: Any) -> None:
    rows = sorted(section.rows, key=lambda row: row.rate)
    places = range(len(rows))
    colors = [_OURS if row.name.startswith("relive") else _THEIRS for row in rows]
    if any(row.latency_ms for row in rows):
        left = [row.latency_ms["p50"] for row in rows]
        right = [row.latency_ms["p99"] for row in rows]
        axis.hlines(places, left, right, color="#999999", lw=1.5)
        axis.scatter(left, places, color=colors, zorder=3)
        axis.scatter(right, places, facecolor="white", edgecolor=colors, zorder=3)
        axis.set_xlabel("batch latency in ms: p50 (filled), p99 (hollow)", fontsize=8)
    else:
        batches = section.unit == "batches"
        each = section.record_bytes * section.batch_size / 1e9 if batches else 1.0
        spread = [_spread(row, each) for row in rows]
        axis.barh(
            places,
            [row.rate * each for row in rows],
            xerr=list(zip(*spread, strict=True)),
            color=colors,
            height=0.7,
            error_kw={"lw": 0.8, "capsize": 2},
        )
        for place, row in zip(places, rows, strict=True):
            end = max(row.rates) * each
            axis.text(end, place, f"  {row.rate * each:.3g}", va="center", fontsize=7)
        unit = "GB/s" if batches else f"{section.unit}/s"
        axis.set_xlabel(f"{unit}, median and range of rounds", fontsize=8)
    axis.set_xscale("log")
    axis.margins(x=0.12)
    axis.set_yticks(places, [_name(row) for row in rows], fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_title(f"{section.case}, batches of {section.batch_size}", fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def _name(row: Row) -> str:
    """The contender, with its setting where that was one of several."""
    return f"{row.name} ({row.setting})" if row.tried else row.name


def _spread(row: Row, each: float) -> tuple[float, float]:
    return (row.rate - min(row.rates)) * each, (max(row.rates) - row.rate) * each
