"""`relive replay archive`: makes runs read-only."""

import argparse
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import print_json, print_line
from relive.cli.replay.arguments import add_root, add_whole_ids, whole_ids

SUMMARY: Final = "make runs read-only: they are not continued, compacted or pruned"
EXAMPLE: Final = "relive replay archive runs cartpole-1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_root(parser)
    add_whole_ids(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Archive the runs."""
    from relive.replay.manage.runs import archive, run_ids

    archived = whole_ids(arguments, run_ids(arguments.root))
    for run_id in archived:
        archive(arguments.root, run_id)
    if arguments.json:
        print_json(archived)
    else:
        for run_id in archived:
            print_line(f"{run_id}: archived")
    return Exit.OK
