"""`relive cache gc`: makes the cache smaller."""

import argparse
from typing import Final

from relive.cli.arguments import parse_bytes
from relive.cli.command import Exit
from relive.cli.output import note, print_result, size_text

SUMMARY: Final = "delete what was not used for the longest time until the cache is small enough"
EXAMPLE: Final = "relive cache gc --limit 500GB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--limit",
        metavar="SIZE",
        type=parse_bytes,
        help="how large it may be, as in 500GB or 0 (default: RELIVE_CACHE_LIMIT)",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Delete pages of the cache; pinned ones stay."""
    from relive.store.cache import open_cache
    from relive.store.cache.manage import cache_stats, shrink

    disk = open_cache().disk
    limit = disk.settings.limit if arguments.limit is None else arguments.limit
    before = cache_stats(disk).bytes
    after = shrink(disk, limit)
    print_result(
        {"before": before, "after": after, "limit": limit},
        f"{size_text(before)} before, {size_text(after)} now",
        as_json=arguments.json,
    )
    if after > limit:
        note("warning: the rest is pinned, or needed to open datasets without a network")
    return Exit.OK
