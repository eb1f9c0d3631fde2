"""`relive gc`: deletes the blobs of a root that no version names."""

import argparse
from dataclasses import asdict
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_json, print_line, size_text
from relive.cli.progress import Progress
from relive.cli.publish.arguments import add_root, parse_age

SUMMARY: Final = "delete the data of a root that no version of any dataset names"
EXAMPLE: Final = "relive gc --root s3://bucket/datasets --grace 7d --yes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_root(parser)
    parser.add_argument(
        "--grace",
        metavar="AGE",
        type=parse_age,
        default=parse_age("24h"),
        help="keep blobs that were written less than this ago, as in 7d or 24h (default: 24h)",
    )
    parser.add_argument(
        "--wait",
        metavar="AGE",
        type=parse_age,
        help="how long to wait for publishers that began before, and for another gc (default: "
        "until they end; those that were killed end after five minutes)",
    )
    parser.add_argument(
        "-y", "--yes", action="store_true", help="delete (default: only print what would be)"
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Find what no version names, and delete it with `--yes`."""
    from relive.publish import collect_garbage

    with Progress("deleting blobs") as progress:
        report = collect_garbage(
            arguments.root,
            grace_s=arguments.grace,
            dry_run=not arguments.yes,
            wait_s=arguments.wait,
            progress=progress,
            notify=note,
        )
    if arguments.json:
        print_json({**asdict(report), "dry_run": not arguments.yes})
    elif arguments.yes:
        print_line(f"{_amount(report.deleted, report.deleted_bytes)} deleted")
    else:
        print_line(f"{_amount(report.garbage, report.garbage_bytes)} can be deleted")
    if report.young and not arguments.json:
        note(
            f"{count_text(report.young, 'blob')} that no version names: kept, younger than --grace"
        )
    if report.garbage and not arguments.yes:
        note("nothing was deleted; pass --yes to delete")
    return Exit.OK


def _amount(blobs: int, nbytes: int) -> str:
    return f"{count_text(blobs, 'blob')}, {size_text(nbytes)}"
