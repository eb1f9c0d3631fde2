"""`relive replay query`: the result of an SQL statement over the steps and episodes."""

import argparse
import csv
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from relive.cli.arguments import add_overwrite, print_written
from relive.cli.command import Exit
from relive.cli.output import plain, print_json, print_line, print_table
from relive.cli.replay.arguments import add_root
from relive.errors import InvalidError
from relive.store.atomic import whole_file
from relive.view.scale import cut

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY: Final = "print the result of an SQL query over the steps and episodes of all runs"
EXAMPLE: Final = "relive replay query runs SELECT run_id, steps FROM runs"

_LONGEST: Final = 60
_SUFFIXES: Final = (".csv", ".parquet")
_READS: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:select|with|values|explain)\b", re.IGNORECASE | re.DOTALL
)
"""How a statement begins that changes nothing in a database that is opened read-only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_root(parser)
    parser.add_argument(
        "sql",
        metavar="SQL",
        nargs="+",
        help="one SELECT of SQLite over the tables runs, episodes and steps, in quotes if it has "
        "characters such as *; nothing can be changed",
    )
    parser.add_argument("--csv", action="store_true", help="print the result as CSV")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=_file,
        help="write a .parquet or .csv file (default: print a table)",
    )
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Run the query, and print or write its result."""
    from relive.replay.scalars import TelemetryStore

    if arguments.csv and (arguments.json or arguments.output is not None):
        arguments.parser.error("--csv prints the result: pass it without --json and --output")
    sql = " ".join(arguments.sql)
    if _READS.match(sql) is None:  # ATTACH and VACUUM write other files
        raise InvalidError(
            f"the statement does not only read: {cut(sql, _LONGEST)}",
            hint="it must begin with SELECT, WITH, VALUES or EXPLAIN",
        )
    with TelemetryStore(arguments.root, read_only=True) as store:
        try:
            table = store.query(sql)
        except InvalidError as error:
            raise InvalidError(error.message, hint=_hint(error, arguments.sql)) from error
    if arguments.output is not None:
        _write(table, arguments.output, overwrite=arguments.overwrite)
        return print_written(arguments, table.num_rows, "row")
    if arguments.csv:
        _write_csv(table, sys.stdout)
    elif arguments.json:
        _check_names(table)
        print_json(table.to_pylist())
    elif table.num_rows:
        print_table(table.column_names, list(_rows(table)))
    else:
        print_line("no rows")
    return Exit.OK


def _hint(error: InvalidError, words: "list[str]") -> str | None:
    """Return what to do about a statement that SQLite does not accept."""
    if "no such table" in error.message or "no such column" in error.message:
        return "the tables are runs, episodes and steps; SELECT * shows their columns"
    if len(words) > 1 and "syntax error" in error.message:
        return "put the statement in quotes: the shell may have replaced a part of it, such as *"
    return error.hint


def _write(table: "pa.Table", path: Path, *, overwrite: bool) -> None:
    from pyarrow import parquet as pq

    if path.suffix.lower() == ".parquet":
        _check_names(table)
        with whole_file(path, overwrite=overwrite) as file:
            pq.write_table(table, file)
        return
    with whole_file(path, overwrite=overwrite) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        _write_csv(table, text)
        text.detach()


def _write_csv(table: "pa.Table", file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in _rows(table):
        writer.writerow([plain(value) for value in row])


def _rows(table: "pa.Table") -> "zip[tuple[Any, ...]]":
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _check_names(table: "pa.Table") -> None:
    names = table.column_names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidError(
            f"two columns of the result have the name {twice!r}", hint="name them with AS"
        )


def _file(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in _SUFFIXES:
        raise argparse.ArgumentTypeError(f"`{text}` must end in {' or '.join(_SUFFIXES)}")
    return path
