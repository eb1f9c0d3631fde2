"""`relive list-remote`: the datasets that are published under a root."""

import argparse
from typing import Any, Final

from relive.cli.command import Exit
from relive.cli.output import print_lines, size_text
from relive.cli.publish.arguments import (
    add_root,
    open_catalog,
    parse_workspace,
    short,
)
from relive.errors import DatasetNotFoundError

SUMMARY: Final = "list the datasets that are published under a root"
EXAMPLE: Final = "relive list-remote lab/ --root s3://bucket/datasets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "workspace",
        metavar="WS/",
        nargs="?",
        help="only the datasets of this workspace (default: all)",
    )
    add_root(parser)
    parser.add_argument(
        "-l",
        "--long",
        action="store_true",
        help="also print the latest version of each, its tables, rows and bytes",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Print the names of the datasets; no manifest is read unless `--long` is given."""
    from relive.publish.version.names import Reference

    catalog = open_catalog(arguments)
    lines: list[dict[str, Any]] = []
    for dataset in catalog.list(parse_workspace(arguments.workspace)):
        line: dict[str, Any] = {"dataset": str(dataset)}
        if arguments.long:
            try:
                version = catalog.resolve(Reference(dataset, None))
            except DatasetNotFoundError:  # it has versions, but none is the latest
                version = None
            manifest = version.manifest if version else None
            digest = version.digest if version else None
            line |= {
                "latest": digest if arguments.json else digest and short(digest),
                "tables": len(manifest.tables) if manifest else None,
                "rows": manifest.rows if manifest else None,
            }
            size = manifest.nbytes if manifest else None
            line |= {"bytes": size} if arguments.json else {"size": size and size_text(size)}
        lines.append(line)
    print_lines(lines, "no datasets", as_json=arguments.json)
    return Exit.OK
