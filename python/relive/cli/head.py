"""`relive head`: the first rows of whatever can be opened."""

import argparse
from typing import Any, Final

import numpy as np

from relive._open import open  # noqa: A004 - its public name
from relive.cli.arguments import add_json, positive
from relive.cli.command import Command, Exit
from relive.cli.entries import entry_line, print_entries, status_of
from relive.cli.info import add_uri
from relive.cli.output import print_json, print_line, print_table, shown
from relive.store.pack import PackReader

_FEW: Final = 8
"""Arrays with more items are told by their dtype and shape."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    parser.add_argument(
        "-n", "--rows", metavar="N", type=positive, default=5, help="how many (default: 5)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the first rows; of a pack, its first entries."""
    source = open(arguments.path)
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


def plain(value: Any) -> Any:
    """Give a value as JSON has it; bytes in hexadecimal digits."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def cell(value: Any) -> object:
    """Give a value as it is shown in a table."""
    if isinstance(value, np.ndarray) and value.size > _FEW:
        return f"{value.dtype}{list(value.shape)}"
    simple = plain(value)
    return simple if isinstance(simple, int | float) else shown(str(simple))


COMMAND: Final = Command(
    "head",
    "print the first rows, or the first entries of a pack",
    "relive head runs.a2pack -n 3",
    add_arguments,
    run,
)
