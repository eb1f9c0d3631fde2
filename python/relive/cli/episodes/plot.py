"""`relive episodes plot`: a picture of an episode."""

import argparse
from typing import Final

from relive.cli.arguments import add_overwrite, parse_names, print_written
from relive.cli.command import Exit
from relive.cli.episodes.arguments import TIME_HELP, add_episode, find_episode, parse_time

SUMMARY: Final = "draw all signals of an episode over time, with thumbnails of its cameras"
EXAMPLE: Final = "relive episodes plot kitchen 12 --output 12.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_episode(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="the picture to write: a .png image, or a self-contained .html page",
    )
    parser.add_argument(
        "--signals",
        metavar="LIST",
        type=parse_names,
        help="only these signals, in this order, as in q,cam.wrist",
    )
    parser.add_argument("--from", metavar="TIME", dest="start", type=parse_time, help=TIME_HELP)
    parser.add_argument(
        "--to", metavar="TIME", dest="stop", type=parse_time, help="the same; excluded"
    )
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Draw the signals over time, with thumbnails of the cameras."""
    from relive.view.plot import plot

    episode, status = find_episode(arguments)
    start, stop = (
        None if moment is None else moment.in_episode(episode)
        for moment in (arguments.start, arguments.stop)
    )
    if (start, stop) != (None, None):
        episode = episode.time[start:stop]
    plot(episode, arguments.output, signals=arguments.signals, overwrite=arguments.overwrite)
    print_written(arguments, len(arguments.signals or episode.signals), "signal")
    return status
