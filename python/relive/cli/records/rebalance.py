"""`relive records rebalance`: rewrites a store without changed and deleted values."""

import argparse
from pathlib import Path
from typing import Final

from relive.cli.arguments import add_store
from relive.cli.command import Exit
from relive.cli.output import count_text, print_result, size_text
from relive.cli.progress import Progress
from relive.cli.records.info import directory_bytes
from relive.store.records import RecordStore

SUMMARY: Final = "copy the records of a store to new files, without values that are no longer used"
EXAMPLE: Final = "relive records rebalance arm --recompress"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_store(parser)
    parser.add_argument(
        "--recompress",
        action="store_true",
        help="compress every value again, with the newest dictionary of its field",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Copy the records to new files, and print how much space that saved."""
    folder = Path(arguments.path)
    with RecordStore.open(folder, mode="a") as store, Progress("copying") as progress:
        before = directory_bytes(folder)
        store.rebalance(arguments.recompress, progress)
        records = len(store)
    after = directory_bytes(folder)
    first = progress.first or 0
    resumed = f", {first} of them from before" if first else ""
    print_result(
        {
            "path": arguments.path,
            "records": records,
            "resumed_from": first,
            "file_bytes_before": before,
            "file_bytes": after,
        },
        f"{arguments.path}: {count_text(records, 'record')}{resumed}, "
        f"{size_text(before)} before, {size_text(after)} now",
        as_json=arguments.json,
    )
    return Exit.OK
