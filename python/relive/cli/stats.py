"""`relive stats`: statistics of anything that relive can open."""

import argparse
from typing import Final

from relive._open import find_kind
from relive.cli.arguments import add_uri
from relive.cli.command import Exit
from relive.cli.kinds import (
    add_published,
    add_skip,
    commands_of,
    open_found,
    published_options,
    report_skipped,
)

SUMMARY: Final = "print statistics: the number of rows, the range and mean of their values"
EXAMPLE: Final = "relive stats states.npy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    add_skip(parser)
    add_published(parser, table=True)


def run(arguments: argparse.Namespace) -> Exit:
    """Print statistics of the runs, episodes or signals, or of every numeric field."""
    kind, paths = find_kind(arguments.path)
    options = published_options(arguments, kind, "table")
    source = open_found(arguments, kind, paths)
    commands_of(kind).print_stats(source, as_json=arguments.json, **options)
    return report_skipped(source)
