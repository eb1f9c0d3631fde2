"""`relive records validate`: checks a record store."""

import argparse
from typing import Final

from relive.cli.arguments import add_level, add_store
from relive.cli.command import Exit
from relive.cli.report import check
from relive.store.records import validate

SUMMARY: Final = "check that a record store is complete and undamaged"
EXAMPLE: Final = "relive records validate arm --level full"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_store(parser)
    add_level(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Check the store, even if it cannot be opened."""
    return check([arguments.path], arguments.level, validate, as_json=arguments.json)
