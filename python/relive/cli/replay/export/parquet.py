"""`relive replay export parquet`: the steps of runs as a Parquet file."""

import argparse
from typing import Final

from relive.cli.arguments import add_output, parse_names, print_written
from relive.cli.command import Exit
from relive.cli.progress import Progress
from relive.cli.replay.arguments import add_run, find_run

SUMMARY: Final = "write the steps of a run, or of all runs, as a Parquet file"
EXAMPLE: Final = "relive replay export parquet runs --output steps.parquet --arrays observations"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_run(parser, "all runs")
    add_output(parser, "FILE", "the .parquet file to write")
    parser.add_argument(
        "--arrays",
        metavar="LIST",
        type=parse_names,
        default=[],
        help="add arrays as columns, as in observations,extras.value",
    )
    parser.add_argument(
        "--as",
        dest="form",
        choices=("list", "binary"),
        default="list",
        help="write arrays as lists of a fixed size (list, the default) or as their bytes (binary)",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Write a row for each step."""
    from relive.replay.export import export_parquet

    root, run_id = arguments.path, None
    if arguments.run_id is not None:
        root, run_id = find_run(arguments)
    with Progress("writing") as progress:
        count = export_parquet(
            root,
            arguments.output,
            run_id=run_id,
            arrays=arguments.arrays,
            form=arguments.form,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    return print_written(arguments, count, "step")
