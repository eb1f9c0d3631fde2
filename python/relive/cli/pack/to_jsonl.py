"""`relive pack to-jsonl`: runs or steps as JSON lines."""

import argparse
import sys
from typing import Final

from relive.cli.arguments import add_errors, add_output, add_workers, print_written
from relive.cli.command import Exit
from relive.cli.output import count_text, note
from relive.cli.pack.arguments import add_granularity, add_pack, pack_path
from relive.cli.progress import Progress
from relive.store.pack import PackReader

SUMMARY: Final = "write runs or steps as JSON lines"
EXAMPLE: Final = "relive pack to-jsonl runs.a2pack --output runs.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_output(parser, "FILE", "the file to write; - is stdout")
    add_workers(parser)
    parser.add_argument(
        "--parallel",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use several threads (the default); the output is the same",
    )
    add_granularity(parser, "line")
    parser.add_argument(
        "--steps",
        dest="granularity",
        action="store_const",
        const="steps",
        help="the same as --granularity steps",
    )
    parser.add_argument(
        "--runs-only", action="store_true", help="leave out the lists of boards and moves"
    )
    parser.add_argument(
        "--boards",
        choices=("integers", "hex"),
        default="integers",
        help="write boards as JSON integers (the default), or as text for tools that read numbers "
        "as doubles",
    )
    add_errors(parser, "an entry that is damaged or not a run")


def run(arguments: argparse.Namespace) -> Exit:
    """Write the lines."""
    if arguments.runs_only and arguments.granularity == "steps":
        arguments.parser.error("pass --runs-only or --granularity steps, not both")
    to_stdout = arguments.output == "-"
    if to_stdout and arguments.json:
        arguments.parser.error("--json needs an --output that is a file")
    with PackReader.open(pack_path(arguments)) as reader:
        with Progress("writing", len(reader)) as progress:
            skipped = reader.to_jsonl(
                sys.stdout.buffer if to_stdout else arguments.output,
                arguments.parallel,
                arguments.workers,
                arguments.granularity,
                lists=not arguments.runs_only,
                boards=arguments.boards,
                errors=arguments.errors,
                overwrite=arguments.overwrite,
                progress=progress,
            )
        written = len(reader) - skipped
    if not to_stdout:
        return print_written(arguments, written, "run", skipped)
    if skipped:
        note(f"warning: {count_text(skipped, 'entry')} left out")
    return Exit.LOSS if skipped else Exit.OK
