"""`relive clone`: publishes a version under another name."""

import argparse
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import print_result
from relive.cli.publish.arguments import (
    add_dataset,
    add_lock,
    open_catalog,
    parse_id,
    parse_version,
    short_reference,
)

SUMMARY: Final = "publish a version of a dataset under another name; no data is copied"
EXAMPLE: Final = "relive clone lab/kitchen@v1 me/kitchen"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_dataset(parser)
    parser.add_argument("target", metavar="WS/NAME", help="the dataset to publish it as")
    parser.add_argument("--tag", metavar="TAG", help="give the version this name there")
    parser.add_argument("-m", "--message", metavar="TEXT", help="why, for the log")
    add_lock(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Write a manifest and a pointer; the version keeps its digest."""
    source, target = parse_version(arguments.dataset), parse_id(arguments.target)
    digest = open_catalog(arguments).clone(
        source, target, tag=arguments.tag, message=arguments.message
    )
    value = {"source": str(source.id), "dataset": str(target), "digest": digest}
    line = f"{short_reference(target, digest)}: the same as {short_reference(source.id, digest)}"
    print_result(value, line, as_json=arguments.json)
    return Exit.OK
