"""`relive recover`: what a writer that died has left, made whole."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relive.cli.arguments import add_json
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, say, shown
from relive.store.pack import recover

if TYPE_CHECKING:
    from relive.episodes.recover import Recovered

_SIGNALS: Final = frozenset({".mp4", ".parquet", ".tape"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="an unfinished pack, or the pack that it was to become; an episode, or the root "
        "of a dataset",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="where to write the pack (default: what it was to become)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the pack that is there")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Make a pack of the entries that arrived whole, or episodes of what was recorded."""
    path = Path(arguments.path)
    if path.is_dir() or path.suffix in _SIGNALS:
        if arguments.output is not None or arguments.overwrite:
            arguments.parser.error(
                "episodes are recovered where they are: no --output, --overwrite"
            )
        return _recover_episodes(path, as_json=arguments.json)
    found = recover(arguments.path, arguments.output, overwrite=arguments.overwrite)
    if arguments.json:
        print_json(asdict(found))
    else:
        print_line(f"{shown(str(found.path))}: {count_text(found.entries, 'entry', 'entries')}")
    if found.lost:
        say(f"warning: {count_text(found.lost, 'entry', 'entries')} lost: {found.reason}")
    return Exit.LOSS if found.lost else Exit.OK


def _recover_episodes(path: Path, *, as_json: bool) -> Exit:
    from relive.episodes.recover import recover as recover_episodes

    found = recover_episodes(path)
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)
    for problem in found.problems:
        say(f"warning: {problem}")
    for each in found.locked:
        say(f"`{shown(each)}` is being recorded, and was left alone")
    return Exit.LOSS if found.problems else Exit.OK


def _print(found: "Recovered") -> None:
    for episode in found.episodes:
        if episode.uid is None:
            continue  # the warning says all
        signals = count_text(len(episode.signals), "signal")
        records = count_text(sum(episode.signals.values()), "record")
        print_line(f"{shown(episode.path)}: {shown(episode.uid)}, {signals}, {records}")
    for name, rows in found.signals.items():
        print_line(f"{shown(found.path)}: {shown(name)}, {count_text(rows, 'record')}")
    if not (found.episodes or found.signals):
        print_line(f"{shown(found.path)}: {_untouched(len(found.locked))}")


def _untouched(recording: int) -> str:
    if not recording:
        return "nothing is unfinished"
    return f"nothing to recover; {count_text(recording, 'episode')} being recorded"


COMMAND: Final = Command(
    "recover",
    "finish what a writer that died has left behind: a pack, an episode, a dataset",
    "relive recover runs.a2pack",
    add_arguments,
    run,
)
