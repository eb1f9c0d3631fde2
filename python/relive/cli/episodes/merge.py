"""`relive episodes merge`: copies several datasets to one."""

import argparse
from pathlib import Path
from typing import Final

from relive.cli.command import Exit
from relive.cli.episodes.arguments import open_root
from relive.cli.episodes.copy import add_target, copy_options, print_copied
from relive.cli.progress import Progress

SUMMARY: Final = "copy the episodes of several datasets to one"
EXAMPLE: Final = "relive episodes merge monday tuesday week"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "sources", metavar="SOURCE", nargs="+", help="the roots of datasets; in this order"
    )
    add_target(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Append all episodes to the target, except those that it already has."""
    from relive.episodes import merge

    datasets = [
        open_root(Path(source), raw=arguments.raw, errors=arguments.errors)
        for source in arguments.sources
    ]
    options = copy_options(arguments)
    with Progress("copying") as progress:
        done = merge(datasets, arguments.target, **options, progress=progress)
    return print_copied(arguments, done)
