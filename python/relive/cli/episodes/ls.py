"""`relive episodes ls`: the episodes of a dataset."""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relive.cli.arguments import parse_names, report_damaged
from relive.cli.command import Exit
from relive.cli.episodes.arguments import add_raw, add_root, number_of, open_root, path_of
from relive.cli.output import count_text, note, plain, print_json, print_line, print_table
from relive.cli.progress import Progress
from relive.errors import ReliveError
from relive.view.scale import clock_text, cut, duration_text

if TYPE_CHECKING:
    from relive.model.dataset import Dataset

SUMMARY: Final = "list the episodes of a dataset"
EXAMPLE: Final = "relive episodes ls kitchen --static task,success"

_MOST_THREADS: Final = 8
_LONGEST: Final = 40
_STATES: Final = {"locked": "being recorded", "left": "unfinished", "empty": "empty"}
_KEYS: Final = (
    *("id", "uid", "path", "created_ts_ns", "duration_ns", "signals", "rows", "state"),
    *("edited", "statics", "problem"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_root(parser)
    parser.add_argument(
        "--static",
        metavar="LIST",
        type=parse_names,
        action="extend",
        default=[],
        help="also print these statics, as in task,success; may be repeated",
    )
    add_raw(parser)
    parser.add_argument(
        "--errors",
        choices=("raise", "skip"),
        default="raise",
        help="list episodes that cannot be read with the problem and exit with 1 (raise, the "
        "default), or leave them out and exit with 3 (skip)",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Print a line for each episode, unfinished ones included."""
    root = Path(arguments.root)
    dataset = open_root(root, raw=arguments.raw, errors=arguments.errors)
    lines = list_episodes(dataset)
    unfinished = [_unfinished(each.path, each.reason) for each in dataset.unfinished]
    dropped = [] if arguments.raw else list(dataset.edits.dropped)
    status = report_damaged(dataset.damaged)
    problems = sum(line["problem"] is not None for line in lines)
    if problems:
        status = Exit.FAILED
    if arguments.json:
        found = {"episodes": lines, "unfinished": unfinished, "dropped": dropped}
        print_json(found | {"damaged": dataset.damaged})
        return status
    print_episodes([*lines, *unfinished], arguments.static)
    for name in dict.fromkeys(arguments.static):
        if lines and not any(name in line["statics"] for line in lines):
            note(f"no episode has a static value named {name!r}")
    left = sum(each["state"] == "unfinished" for each in unfinished)
    if left:
        note(f"{count_text(left, 'episode')} unfinished; run `relive recover {root}` to finish")
    if problems:
        note(f"{count_text(problems, 'episode')} damaged; --errors skip leaves them out")
    if dropped:
        note(f"{count_text(len(dropped), 'episode')} dropped; --raw shows all")
    return status


def list_episodes(dataset: "Dataset", first: int | None = None) -> list[dict[str, Any]]:
    """Describe the episodes, or the first of them; damage is reported as a `problem`."""
    count = len(dataset) if first is None else min(first, len(dataset))
    workers = min(_MOST_THREADS, 2 * (os.cpu_count() or 1))
    lines = []
    with ThreadPoolExecutor(workers) as pool, Progress("reading", count) as progress:
        for line in pool.map(lambda position: _line(dataset, position), range(count)):
            lines.append(line)
            progress(len(lines))
    return lines


def print_episodes(lines: Sequence[dict[str, Any]], statics: Sequence[str] = ()) -> None:
    """Print episodes as a table."""
    if not lines:
        print_line("no episodes")
        return
    problems = any(line["problem"] for line in lines)
    header = ["id", "uid", "created", "duration", "signals", "rows", "state"]
    print_table(
        [*header, *statics, *(["problem"] if problems else [])],
        [
            [
                *(line["id"], line["uid"]),
                _if_known(line["created_ts_ns"], lambda ts: clock_text(ts, digits=0)),
                _if_known(line["duration_ns"], duration_text),
                *(line["signals"], line["rows"], line["state"]),
                *(_static_text(line["statics"].get(name)) for name in statics),
                *([line["problem"]] if problems else []),
            ]
            for line in lines
        ],
    )


def _if_known(value: Any, text: Any) -> str | None:
    return None if value is None else text(value)


def _line(dataset: "Dataset", position: int) -> dict[str, Any]:
    line: dict[str, Any] = dict.fromkeys(_KEYS)
    line |= {"state": "damaged", "statics": {}}
    try:
        line["uid"] = dataset.uid_at(position)
        episode = dataset.episode_at(position)
        line |= {"id": number_of(episode), "path": str(path_of(episode))}
        meta = episode.meta
        lengths = [len(signal) for signal in episode.signals.values()]
        edited = hasattr(episode, "recorded")
        line |= {
            "created_ts_ns": meta["created_ts_ns"],
            "signals": len(lengths),
            "rows": sum(lengths),
            "duration_ns": episode.duration_ns if any(lengths) else None,
            "statics": plain(episode.statics),
            "edited": edited,
            "state": meta["outcome"].get("ended", "committed") + (", edited" if edited else ""),
        }
    except ReliveError as error:
        line["problem"] = error.message
    return line


def _unfinished(path: Path, reason: str) -> dict[str, Any]:
    from relive.episodes.meta import read_meta

    line: dict[str, Any] = dict.fromkeys(_KEYS)
    state = _STATES.get(reason, reason)
    line |= {"id": int(path.name), "path": str(path), "state": state, "statics": {}}
    try:
        meta = read_meta(path)
    except ReliveError:
        return line  # its writer ended before meta.json was complete
    return line | {"uid": meta["uid"], "created_ts_ns": meta["created_ts_ns"]}


def _static_text(value: Any) -> object:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return cut(str(value), _LONGEST)
