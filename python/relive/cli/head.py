"""`relive head`: the first rows of anything that relive can open."""

import argparse
from typing import Final

from relive._open import find_kind, open_kind
from relive.cli.arguments import add_rows, add_uri
from relive.cli.command import Exit
from relive.cli.kinds import commands_of

SUMMARY: Final = "print the first rows, pack entries, episodes, or records of each signal"
EXAMPLE: Final = "relive head runs.a2pack -n 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    add_rows(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the first rows, pack entries, episodes, or records of each signal."""
    kind, paths = find_kind(arguments.path)
    source = open_kind(kind, paths)
    return commands_of(kind).print_head(source, arguments.rows, as_json=arguments.json)
