"""Signals, episodes and datasets for `relive info`, `head`, `stats` and `validate`."""

from typing import TYPE_CHECKING, Any, TypeAlias

from relive.cli.command import Exit
from relive.cli.episodes.ls import list_episodes, print_episodes
from relive.cli.output import plain, print_json, print_lines, print_pairs, print_table, value_text
from relive.cli.source import Facts, summaries
from relive.model.episode import Episode
from relive.model.report import Level, Progress, Report
from relive.model.signal import Signal
from relive.view.scale import duration_text
from relive.view.timing import measure_timing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from relive.model.dataset import Dataset

Recorded: TypeAlias = "Signal[Any] | Episode | Dataset"


def describe(found: Recorded) -> Facts:
    """Return the signals, or the number of episodes, without reading records."""
    if not isinstance(found, Signal | Episode):
        unfinished = getattr(found, "unfinished", None)
        counts = {
            "episodes": len(found),
            "unfinished": None if unfinished is None else len(unfinished),
        }
        return counts, [pair for pair in counts.items() if pair[1] is not None]
    signals = {name: signal_facts(signal) for name, signal in _signals(found).items()}
    pairs: list[tuple[str, object]] = [
        (f"signal {name}", _signal_text(each)) for name, each in signals.items()
    ]
    if isinstance(found, Episode):
        statics = sorted(found.statics)
        facts: dict[str, Any] = {"uid": found.uid, "signals": signals, "statics": statics}
        return facts, [("uid", found.uid), *pairs, ("statics", ", ".join(statics) or "-")]
    first, last = (found.start_ts, found.last_ts) if len(found) else (None, None)
    attrs = plain(found.attrs)
    facts = {"signals": signals, "first_ts": first, "last_ts": last}
    pairs += [
        ("times", "-" if first is None else f"{first} to {last}"),
        ("clocks", ", ".join(found.clocks) or "-"),
        *((name, str(value)) for name, value in attrs.items()),
    ]
    return facts | {"clocks": list(found.clocks), "attrs": attrs}, pairs


def print_head(found: Recorded, count: int, *, as_json: bool) -> Exit:
    """Print the first records of each signal, or the first episodes."""
    if not isinstance(found, Signal | Episode):
        lines = list_episodes(found, count)
        print_json(lines) if as_json else print_episodes(lines)
        return Exit.FAILED if any(line["problem"] for line in lines) else Exit.OK
    records = [
        {"signal": name, "row": row, "ts_ns": ts_ns, "value": _head_value(value, as_json=as_json)}
        for name, signal in _signals(found).items()
        for row, (value, ts_ns) in enumerate(signal[:count])
    ]
    print_lines(records, "no records", as_json=as_json)
    return Exit.OK


def print_stats(found: Recorded, *, as_json: bool) -> None:
    """Print statistics of the records of each signal, or of the episodes of a dataset."""
    if isinstance(found, Signal | Episode):
        _print_signal_stats(_signals(found), as_json=as_json)
    else:
        _print_dataset_stats(found, as_json=as_json)


def validate(path: str, level: Level, *, progress: Progress) -> Report:
    """Check a dataset, an episode or a signal; see `relive.episodes.validate`."""
    from relive.episodes import validate

    return validate(path, level, progress=progress)


def signal_paths(path: str) -> "Sequence[Path]":
    """Return the files of a signal: one, or a movie and its index."""
    from relive.episodes import layout

    return layout.signal_paths(path)


def signal_facts(signal: "Signal[Any]") -> dict[str, Any]:
    """Return what is known of a signal without reading it."""
    return {
        "kind": signal.kind,
        "dtype": str(signal.dtype),
        "shape": list(signal.shape),
        "rows": len(signal),
    }


def _signals(found: "Signal[Any] | Episode") -> "Mapping[str, Signal[Any]]":
    return {found.name: found} if isinstance(found, Signal) else found.signals


def _signal_text(facts: dict[str, Any]) -> str:
    shape = f" {tuple(facts['shape'])}" if facts["shape"] else ""
    kind = "image " if facts["kind"] == "image" else ""
    return f"{kind}{facts['dtype']}{shape}, {facts['rows']} records"


def _head_value(value: Any, *, as_json: bool) -> Any:
    # Pixels are of no use to a person, and too many for a pipe.
    is_picture = getattr(value, "ndim", 0) > 1
    return value_text(value) if is_picture or not as_json else value


def _print_signal_stats(signals: "Mapping[str, Signal[Any]]", *, as_json: bool) -> None:
    found: dict[str, dict[str, Any]] = {}
    for name, signal in signals.items():
        numbers = None if signal.kind == "image" else summaries(signal).get("value")
        found[name] = {"rows": len(signal), "rate_hz": measure_timing(signal.timestamps).rate_hz}
        found[name] |= numbers or dict.fromkeys(("items", "min", "max", "mean"))
    if as_json:
        spans = [(each.start_ts, each.last_ts) for each in signals.values() if len(each)]
        duration = max(last for _, last in spans) - min(spans)[0] if spans else None
        print_json({"duration_ns": duration, "signals": found})
        return
    names = ("rows", "rate_hz", "items", "min", "max", "mean")
    rows = [[name, *(each[key] for key in names)] for name, each in found.items()]
    print_table(("signal", *names), rows)


def _print_dataset_stats(dataset: "Dataset", *, as_json: bool) -> None:
    table = dataset.table()
    durations = [each for each in table["duration_ns"].to_pylist() if each is not None]
    counts: dict[str, list[int]] = {}
    for rows in table["rows"].to_pylist():
        for name, count in (rows or {}).items():
            if count is not None:
                counts.setdefault(name, []).append(count)
    signals = {
        name: {"episodes": len(each), "rows": sum(each)} for name, each in sorted(counts.items())
    }
    spans = {
        "total": sum(durations),
        "min": min(durations, default=None),
        "mean": round(sum(durations) / len(durations)) if durations else None,
        "max": max(durations, default=None),
    }
    if as_json:
        print_json({"episodes": len(dataset), "duration_ns": spans, "signals": signals})
        return
    texts = {key: "-" if each is None else duration_text(each) for key, each in spans.items()}
    duration = f"{texts['total']}: {texts['min']} to {texts['max']}, mean {texts['mean']}"
    print_pairs([("episodes", len(dataset)), ("duration", duration)])
    if signals:
        rows = [[name, each["episodes"], each["rows"]] for name, each in signals.items()]
        print_table(("signal", "episodes", "rows"), rows)
