"""`relive episodes validate`: checks episodes."""

import argparse
from typing import Final

from relive.cli.arguments import add_level
from relive.cli.command import Exit
from relive.cli.episodes.summary import validate
from relive.cli.report import check

SUMMARY: Final = "check that an episode, or a whole dataset, is complete and undamaged"
EXAMPLE: Final = "relive episodes validate kitchen --level full"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "path", metavar="PATH", help="the root of a dataset, an episode, or the file of a signal"
    )
    add_level(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Check the episodes, even those that cannot be opened."""
    return check([arguments.path], arguments.level, validate, as_json=arguments.json)
