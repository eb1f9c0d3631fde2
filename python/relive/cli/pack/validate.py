"""`relive pack validate`: checks packs."""

import argparse
from typing import Final

from relive.cli.arguments import add_level
from relive.cli.command import Exit
from relive.cli.pack.arguments import add_pack, pack_path
from relive.cli.report import check
from relive.store.pack import validate
from relive.store.paths import expand

SUMMARY: Final = "check that a pack is complete and undamaged"
EXAMPLE: Final = "relive pack validate runs.a2pack --level full"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_level(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Check the pack, or each pack that a pattern matches."""
    paths = expand(pack_path(arguments))
    return check(paths, arguments.level, validate, as_json=arguments.json)
