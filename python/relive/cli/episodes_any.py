"""Episodes and datasets of them, for the commands that take whatever can be opened."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relive.cli.cells import cell, plain
from relive.cli.episodes_ls import list_episodes, print_episodes
from relive.cli.output import print_json, print_line, print_pairs, print_table, shown
from relive.model.episode import Episode
from relive.view.rhythm import rhythm
from relive.view.scale import duration_text

if TYPE_CHECKING:
    from relive.model.signal import Signal
    from relive.record.dataset import Dataset

_FEW: Final = 12

KINDS: Final = frozenset({"episode", "dataset"})
"""The kinds of things that hold episodes."""


def describe(found: "Episode | Dataset") -> dict[str, Any]:
    """Tell what there is without reading it: the signals of an episode, or how many episodes."""
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
    return [
        ("uid", shown(described["uid"])),
        *((f"signal {shown(name)}", _words(each)) for name, each in described["signals"].items()),
        ("statics", shown(", ".join(described["statics"])) or "-"),
    ]


def print_head(found: "Episode | Dataset", count: int, *, as_json: bool) -> bool:
    """Print the first records of each signal, or the first episodes; say whether all is well."""
    if not isinstance(found, Episode):
        lines = list_episodes(found, count)
        print_json(lines) if as_json else print_episodes(lines)
        return not any(line["problem"] for line in lines)
    records = [
        {"signal": name, "row": row, "ts_ns": ts_ns, "value": value}
        for name, signal in found.signals.items()
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


def print_stats(found: "Episode | Dataset", *, as_json: bool) -> None:
    """Print what the records of an episode, or the episodes of a dataset, amount to."""
    if isinstance(found, Episode):
        _print_episode_stats(found, as_json=as_json)
    else:
        _print_dataset_stats(found, as_json=as_json)


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


def _print_episode_stats(episode: Episode, *, as_json: bool) -> None:
    from relive.cli.stats import summaries

    found = {}
    for name, signal in episode.signals.items():
        numbers = None if signal.kind == "image" else summaries(signal).get("value")
        found[name] = {"rows": len(signal), "rate_hz": rhythm(signal.timestamps).rate_hz} | (
            numbers or dict.fromkeys(("items", "min", "max", "mean"))
        )
    if as_json:
        duration = episode.duration_ns if any(map(len, episode.signals.values())) else None
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
