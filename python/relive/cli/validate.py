"""`relive validate`: checks anything that relive can open."""

import argparse
from functools import partial
from typing import Final

from relive._open import find_kind
from relive.cli.arguments import add_level, add_uri
from relive.cli.command import Exit
from relive.cli.kinds import add_published, commands_of, published_options
from relive.cli.report import check

SUMMARY: Final = "check that stored data is complete and undamaged"
EXAMPLE: Final = "relive validate runs.a2pack --level full"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    add_level(parser)
    add_published(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Check each path as its kind is checked."""
    kind, paths = find_kind(arguments.path)
    options = published_options(arguments, kind, "root")
    validate = partial(commands_of(kind).validate, **options)
    return check(paths, arguments.level, validate, as_json=arguments.json)
