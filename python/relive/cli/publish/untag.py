"""`relive untag`: removes a tag."""

import argparse
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import print_result
from relive.cli.publish.arguments import add_dataset, add_lock, open_catalog, parse_id

SUMMARY: Final = "remove a tag of a published dataset; the version stays"
EXAMPLE: Final = "relive untag lab/kitchen v1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_dataset(parser, version=False)
    parser.add_argument("tag", metavar="TAG", help="the tag to remove")
    add_lock(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Remove the tag."""
    dataset = parse_id(arguments.dataset)
    open_catalog(arguments).untag(dataset, arguments.tag)
    value = {"dataset": str(dataset), "tag": arguments.tag}
    print_result(value, f"{dataset}: tag {arguments.tag} removed", as_json=arguments.json)
    return Exit.OK
