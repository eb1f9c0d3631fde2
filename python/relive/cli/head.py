"""`relive head`: the first rows of anything that relive can open."""

import argparse
from typing import Final

from relive._open import find_kind
from relive.cli.arguments import add_rows, add_uri
from relive.cli.command import Exit
from relive.cli.kinds import (
    add_published,
    add_skip,
    commands_of,
    open_found,
    published_options,
    report_skipped,
)

SUMMARY: Final = "print the first rows, pack entries, episodes, records of each signal, or steps"
EXAMPLE: Final = "relive head runs.a2pack -n 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    add_rows(parser)
    add_skip(parser)
    add_published(parser, table=True)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the first rows, pack entries, episodes, records of each signal, or steps of runs."""
    kind, paths = find_kind(arguments.path)
    options = published_options(arguments, kind, "table")
    source = open_found(arguments, kind, paths)
    show = commands_of(kind).print_head
    status = show(source, arguments.rows, as_json=arguments.json, **options)
    return status or report_skipped(source)
