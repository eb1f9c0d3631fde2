"""`relive episodes show`: the contents of one episode."""

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from relive.cli.command import Exit
from relive.cli.episodes.arguments import add_episode, find_episode, number_of, path_of
from relive.cli.episodes.summary import signal_facts
from relive.cli.output import plain, print_json, print_line, print_pairs, print_table
from relive.errors import ReliveError
from relive.view.scale import clock_text, cut, duration_text, rate_text
from relive.view.timing import measure_timing

if TYPE_CHECKING:
    from relive.model.episode import Episode
    from relive.model.signal import Signal

SUMMARY: Final = "print the contents of an episode: its signals, its statics, how it was recorded"
EXAMPLE: Final = "relive episodes show kitchen 12"

add_arguments = add_episode

_LONGEST: Final = 100
_KEYS: Final = (
    *("kind", "dtype", "shape", "rows", "start_ts", "last_ts", "rate_hz", "gaps"),
    *("longest_step_ns", "clocks", "attrs", "problem"),
)


def run(arguments: argparse.Namespace) -> Exit:
    """Print what is known without reading values; only timestamps are read."""
    episode, status = find_episode(arguments)
    found = _describe(episode)
    signals, statics = found["signals"], found["statics"]
    if any(each["problem"] for each in signals.values()):
        status = Exit.FAILED
    if arguments.json:
        print_json(found)
        return status
    _print_episode(found)
    if signals:
        print_line()
        _print_signals(signals)
    attrs = [
        [name, key, _text(value)]
        for name, each in signals.items()
        for key, value in (each["attrs"] or {}).items()
    ]
    if attrs:
        print_line()
        print_table(("signal", "attribute", "value"), attrs)
    if statics:
        print_line()
        print_table(("static", "value"), [[name, _text(each)] for name, each in statics.items()])
    return status


def _describe(episode: "Episode") -> dict[str, Any]:
    meta = episode.meta
    outcome = (meta.get("outcome") or {}).get("signals") or {}
    signals = {name: _signal(episode, name, outcome.get(name) or {}) for name in episode.signals}
    firsts = [each["start_ts"] for each in signals.values() if each["start_ts"] is not None]
    lasts = [each["last_ts"] for each in signals.values() if each["last_ts"] is not None]
    return {
        "uid": episode.uid,
        "id": number_of(episode),
        "path": path_of(episode),
        "edited": hasattr(episode, "recorded"),
        "first_ts": min(firsts, default=None),
        "start_ts": max(firsts, default=None),
        "last_ts": max(lasts, default=None),
        "duration_ns": max(lasts) - min(firsts) if firsts else None,
        "signals": signals,
        "statics": plain(episode.statics),
        "meta": plain(meta),
    }


def _signal(episode: "Episode", name: str, outcome: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = dict.fromkeys(_KEYS)
    try:
        line |= _facts(episode.signals[name])
    except ReliveError as error:
        line["problem"] = error.message
    return line | {"dropped": outcome.get("dropped", 0)}


def _facts(signal: "Signal[Any]") -> dict[str, Any]:
    timing = measure_timing(signal.timestamps)
    return signal_facts(signal) | {
        "start_ts": signal.start_ts if len(signal) else None,
        "last_ts": signal.last_ts if len(signal) else None,
        "rate_hz": timing.rate_hz,
        "gaps": len(timing.gaps),
        "longest_step_ns": timing.longest_step_ns,
        "clocks": list(signal.clocks),
        "attrs": plain(signal.attrs),
    }


def _print_episode(found: dict[str, Any]) -> None:
    meta = found["meta"]
    outcome, writer = meta.get("outcome") or {}, meta.get("writer") or {}
    pairs: list[tuple[str, object]] = [("uid", found["uid"])]
    if found["id"] is not None:
        pairs.append(("id", found["id"]))
    pairs.append(("path", found["path"]))
    if isinstance(meta.get("created_ts_ns"), int):
        pairs.append(("created", clock_text(meta["created_ts_ns"])))
    if found["first_ts"] is not None:
        pairs.append(("first record", found["first_ts"]))
        pairs.append(("duration", duration_text(found["duration_ns"])))
    ended = outcome.get("ended", "-")
    pairs.append(("ended", f"{ended}, edited since" if found["edited"] else ended))
    if outcome.get("error"):
        pairs.append(("error", _text(outcome["error"])))
    if writer:
        version, python = writer.get("version"), writer.get("python")
        pairs.append(("written by", f"{writer.get('name')} {version}, Python {python}"))
        if isinstance(writer.get("git"), dict):
            git = writer["git"]
            dirty = ", with changes" if git.get("dirty") else ""
            pairs.append(("git", f"{git.get('commit')} ({git.get('branch')}{dirty})"))
    print_pairs(pairs)


def _print_signals(signals: dict[str, dict[str, Any]]) -> None:
    further = [key for key in ("dropped", "problem") if any(each[key] for each in signals.values())]
    print_table(
        [
            *("signal", "kind", "dtype", "shape", "rows", "Hz", "gaps", "longest step", "clocks"),
            *further,
        ],
        [
            [
                *(name, each["kind"], each["dtype"]),
                " x ".join(map(str, each["shape"] or ())) or "-",
                each["rows"],
                None if each["rate_hz"] is None else rate_text(each["rate_hz"]),
                each["gaps"],
                None if each["rate_hz"] is None else duration_text(each["longest_step_ns"]),
                ", ".join(each["clocks"] or ()) or "-",
                *(each[key] for key in further),
            ]
            for name, each in signals.items()
        ],
    )


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut(text, _LONGEST)
