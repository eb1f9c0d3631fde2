"""`relive rollback`: makes an earlier version the latest one again."""

import argparse
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import print_result
from relive.cli.publish.arguments import (
    add_dataset,
    add_lock,
    open_catalog,
    parse_version,
    short_reference,
)

SUMMARY: Final = "make an earlier version of a published dataset the latest one"
EXAMPLE: Final = "relive rollback lab/kitchen@v1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_dataset(parser)
    add_lock(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Move `latest` to the version that was named, else to the one before."""
    reference = parse_version(arguments.dataset)
    digest = open_catalog(arguments).rollback(reference.id, reference.version)
    value = {"dataset": str(reference.id), "latest": digest}
    line = f"{reference.id}: latest is {short_reference(reference.id, digest)}"
    print_result(value, line, as_json=arguments.json)
    return Exit.OK
