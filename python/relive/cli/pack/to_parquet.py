"""`relive pack to-parquet`: runs or steps as a Parquet file."""

import argparse
from typing import Final

from relive.cli.arguments import add_errors, add_output, print_written
from relive.cli.command import Exit
from relive.cli.pack.arguments import add_granularity, add_pack, pack_path
from relive.cli.progress import Progress
from relive.store.pack import PackReader

SUMMARY: Final = "write runs or steps as a Parquet file"
EXAMPLE: Final = "relive pack to-parquet runs.a2pack --output steps.parquet --granularity steps"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_output(parser, "FILE", "the file to write")
    add_granularity(parser, "row")
    add_errors(parser, "a damaged entry")


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
    return print_written(arguments, written, "run", skipped)
