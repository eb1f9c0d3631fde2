"""`relive head`: the first rows of anything that relive can open."""

import argparse
from typing import Final

from relive._open import find_kind
from relive.cli.arguments import add_rows, add_uri
from relive.cli.command import Exit
from relive.cli.kinds import add_skip, commands_of, open_found, report_skipped

SUMMARY: Final = "print the first rows, pack entries, episodes, records of each signal, or steps"
EXAMPLE: Final = "relive head runs.a2pack -n 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    add_rows(parser)
    add_skip(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the first rows, pack entries, episodes, records of each signal, or steps of runs."""
    kind, paths = find_kind(arguments.path)
    source = open_found(arguments, kind, paths)
    status = commands_of(kind).print_head(source, arguments.rows, as_json=arguments.json)
    return status or report_skipped(source)
