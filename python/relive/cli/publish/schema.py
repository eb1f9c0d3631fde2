"""`relive schema`: the columns of the tables of a published dataset."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from relive.cli.command import Exit
from relive.cli.output import count_text, print_json, print_line, print_table
from relive.cli.publish.arguments import add_dataset, add_table, open_dataset

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY: Final = "print the columns of the tables of a published dataset"
EXAMPLE: Final = "relive schema lab/kitchen@v1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_dataset(parser)
    add_table(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the name, the type and the nullability of each column; no data is read."""
    dataset = open_dataset(arguments)
    names = [arguments.table] if arguments.table is not None else list(dataset.tables)
    tables = {name: dataset.table(name) for name in names}
    if arguments.json:
        from relive.publish.version.schema import schema_to_json

        print_json({name: schema_to_json(table.schema()) for name, table in tables.items()})
        return Exit.OK
    for number, (name, table) in enumerate(tables.items()):
        if number:
            print_line()
        print_line(f"{name}: {count_text(table.count(), 'row')}")
        print_table(("column", "type", "nullable"), column_rows(table.schema()))
    return Exit.OK


def column_rows(schema: "pa.Schema") -> list[tuple[Any, ...]]:
    """Return the name, the type and the nullability of each column."""
    return [(field.name, str(field.type), "yes" if field.nullable else "no") for field in schema]
