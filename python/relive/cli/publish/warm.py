"""`relive warm`: fetches a published dataset into the cache."""

import argparse
from collections.abc import Sequence
from typing import Final

from relive.cli.arguments import parse_bytes, parse_names, parse_slice
from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_result, size_text
from relive.cli.progress import Progress
from relive.cli.publish.arguments import add_dataset, open_dataset

SUMMARY: Final = "fetch the tables of a published dataset into the cache"
EXAMPLE: Final = "relive warm lab/kitchen --tables main --shards 0:50 --max-bytes 200GB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_dataset(parser)
    parser.add_argument(
        "--tables", metavar="LIST", type=parse_names, help="only these tables, as in main,labels"
    )
    parser.add_argument(
        "--shards",
        metavar="SLICE",
        type=_shards,
        help="only these shards of each table, as in 0:50, or one, as in 7",
    )
    parser.add_argument(
        "--max-bytes",
        metavar="SIZE",
        type=parse_bytes,
        help="only the first shards that are together at most as large, as in 200GB",
    )
    parser.add_argument("--pin", action="store_true", help="never evict them")


def run(arguments: argparse.Namespace) -> Exit:
    """Fetch what the cache does not have; other processes that do the same share the work."""
    dataset = open_dataset(arguments)
    with Progress("fetching") as progress:
        report = dataset.warm(
            arguments.tables,
            arguments.shards,
            arguments.max_bytes,
            pin=arguments.pin,
            progress=progress,
        )
    print_result(
        report,
        f"{count_text(report.shards, 'shard')}, {size_text(report.bytes)}: "
        f"{size_text(report.fetched_bytes)} fetched",
        as_json=arguments.json,
    )
    if not report.is_complete:
        note(
            "warning: not all of it fits in the cache: RELIVE_CACHE_LIMIT or the disk is too small"
        )
    return Exit.OK if report.is_complete else Exit.LOSS


def _shards(text: str) -> slice | Sequence[int]:
    """Return a slice, which may reach beyond the last shard, or one number, which may not."""
    found = parse_slice(text)
    return found if ":" in text else [found.start]
