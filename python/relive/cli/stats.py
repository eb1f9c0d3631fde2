"""`relive stats`: statistics of anything that relive can open."""

import argparse
from typing import Final

from relive._open import find_kind, open_kind
from relive.cli.arguments import add_uri
from relive.cli.command import Exit
from relive.cli.kinds import commands_of

SUMMARY: Final = "print statistics: the number of rows, the range and mean of their values"
EXAMPLE: Final = "relive stats states.npy"

add_arguments = add_uri


def run(arguments: argparse.Namespace) -> Exit:
    """Print statistics of the runs, episodes or signals, or of every numeric field."""
    kind, paths = find_kind(arguments.path)
    commands_of(kind).print_stats(open_kind(kind, paths), as_json=arguments.json)
    return Exit.OK
