"""`relive tag`: gives a version of a dataset a name."""

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

SUMMARY: Final = "give a version of a published dataset a name"
EXAMPLE: Final = "relive tag lab/kitchen@4f0c81aa v1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_dataset(parser)
    parser.add_argument("tag", metavar="TAG", help="letters, digits and `._-`, at most 64")
    parser.add_argument(
        "--force", action="store_true", help="move the tag if another version has it"
    )
    add_lock(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Tag the version; a tag that exists is moved only with `--force`."""
    reference = parse_version(arguments.dataset)
    digest = open_catalog(arguments).tag(reference, arguments.tag, force=arguments.force)
    value = {"dataset": str(reference.id), "tag": arguments.tag, "digest": digest}
    line = f"{reference.id}@{arguments.tag}: {short_reference(reference.id, digest)}"
    print_result(value, line, as_json=arguments.json)
    return Exit.OK
