"""`relive reindex`: rebuilds the lists of datasets and versions of a root."""

import argparse
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import count_text, print_json, print_line
from relive.cli.publish.arguments import add_lock, add_root, open_catalog, parse_id, parse_workspace

SUMMARY: Final = "rebuild the lists of published datasets and versions from what is stored"
EXAMPLE: Final = "relive reindex lab/ --root s3://bucket/datasets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "which",
        metavar="WHICH",
        nargs="?",
        help="a dataset, WS/NAME, or a workspace, WS/ (default: the whole root)",
    )
    add_root(parser)
    add_lock(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """List the objects of the root, and write the lists anew."""
    catalog = open_catalog(arguments)
    which = arguments.which
    is_dataset = which is not None and "/" in which.removesuffix("/")
    found = catalog.reindex(parse_id(which) if is_dataset else parse_workspace(which))
    versions = {str(dataset): len(catalog.versions(dataset)) for dataset in found}
    if arguments.json:
        lines = [{"dataset": name, "versions": count} for name, count in versions.items()]
        print_json(lines)
        return Exit.OK
    for name, count in versions.items():
        print_line(f"{name}: {count_text(count, 'version')}")
    if not versions:
        print_line("no datasets")
    return Exit.OK
