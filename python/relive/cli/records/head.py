"""`relive records head`: the first records of a store."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from relive.cli.arguments import add_fields, add_json, add_store, positive
from relive.cli.cells import cell, plain
from relive.cli.command import Command, Exit
from relive.cli.output import print_json, print_line, print_table, shown
from relive.model.source import pick_fields
from relive.store.records import RecordStore

_AT_ONCE: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_store(parser)
    parser.add_argument(
        "-n", "--rows", metavar="N", type=positive, default=5, help="how many (default: 5)"
    )
    add_fields(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the first records; a value that is missing is a dash, or null."""
    with RecordStore.open(arguments.path) as store:
        rows = np.arange(min(arguments.rows, len(store)), dtype=np.int64)
        lines = list(records_at(store, rows, arguments.fields))
    if arguments.json:
        print_json([{name: plain(value) for name, value in line.items()} for line in lines])
    elif not lines:
        print_line("no records")
    else:
        print_table(
            [shown(name) for name in lines[0]], [list(map(_cell, each.values())) for each in lines]
        )
    return Exit.OK


def records_at(
    store: RecordStore, rows: np.ndarray[Any, Any], names: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    """Give records one by one, each with its row before it; None where a value is missing."""
    fields = list(pick_fields(store.fields, names))
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        batch = store.gather(part, fields)
        missing = {name: store.missing(name, part) for name in fields}
        for place, row in enumerate(part.tolist()):
            values = {name: None if missing[name][place] else batch[name][place] for name in fields}
            yield {"row": row, **values}


def _cell(value: Any) -> object:
    return None if value is None else cell(value)


COMMAND: Final = Command(
    "head",
    "print the first records of a store",
    "relive records head arm -n 3 --fields state,caption",
    add_arguments,
    run,
)
