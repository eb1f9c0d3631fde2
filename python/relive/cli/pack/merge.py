"""`relive pack merge`: several packs as one."""

import argparse
from typing import Final

from relive.cli.arguments import add_output, print_written
from relive.cli.command import Exit
from relive.cli.pack.arguments import add_layout, add_pack, pack_paths
from relive.cli.progress import Progress
from relive.store.pack import PackReader, merge

SUMMARY: Final = "write several packs as one"
EXAMPLE: Final = "relive pack merge monday.a2pack tuesday.a2pack --output week.a2pack"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser, several=True)
    add_output(parser, "FILE", "the pack to write")
    add_layout(parser)
    add_drop_names(parser)


def add_drop_names(parser: argparse.ArgumentParser) -> None:
    """Add whether to drop the names of entries."""
    parser.add_argument(
        "--drop-names", action="store_true", help="drop the names of entries, which may clash"
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Write the pack; the stored bytes are copied unchanged."""
    readers = [PackReader.open(path) for path in pack_paths(arguments)]
    return write_copy(readers, arguments)


def write_copy(readers: list[PackReader], arguments: argparse.Namespace) -> Exit:
    """Copy the entries of readers to the pack `--output`."""
    entries = sum(map(len, readers))
    with Progress("copying", entries) as progress:
        merge(
            readers,
            arguments.output,
            progress=progress,
            align=arguments.align,
            steps=arguments.steps,
            names=not arguments.drop_names,
            overwrite=arguments.overwrite,
        )
    return print_written(arguments, entries, "entry")
