"""`relive episodes merge`: several datasets as one."""

import argparse
from pathlib import Path
from typing import Final

from relive.cli.arguments import add_json
from relive.cli.command import Command, Exit
from relive.cli.episodes.copy import add_video, tell
from relive.cli.episodes.arguments import add_raw, open_root
from relive.cli.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "sources", metavar="SOURCE", nargs="+", help="the roots of datasets; in this order"
    )
    parser.add_argument("target", metavar="TARGET", help="the root to copy to, made if missing")
    add_raw(parser)
    add_video(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Copy all episodes behind those that are there; one that is there already is left out."""
    from relive.episodes.copy import merge

    datasets = [open_root(Path(source), raw=arguments.raw) for source in arguments.sources]
    with Progress("copying", 0) as progress:
        done = merge(datasets, arguments.target, video=arguments.video, progress=progress.out_of)
    tell(arguments.target, done, as_json=arguments.json)
    return Exit.OK


COMMAND: Final = Command(
    "merge",
    "copy the episodes of several datasets to one",
    "relive episodes merge monday tuesday week",
    add_arguments,
    run,
)
