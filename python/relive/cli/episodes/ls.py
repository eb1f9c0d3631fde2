"""`relive episodes ls`: the episodes of a dataset."""

import argparse
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relive.cli.arguments import add_json, parse_names
from relive.cli.cells import plain
from relive.cli.command import Command, Exit
from relive.cli.episodes.arguments import add_raw, number_of, open_root, path_of
from relive.cli.output import count_text, print_json, print_line, print_table, say, shown
from relive.cli.progress import Progress
from relive.errors import ReliveError
from relive.view.scale import clock_text, cut, duration_text

if TYPE_CHECKING:
    from relive.model.dataset import Dataset

_MOST_THREADS: Final = 8
_LONGEST: Final = 40
_WHY: Final = {"locked": "being recorded", "left": "unfinished", "empty": "empty"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("root", metavar="ROOT", help="the root of a dataset")
    parser.add_argument(
        "--static",
        metavar="LIST",
        type=parse_names,
        action="extend",
        default=[],
        help="show these statics too, as in task,success; may be repeated",
    )
    add_raw(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print a line for each episode, also for those that are not finished."""
    root = Path(arguments.root)
    dataset = open_root(root, raw=arguments.raw)
    lines = list_episodes(dataset)
    unfinished = [_unfinished(each.path, each.reason) for each in dataset.unfinished]
    dropped = [] if arguments.raw else list(dataset.edits.dropped)
    if arguments.json:
        print_json({"episodes": lines, "unfinished": unfinished, "dropped": dropped})
    else:
        print_episodes([*lines, *unfinished], arguments.static)
        for name in dict.fromkeys(arguments.static):
            if lines and not any(name in line["statics"] for line in lines):
                say(f"no episode has the static {shown(name)!r}")
        left = sum(each["state"] == "unfinished" for each in unfinished)
        if left:
            say(f"{count_text(left, 'episode')} unfinished; `relive recover {root}` finishes it")
        if dropped:
            say(f"{count_text(len(dropped), 'episode')} dropped; --raw shows all")
    return Exit.FAILED if any(line["problem"] for line in lines) else Exit.OK


def list_episodes(dataset: "Dataset", first: int | None = None) -> list[dict[str, Any]]:
    """Tell about the episodes, or the first of them, in a line each; damage is told in it."""
    count = len(dataset) if first is None else min(first, len(dataset))
    threads = min(_MOST_THREADS, 2 * (os.cpu_count() or 1))
    with ThreadPoolExecutor(threads) as pool, Progress("reading", count) as progress:
        lines = []
        for line in pool.map(lambda place: _line(dataset, place), range(count)):
            lines.append(line)
            progress(len(lines))
    return lines


def print_episodes(lines: Sequence[dict[str, Any]], statics: Sequence[str] = ()) -> None:
    """Print episodes below each other."""
    if not lines:
        print_line("no episodes")
        return
    problems = any(line["problem"] for line in lines)
    header = ["id", "uid", "created", "duration", "signals", "rows", "state"]
    print_table(
        [*header, *map(shown, statics), *(["problem"] if problems else [])],
        [
            [
                line["id"],
                None if line["uid"] is None else shown(line["uid"]),
                None
                if line["created_ts_ns"] is None
                else clock_text(line["created_ts_ns"], digits=0),
                None if line["duration_ns"] is None else duration_text(line["duration_ns"]),
                *(line["signals"], line["rows"], line["state"]),
                *(_static_text(line["statics"], name) for name in statics),
                *([line["problem"]] if problems else []),
            ]
            for line in lines
        ],
    )


def _line(dataset: "Dataset", place: int) -> dict[str, Any]:
    line: dict[str, Any] = dict.fromkeys(_KEYS)
    line |= {"state": "damaged", "statics": {}}
    try:
        line["uid"] = dataset.uid_at(place)
        episode = dataset.episode_at(place)
        line |= {"id": number_of(episode), "path": str(path_of(episode))}
        meta = episode.meta
        lengths = [len(signal) for signal in episode.signals.values()]
        line |= {
            "created_ts_ns": meta["created_ts_ns"],
            "signals": len(lengths),
            "rows": sum(lengths),
            "duration_ns": episode.duration_ns if any(lengths) else None,
            "statics": {name: plain(value) for name, value in episode.statics.items()},
            "edited": hasattr(episode, "recorded"),
            "state": meta["outcome"].get("ended", "committed"),
        }
        line["state"] += ", edited" if line["edited"] else ""
    except ReliveError as error:
        line["problem"] = error.message
    return line


_KEYS: Final = (
    *("id", "uid", "path", "created_ts_ns", "duration_ns", "signals", "rows", "state"),
    *("edited", "statics", "problem"),
)


def _unfinished(path: Path, why: str) -> dict[str, Any]:
    from relive.episodes.meta import read_meta

    line: dict[str, Any] = dict.fromkeys(_KEYS)
    line |= {"id": int(path.name), "path": str(path), "state": _WHY.get(why, why), "statics": {}}
    try:
        meta = read_meta(path)
    except ReliveError:
        return line  # it was left before there was anything to tell
    return line | {"uid": meta["uid"], "created_ts_ns": meta["created_ts_ns"]}


def _told(value: Any, words: Callable[[Any], str]) -> str | None:
    return None if value is None else words(value)


def _static_text(statics: dict[str, Any], name: str) -> object:
    value = statics.get(name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return cut(str(value), _LONGEST)


COMMAND: Final = Command(
    "ls",
    "list the episodes of a dataset",
    "relive episodes ls kitchen --static task,success",
    add_arguments,
    run,
)
