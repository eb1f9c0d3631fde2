"""`relive cache stats`: how large the cache is, or how much of a dataset it has."""

import argparse
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import print_json, print_lines, print_pairs, size_text
from relive.cli.publish.arguments import add_root, open_dataset

SUMMARY: Final = "print how large the cache is, or how much of a dataset it has"
EXAMPLE: Final = "relive cache stats lab/kitchen --root s3://bucket/datasets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "dataset", metavar="WS/NAME@VERSION", nargs="?", help="a dataset (default: the whole cache)"
    )
    add_root(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Count files, or ask which pages of a dataset are there."""
    if arguments.dataset is not None:
        found = open_dataset(arguments).cached_bytes()
        lines = [
            {
                "table": name,
                "bytes": nbytes if arguments.json else size_text(nbytes),
                "cached": cached if arguments.json else size_text(cached),
                "share": f"{cached / nbytes:.0%}" if nbytes else "100%",
            }
            for name, (nbytes, cached) in found.items()
        ]
        print_lines(lines, "no tables", as_json=arguments.json)
        return Exit.OK
    from relive.store.cache import open_cache
    from relive.store.cache.manage import cache_stats

    stats = cache_stats(open_cache().disk)
    if arguments.json:
        print_json(stats)
        return Exit.OK
    print_pairs(
        [
            ("directory", stats.directory),
            ("size", size_text(stats.bytes)),
            ("limit", size_text(stats.limit)),
            ("free on disk", size_text(stats.free)),
            ("pages", stats.pages),
            ("objects", stats.objects),
            ("documents", stats.documents),
            ("pinned", ", ".join(stats.pinned) or None),
        ]
    )
    return Exit.OK
