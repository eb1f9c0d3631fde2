"""Arguments of the commands about packs: which pack, which entries, how to write one."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from relive.cli.arguments import expand_slices, parse_names, parse_spans

if TYPE_CHECKING:
    from relive.store.pack import PackReader


def add_pack(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the pack to read, as `PATH` or `--packfile PATH`."""
    what = "a pack: a path, a URI or a quoted glob pattern"
    if several:
        parser.add_argument("paths", metavar="PATH", nargs="*", help=f"{what}; in this order")
        parser.add_argument(
            "--packfile", metavar="PATH", action="append", default=[], help="the same"
        )
    else:
        parser.add_argument("path", metavar="PATH", nargs="?", help=what)
        parser.add_argument("--packfile", metavar="PATH", help="the same")


def pack_path(arguments: argparse.Namespace) -> str:
    """Return the one pack that was named."""
    given = [path for path in (arguments.path, arguments.packfile) if path is not None]
    if len(given) != 1:
        arguments.parser.error("name exactly one pack: PATH, or --packfile PATH")
    return str(given[0])


def pack_paths(arguments: argparse.Namespace) -> list[str]:
    """Return the packs that were named, at least one."""
    given = [*arguments.paths, *arguments.packfile]
    if not given:
        arguments.parser.error("name at least one pack: PATH ..., or --packfile PATH")
    return given


def add_entries(parser: argparse.ArgumentParser, group: "argparse._ActionsContainer") -> None:
    """Add to `group` the options that choose entries; see `chosen_entries`."""
    group.add_argument(
        "--indices",
        metavar="LIST",
        type=parse_spans,
        help="positions and spans of positions, as in 0,5,10-20",
    )
    group.add_argument("--names", metavar="LIST", type=parse_names, help="names, as in a,b")
    group.add_argument(
        "--name",
        metavar="NAME",
        action="append",
        help="one name, which may contain commas; may be repeated",
    )
    parser.set_defaults(indices=None, names=None, name=None)


def chosen_entries(reader: "PackReader", arguments: argparse.Namespace) -> Sequence[int]:
    """Return the chosen entries in the order given, each once; all by default."""
    if arguments.indices is not None:
        return list(dict.fromkeys(expand_slices(arguments.indices, len(reader), "entry")))
    names = arguments.name if arguments.names is None else arguments.names
    if names is not None:
        return list(dict.fromkeys(reader.find(name) for name in names))
    return range(len(reader))


def add_layout(parser: argparse.ArgumentParser) -> None:
    """Add how to lay out the pack to write."""
    parser.add_argument(
        "--align",
        metavar="N",
        type=int,
        default=4096,
        help="start each entry at a multiple of N bytes, a power of two (default: 4096)",
    )
    parser.add_argument(
        "--steps", action="store_true", help="also store a table of all steps, for training"
    )


def add_granularity(parser: argparse.ArgumentParser, what: str) -> None:
    """Add whether to write runs or steps."""
    parser.add_argument(
        "--granularity",
        choices=("runs", "steps"),
        default="runs",
        help=f"write one {what} per run or per step (default: runs)",
    )
