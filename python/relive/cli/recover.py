"""`relive recover`: what a writer that died has left, made whole."""

import argparse
from dataclasses import asdict
from typing import Final

from relive.cli.arguments import add_json
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, say, shown
from relive.store.pack import recover


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "path", metavar="PATH", help="the unfinished file, or the file that it was to become"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="where to write (default: what it was to become)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Make a pack of the entries that arrived whole."""
    found = recover(arguments.path, arguments.output, overwrite=arguments.overwrite)
    if arguments.json:
        print_json(asdict(found))
    else:
        print_line(f"{shown(str(found.path))}: {count_text(found.entries, 'entry', 'entries')}")
    if found.lost:
        say(f"warning: {count_text(found.lost, 'entry', 'entries')} lost: {found.reason}")
    return Exit.LOSS if found.lost else Exit.OK


COMMAND: Final = Command(
    "recover",
    "finish what a writer that died has left behind",
    "relive recover runs.a2pack",
    add_arguments,
    run,
)
