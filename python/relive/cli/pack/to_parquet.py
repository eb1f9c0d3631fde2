"""`relive pack to-parquet`: runs or steps as a Parquet table."""

import argparse
from pathlib import Path
from typing import Final

from relive.cli.arguments import add_json, add_output, add_pack, pack_path, skip_or_raise
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, say, shown, size_text
from relive.cli.progress import Progress
from relive.store.pack import PackReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_output(parser, "FILE", "the file to write")
    parser.add_argument(
        "--granularity",
        choices=("runs", "steps"),
        default="runs",
        help="what a row is (default: runs)",
    )
    skip_or_raise(parser, "an entry that is damaged")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Write the table."""
    with (
        PackReader.open(pack_path(arguments)) as reader,
        Progress("writing", len(reader)) as progress,
    ):
        skipped = reader.to_parquet(
            arguments.output,
            arguments.granularity,
            errors=arguments.errors,
            overwrite=arguments.overwrite,
            progress=progress,
        )
        written = len(reader) - skipped
    size = Path(arguments.output).stat().st_size
    if arguments.json:
        told = {"path": arguments.output, "runs": written, "skipped": skipped, "file_bytes": size}
        print_json(told)
    else:
        print_line(f"{shown(arguments.output)}: {count_text(written, 'run')}, {size_text(size)}")
    if skipped:
        say(f"warning: {count_text(skipped, 'entry', 'entries')} left out")
    return Exit.LOSS if skipped else Exit.OK


COMMAND: Final = Command(
    "to-parquet",
    "write runs or steps as a Parquet table",
    "relive pack to-parquet runs.a2pack --output steps.parquet --granularity steps",
    add_arguments,
    run,
)
