"""`relive records rebalance`: a store without what was changed and deleted."""

import argparse
from pathlib import Path
from typing import Final

from relive.cli.arguments import add_json, add_store
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, shown, size_text
from relive.cli.progress import Progress
from relive.cli.records.info import directory_bytes
from relive.store.records import RecordStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_store(parser)
    parser.add_argument(
        "--recompress",
        action="store_true",
        help="compress every value again, with the newest dictionary of its field",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Copy the records to fresh files, and tell what that saved."""
    folder = Path(arguments.path)
    with RecordStore.open(folder, mode="a") as store, _Copying() as copying:
        before = directory_bytes(folder)
        store.rebalance(arguments.recompress, copying.told)
        records = len(store)
    after = directory_bytes(folder)
    if arguments.json:
        print_json(
            {
                "path": arguments.path,
                "records": records,
                "resumed_from": copying.first,
                "file_bytes_before": before,
                "file_bytes": after,
            }
        )
        return Exit.OK
    again = f", {copying.first} of them from before" if copying.first else ""
    print_line(
        f"{shown(arguments.path)}: {count_text(records, 'record')}{again}, "
        f"{size_text(before)} before, {size_text(after)} now"
    )
    return Exit.OK


class _Copying(Progress):
    """Shows how many records are copied, and remembers where that began."""

    def __init__(self) -> None:
        super().__init__("copying", 0)
        self.first = 0
        self._told = False

    def told(self, done: int, total: int) -> None:
        """Show that `done` records are copied."""
        if not self._told:
            self.first, self._told = done, True
        self.out_of(done, total)


COMMAND: Final = Command(
    "rebalance",
    "copy the records of a store to fresh files, without what is no longer in use",
    "relive records rebalance arm --recompress",
    add_arguments,
    run,
)
