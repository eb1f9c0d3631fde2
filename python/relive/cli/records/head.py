"""`relive records head`: the first records of a store."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Final

from relive.cli.arguments import add_fields, add_rows, add_store
from relive.cli.command import Exit
from relive.cli.output import print_lines
from relive.model.source import pick_fields
from relive.store.records import RecordStore

SUMMARY: Final = "print the first records of a store"
EXAMPLE: Final = "relive records head arm -n 3 --fields state,caption"

_AT_ONCE: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_store(parser)
    add_rows(parser)
    add_fields(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the first records."""
    with RecordStore.open(arguments.path) as store:
        return print_head(store, arguments.rows, arguments.fields, as_json=arguments.json)


def print_head(
    store: RecordStore, count: int, fields: Sequence[str] | None = None, *, as_json: bool
) -> Exit:
    """Print the first records; a missing value is a dash, or null in JSON."""
    lines = list(records_at(store, range(min(count, len(store))), fields))
    print_lines(lines, "no records", as_json=as_json)
    return Exit.OK


def records_at(
    store: RecordStore, rows: Sequence[int], names: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    """Return records one by one, with their row as the first item; missing values are None."""
    fields = list(pick_fields(store.fields, names))
    for start in range(0, len(rows), _AT_ONCE):
        part = list(rows[start : start + _AT_ONCE])
        batch = store.gather(part, fields)
        missing = {name: store.missing(name, part) for name in fields}
        for i, row in enumerate(part):
            values = {name: None if missing[name][i] else batch[name][i] for name in fields}
            yield {"row": row, **values}
