"""`relive pack merge`: several packs as one."""

import argparse
from typing import Final

from relive.cli.arguments import add_json, add_output, add_pack, pack_paths
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, shown, size_text
from relive.cli.progress import Progress
from relive.store.pack import PackReader, merge


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser, several=True)
    add_output(parser, "FILE", "the pack to write")
    add_layout(parser)
    add_json(parser)


def add_layout(parser: argparse.ArgumentParser) -> None:
    """Add how a pack of copied entries is laid out."""
    parser.add_argument(
        "--align",
        metavar="N",
        type=int,
        default=4096,
        help="begin each entry at a multiple of N bytes, a power of two (default: 4096)",
    )
    parser.add_argument(
        "--steps", action="store_true", help="store a table of all steps too, for training"
    )
    parser.add_argument(
        "--drop-names", action="store_true", help="leave the names of entries out, which may clash"
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Write the pack; stored bytes are copied as they are."""
    inputs = pack_paths(arguments)
    readers = [PackReader.open(each) for each in inputs]
    with Progress("copying", sum(map(len, readers))) as progress:
        merge(
            readers,
            arguments.output,
            progress=progress,
            align=arguments.align,
            steps=arguments.steps,
            names=not arguments.drop_names,
            overwrite=arguments.overwrite,
        )
    tell(arguments.output, as_json=arguments.json)
    return Exit.OK


def tell(output: str, *, as_json: bool) -> None:
    """Say what was written."""
    with PackReader.open(output) as reader:
        entries = len(reader)
        size = sum(file.native.size for file in reader.files)
    if as_json:
        print_json({"path": output, "entries": entries, "file_bytes": size})
    else:
        print_line(f"{shown(output)}: {count_text(entries, 'entry', 'entries')}, {size_text(size)}")


COMMAND: Final = Command(
    "merge",
    "write several packs as one",
    "relive pack merge monday.a2pack tuesday.a2pack --output week.a2pack",
    add_arguments,
    run,
)
