"""`relive pack subset`: some entries of a pack as a pack of their own."""

import argparse
import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from relive.cli.arguments import add_output
from relive.cli.command import Exit
from relive.cli.pack.arguments import add_entries, add_layout, add_pack, chosen_entries, pack_path
from relive.cli.pack.merge import add_drop_names, write_copy
from relive.store.pack import PackReader
from relive.store.pack.stats import COLUMNS

SUMMARY: Final = "write some entries of a pack as a pack of their own"
EXAMPLE: Final = (
    "relive pack subset runs.a2pack --output long.a2pack --where steps=1000: engine=hand"
)

_Bounds: TypeAlias = tuple[int | None, int | None]

_RANGE: Final = re.compile(r"(\d{0,19}):(\d{0,19})|(\d{1,19})")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_output(parser, "FILE", "the pack to write")
    choice = parser.add_mutually_exclusive_group(required=True)
    add_entries(parser, choice)
    choice.add_argument(
        "--where",
        metavar="CONDITION",
        nargs="+",
        type=_condition,
        help="runs that meet all conditions: steps=FROM:TO, highest_tile=FROM:TO, "
        "max_score=FROM:TO (TO excluded, either end may be left out), engine=NAME (repeat it for "
        "any of several)",
    )
    add_layout(parser)
    add_drop_names(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Write the pack; the stored bytes are copied unchanged."""
    with PackReader.open(pack_path(arguments)) as reader:
        if arguments.where is None:
            view = reader[list(chosen_entries(reader, arguments))]
        else:
            view = reader.where(**_conditions(arguments.where, arguments.parser))
        return write_copy([view], arguments)


def _condition(text: str) -> tuple[str, str | _Bounds]:
    name, equals, value = text.partition("=")
    if name == "engine" and equals:
        return name, value
    found = _RANGE.fullmatch(value)
    if name not in COLUMNS or found is None or value == ":":
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a valid condition: use steps=100:2000, highest_tile=1024: "
            "or engine=NAME"
        )
    if found[3]:
        return name, (int(found[3]), int(found[3]) + 1)
    return name, (int(found[1]) if found[1] else None, int(found[2]) if found[2] else None)


def _conditions(
    conditions: Iterable[tuple[str, str | _Bounds]], parser: argparse.ArgumentParser
) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for name, value in conditions:
        if name == "engine":
            wanted.setdefault(name, []).append(value)
        elif name in wanted:
            parser.error(f"--where has two conditions for {name}")
        else:
            wanted[name] = value
    return wanted
