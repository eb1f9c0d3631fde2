"""`relive episodes show`: what is in one episode."""

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from relive.cli.arguments import add_json
from relive.cli.cells import plain
from relive.cli.command import Command, Exit
from relive.cli.episodes.arguments import add_episode, find_episode, number_of, path_of
from relive.cli.output import print_json, print_line, print_pairs, print_table, shown
from relive.errors import ReliveError
from relive.view.scale import clock_text, cut, duration_text, rate_text
from relive.view.timing import rhythm

if TYPE_CHECKING:
    from relive.model.episode import Episode
    from relive.model.signal import Signal

_LONGEST: Final = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_episode(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print what there is to know without reading a value; times are read."""
    found = look(find_episode(arguments))
    damaged = any(each["problem"] for each in found["signals"].values())
    if arguments.json:
        print_json(found)
        return Exit.FAILED if damaged else Exit.OK
    _print_episode(found)
    if found["signals"]:
        print_line("")
        _print_signals(found["signals"])
    attrs = [
        [shown(name), shown(key), _text(value)]
        for name, each in found["signals"].items()
        for key, value in (each["attrs"] or {}).items()
    ]
    if attrs:
        print_line("")
        print_table(("signal", "attribute", "value"), attrs)
    if found["statics"]:
        print_line("")
        rows = [[shown(name), _text(value)] for name, value in found["statics"].items()]
        print_table(("static", "value"), rows)
    return Exit.FAILED if damaged else Exit.OK


def look(episode: "Episode") -> dict[str, Any]:
    """Tell about an episode: its signals, statics and what the system noted."""
    meta = episode.meta
    outcome = (meta.get("outcome") or {}).get("signals") or {}
    signals = {name: _signal(episode, name, outcome.get(name) or {}) for name in episode.signals}
    firsts = [each["start_ts"] for each in signals.values() if each["start_ts"] is not None]
    lasts = [each["last_ts"] for each in signals.values() if each["last_ts"] is not None]
    path = path_of(episode)
    return {
        "uid": episode.uid,
        "id": number_of(episode),
        "path": None if path is None else str(path),
        "edited": hasattr(episode, "recorded"),
        "first_ts": min(firsts, default=None),
        "start_ts": max(firsts, default=None),
        "last_ts": max(lasts, default=None),
        "duration_ns": max(lasts) - min(firsts) if firsts else None,
        "signals": signals,
        "statics": {name: plain(value) for name, value in episode.statics.items()},
        "meta": plain(meta),
    }


def _signal(episode: "Episode", name: str, outcome: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = dict.fromkeys(_KEYS)
    try:
        line |= _facts(episode.signals[name])
    except ReliveError as error:
        line["problem"] = error.message
    return line | {"dropped": outcome.get("dropped", 0)}


_KEYS: Final = (
    *("kind", "dtype", "shape", "rows", "start_ts", "last_ts", "rate_hz", "gaps"),
    *("longest_step_ns", "clocks", "attrs", "problem"),
)


def _facts(signal: "Signal[Any]") -> dict[str, Any]:
    beat = rhythm(signal.timestamps)
    return {
        "kind": signal.kind,
        "dtype": str(signal.dtype),
        "shape": list(signal.shape),
        "rows": len(signal),
        "start_ts": signal.start_ts if len(signal) else None,
        "last_ts": signal.last_ts if len(signal) else None,
        "rate_hz": beat.rate_hz,
        "gaps": len(beat.gaps),
        "longest_step_ns": beat.longest_ns,
        "clocks": list(signal.clocks),
        "attrs": plain(dict(signal.attrs)),
    }


def _print_episode(found: dict[str, Any]) -> None:
    meta = found["meta"]
    writer = meta.get("writer") or {}
    pairs: list[tuple[str, object]] = [("uid", shown(found["uid"]))]
    if found["id"] is not None:
        pairs.append(("id", found["id"]))
    pairs.append(("path", shown(found["path"] or "-")))
    if isinstance(meta.get("created_ts_ns"), int):
        pairs.append(("created", clock_text(meta["created_ts_ns"])))
    if found["first_ts"] is not None:
        pairs.append(("first record", found["first_ts"]))
        pairs.append(("duration", duration_text(found["duration_ns"])))
    ended = str((meta.get("outcome") or {}).get("ended", "-"))
    pairs.append(("ended", shown(ended + (", edited since" if found["edited"] else ""))))
    error = (meta.get("outcome") or {}).get("error")
    if error:
        pairs.append(("error", _text(error)))
    if writer:
        version, python = writer.get("version"), writer.get("python")
        pairs.append(("written by", shown(f"{writer.get('name')} {version}, Python {python}")))
        if isinstance(writer.get("git"), dict):
            git = writer["git"]
            dirty = ", with changes" if git.get("dirty") else ""
            pairs.append(("git", shown(f"{git.get('commit')} ({git.get('branch')}{dirty})")))
    print_pairs(pairs)


def _print_signals(signals: dict[str, dict[str, Any]]) -> None:
    problems = any(each["problem"] for each in signals.values())
    drops = any(each["dropped"] for each in signals.values())
    print_table(
        [
            *("signal", "kind", "dtype", "shape", "rows", "Hz", "gaps", "longest step", "clocks"),
            *(["dropped"] if drops else []),
            *(["problem"] if problems else []),
        ],
        [
            [
                shown(name),
                each["kind"],
                each["dtype"],
                " x ".join(map(str, each["shape"] or ())) or "-",
                each["rows"],
                "-" if each["rate_hz"] is None else rate_text(each["rate_hz"]),
                each["gaps"],
                "-" if each["rate_hz"] is None else duration_text(each["longest_step_ns"]),
                shown(", ".join(each["clocks"] or ())) or "-",
                *([each["dropped"]] if drops else []),
                *([each["problem"]] if problems else []),
            ]
            for name, each in signals.items()
        ],
    )


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut(text, _LONGEST)


COMMAND: Final = Command(
    "show",
    "print what is in an episode: its signals, statics and how it was recorded",
    "relive episodes show kitchen 12",
    add_arguments,
    run,
)
