"""`relive episodes plot`: a picture of an episode."""

import argparse
from pathlib import Path
from typing import Final

from relive.cli.arguments import add_json, parse_names
from relive.cli.command import Command, Exit
from relive.cli.episodes.times import HELP, parse_time
from relive.cli.episodes.arguments import add_episode, find_episode
from relive.cli.output import count_text, print_json, print_line, shown, size_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_episode(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="the picture to write: a name in .png, or in .html for a page that has all in it",
    )
    parser.add_argument(
        "--signals",
        metavar="LIST",
        type=parse_names,
        help="only these signals, in this order, as in q,cam.wrist",
    )
    parser.add_argument("--from", metavar="TIME", dest="start", type=parse_time, help=HELP)
    parser.add_argument(
        "--to", metavar="TIME", dest="stop", type=parse_time, help="the same, not included"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Draw the signals over time, with thumbnails of the cameras."""
    from relive.view.plot import plot

    episode = find_episode(arguments)
    start, stop = (
        None if moment is None else moment.in_episode(episode)
        for moment in (arguments.start, arguments.stop)
    )
    if (start, stop) != (None, None):
        episode = episode.time[start:stop]
    plot(episode, arguments.output, signals=arguments.signals, overwrite=arguments.overwrite)
    drawn = len(arguments.signals or episode.signals)
    size = Path(arguments.output).stat().st_size
    if arguments.json:
        print_json({"path": arguments.output, "signals": drawn, "file_bytes": size})
    else:
        signals = count_text(drawn, "signal")
        print_line(f"{shown(arguments.output)}: {signals}, {size_text(size)}")
    return Exit.OK


COMMAND: Final = Command(
    "plot",
    "draw all signals of an episode over time, with thumbnails of its cameras",
    "relive episodes plot kitchen 12 --output 12.html",
    add_arguments,
    run,
)
