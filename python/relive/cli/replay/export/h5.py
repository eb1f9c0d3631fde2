"""`relive replay export h5`: the arrays of a run for any HDF5 tool."""

import argparse
from typing import Final

from relive.cli.arguments import add_output, print_written
from relive.cli.command import Exit
from relive.cli.progress import Progress
from relive.cli.replay.arguments import add_run, find_run

SUMMARY: Final = "write the arrays of a run as an HDF5 file that needs no filter plugin"
EXAMPLE: Final = "relive replay export h5 runs cartpole-1 --output cartpole.h5 --plain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_run(parser)
    add_output(parser, "FILE", "the .h5 file to write")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="write /frames, /observations, /actions, /rewards, /dones and /episodes, with whole "
        "observations (default: the datasets of the file of the run)",
    )
    parser.add_argument(
        "--filter",
        choices=("gzip", "none"),
        default="gzip",
        help="the filter of HDF5 (default: gzip)",
    )
    parser.add_argument(
        "--level",
        metavar="N",
        type=int,
        choices=range(1, 10),
        default=4,
        help="the level of gzip, from 1 to 9 (default: 4)",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Copy the arrays, compressed anew."""
    from relive.replay.export import export_h5

    root, run_id = find_run(arguments)
    with Progress("writing") as progress:
        count = export_h5(
            root,
            run_id,
            arguments.output,
            plain=arguments.plain,
            filter=arguments.filter,
            level=arguments.level,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    return print_written(arguments, count, "step")
