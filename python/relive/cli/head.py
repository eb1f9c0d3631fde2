"""`relive head`: the first rows of whatever can be opened."""

import argparse
from typing import Final

from relive._open import open  # noqa: A004 - its public name
from relive.cli.arguments import add_json, positive
from relive.cli.cells import cell, plain
from relive.cli.command import Command, Exit
from relive.cli.episodes import summary as episodes_any
from relive.cli.info import add_uri
from relive.cli.output import print_json, print_line, print_table, shown
from relive.cli.pack.entries import entry_line, print_entries, status_of
from relive.store.pack import PackReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    parser.add_argument(
        "-n", "--rows", metavar="N", type=positive, default=5, help="how many (default: 5)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the first rows: entries of a pack, episodes, or records of each signal."""
    source = open(arguments.path)
    if episodes_any.is_recorded(source):
        well = episodes_any.print_head(source, arguments.rows, as_json=arguments.json)
        return Exit.OK if well else Exit.FAILED
    count = min(arguments.rows, len(source))
    status = Exit.OK
    if isinstance(source, PackReader):
        lines = [entry_line(source, i) for i in range(count)]
        status = status_of(lines)
    else:
        lines = [{"row": i} | row for i, row in enumerate(source.__getitems__(range(count)))]
    if arguments.json:
        print_json([{name: plain(value) for name, value in line.items()} for line in lines])
    elif not lines:
        print_line("no rows")
    elif isinstance(source, PackReader):
        print_entries(lines)
    else:
        print_table(
            [shown(name) for name in lines[0]], [list(map(cell, line.values())) for line in lines]
        )
    return status


COMMAND: Final = Command(
    "head",
    "print the first rows: entries of a pack, episodes, or records of each signal",
    "relive head runs.a2pack -n 3",
    add_arguments,
    run,
)
