"""Signals, episodes and datasets of them, for the commands that take whatever can be opened."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relive.cli.cells import cell, plain
from relive.cli.episodes.ls import list_episodes, print_episodes
from relive.cli.output import print_json, print_line, print_pairs, print_table, shown
from relive.model.episode import Episode
from relive.model.signal import Signal
from relive.view.scale import duration_text
from relive.view.timing import rhythm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relive.model.dataset import Dataset

_FEW: Final = 12

KINDS: Final = frozenset({"episode", "dataset", "signal"})
"""The kinds of things that were recorded."""


def is_recorded(found: object) -> bool:
    """Whether something is a signal, an episode or a dataset of them."""
    from relive.model.dataset import Dataset

    return isinstance(found, Signal | Episode | Dataset)


def describe(found: "Signal[Any] | Episode | Dataset") -> dict[str, Any]:
    """Tell what there is without reading it: signals, or how many episodes."""
    if isinstance(found, Signal):
        times = (found.start_ts, found.last_ts) if len(found) else (None, None)
        about = {"clocks": list(found.clocks), "attrs": plain(dict(found.attrs))}
        return {
            "signals": {found.name: _form(found)},
            "first_ts": times[0],
            "last_ts": times[1],
        } | about
    if isinstance(found, Episode):
        signals = {name: _form(signal) for name, signal in found.signals.items()}
        return {"uid": found.uid, "signals": signals, "statics": sorted(found.statics)}
    unfinished = getattr(found, "unfinished", None)
    return {
        "episodes": len(found),
        "unfinished": None if unfinished is None else len(unfinished),
    }


def describe_pairs(described: dict[str, Any]) -> list[tuple[str, object]]:
    """Give what `describe` gave as lines for people."""
    if "episodes" in described:
        return [(key, value) for key, value in described.items() if value is not None]
    signals = [
        (f"signal {shown(name)}", _words(each)) for name, each in described["signals"].items()
    ]
    if "uid" in described:
        statics = shown(", ".join(described["statics"])) or "-"
        return [("uid", shown(described["uid"])), *signals, ("statics", statics)]
    times = described["first_ts"], described["last_ts"]
    return [
        *signals,
        ("times", "-" if None in times else f"{times[0]} to {times[1]}"),
        ("clocks", shown(", ".join(described["clocks"])) or "-"),
        *((shown(key), shown(str(value))) for key, value in described["attrs"].items()),
    ]


def print_head(found: "Signal[Any] | Episode | Dataset", count: int, *, as_json: bool) -> bool:
    """Print the first records of each signal, or the first episodes; say whether all is well."""
    if not isinstance(found, Signal | Episode):
        lines = list_episodes(found, count)
        print_json(lines) if as_json else print_episodes(lines)
        return not any(line["problem"] for line in lines)
    records = [
        {"signal": name, "row": row, "ts_ns": ts_ns, "value": value}
        for name, signal in _signals(found).items()
        for row, (value, ts_ns) in enumerate(signal[:count])
    ]
    if as_json:
        print_json([_plain_record(record) for record in records])
    elif not records:
        print_line("no records")
    else:
        print_table(
            tuple(records[0]),
            [
                [shown(each["signal"]), each["row"], each["ts_ns"], _short(each["value"])]
                for each in records
            ],
        )
    return True


def print_stats(found: "Signal[Any] | Episode | Dataset", *, as_json: bool) -> None:
    """Print what the records of signals, or the episodes of a dataset, amount to."""
    if isinstance(found, Signal | Episode):
        _print_signal_stats(found, as_json=as_json)
    else:
        _print_dataset_stats(found, as_json=as_json)


def _signals(found: "Signal[Any] | Episode") -> "Mapping[str, Signal[Any]]":
    return {found.name: found} if isinstance(found, Signal) else found.signals


def _form(signal: "Signal[Any]") -> dict[str, Any]:
    return {
        "kind": signal.kind,
        "dtype": str(signal.dtype),
        "shape": list(signal.shape),
        "rows": len(signal),
    }


def _words(form: dict[str, Any]) -> str:
    shape = f" {tuple(form['shape'])}" if form["shape"] else ""
    kind = "image " if form["kind"] == "image" else ""
    return f"{kind}{form['dtype']}{shape}, {form['rows']} records"


def _short(value: Any) -> str:
    """Give a value with few digits; all of them are in JSON."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.size <= _FEW:
        return f"[{', '.join(f'{item:.6g}' for item in value.tolist())}]"
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(cell(value))


def _plain_record(record: dict[str, Any]) -> dict[str, Any]:
    # The pixels of a frame say nothing to a person, and too much to a pipe.
    picture = getattr(record["value"], "ndim", 0) > 1
    return record | {"value": cell(record["value"]) if picture else plain(record["value"])}


def _print_signal_stats(source: "Signal[Any] | Episode", *, as_json: bool) -> None:
    from relive.cli.stats import summaries

    found = {}
    signals = _signals(source)
    for name, signal in signals.items():
        numbers = None if signal.kind == "image" else summaries(signal).get("value")
        found[name] = {"rows": len(signal), "rate_hz": rhythm(signal.timestamps).rate_hz} | (
            numbers or dict.fromkeys(("items", "min", "max", "mean"))
        )
    if as_json:
        spans = [(each.start_ts, each.last_ts) for each in signals.values() if len(each)]
        duration = max(last for _, last in spans) - min(spans)[0] if spans else None
        print_json({"duration_ns": duration, "signals": found})
        return
    names = ("rows", "rate_hz", "items", "min", "max", "mean")
    print_table(
        ("signal", *names), [[shown(k), *(each[n] for n in names)] for k, each in found.items()]
    )


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
    print_pairs(
        [
            ("episodes", len(dataset)),
            (
                "duration",
                f"{texts['total']}: {texts['min']} to {texts['max']}, mean {texts['mean']}",
            ),
        ]
    )
    if signals:
        print_table(
            ("signal", "episodes", "rows"),
            [[shown(name), each["episodes"], each["rows"]] for name, each in signals.items()],
        )
