"""`relive pack to-jsonl`: runs or steps as lines of JSON."""

import argparse
import sys
from typing import Final

from relive.cli.arguments import (
    add_json,
    add_output,
    add_pack,
    add_workers,
    pack_path,
    skip_or_raise,
)
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, say, shown
from relive.cli.progress import Progress
from relive.store.pack import PackReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_output(parser, "FILE", "the file to write; - is stdout")
    add_workers(parser)
    parser.add_argument(
        "--parallel",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use several threads (the default); the bytes are the same",
    )
    parser.add_argument(
        "--granularity",
        choices=("runs", "steps"),
        default="runs",
        help="what a line is (default: runs)",
    )
    parser.add_argument(
        "--steps",
        dest="granularity",
        action="store_const",
        const="steps",
        help="the same as --granularity steps",
    )
    parser.add_argument(
        "--runs-only", action="store_true", help="runs without their lists of boards and moves"
    )
    parser.add_argument(
        "--boards",
        choices=("integers", "hex"),
        default="integers",
        help="boards as JSON integers (the default), or as text for tools that use doubles",
    )
    skip_or_raise(parser, "an entry that is no run, or damaged")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Write the lines."""
    if arguments.runs_only and arguments.granularity == "steps":
        arguments.parser.error("--runs-only and steps do not go together")
    to_stdout = arguments.output == "-"
    if to_stdout and arguments.json:
        arguments.parser.error("--json tells about a file, and --output - is none")
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
    if arguments.json:
        print_json({"path": arguments.output, "runs": written, "skipped": skipped})
    elif not to_stdout:
        print_line(f"{shown(arguments.output)}: {count_text(written, 'run')}")
    if skipped:
        say(f"warning: {count_text(skipped, 'entry', 'entries')} left out")
    return Exit.LOSS if skipped else Exit.OK


COMMAND: Final = Command(
    "to-jsonl",
    "write runs or steps as lines of JSON",
    "relive pack to-jsonl runs.a2pack --output runs.jsonl",
    add_arguments,
    run,
)
