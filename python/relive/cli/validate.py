"""`relive validate`: whether what is at a path is what it promises."""

import argparse
from typing import Final

import numpy as np

from relive._open import find_kind, open  # noqa: A004 - its public name
from relive.cli.arguments import add_json
from relive.cli.command import Command, Exit
from relive.cli.episodes import summary as episodes_any
from relive.cli.episodes import validate as episodes_validate
from relive.cli.info import add_uri
from relive.cli.output import count_text, print_json, print_line, shown
from relive.cli.pack import validate as pack_validate
from relive.cli.progress import Progress
from relive.cli.records import validate as records_validate
from relive.errors import ReliveError
from relive.model.source import Source

_SAMPLE: Final = 1000
_AT_ONCE: Final = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    pack_validate.add_level(parser, "rows")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Check it as its kind is checked: by opening and reading it, where there is no other way."""
    kind, places = find_kind(arguments.path)
    if kind.name == "pack":
        return pack_validate.check(places, arguments.level, as_json=arguments.json)
    if kind.name in episodes_any.KINDS:
        deep = arguments.level == "full"
        return episodes_validate.check(places, deep=deep, as_json=arguments.json)
    if kind.name == "records":
        return records_validate.check(places, arguments.level, as_json=arguments.json)
    read, problem = 0, None
    try:
        read = _read(open(arguments.path), arguments.level)
    except ReliveError as error:
        problem = error
    if arguments.json:
        problems = [{"kind": problem.kind, "message": problem.message}] if problem else []
        print_json(
            {"level": arguments.level, "ok": not problem, "entries": read, "problems": problems}
        )
    elif problem:
        print_line(problem.message)
    else:
        rows = count_text(read, "row")
        print_line(f"{shown(arguments.path)}: ok ({arguments.level}, {rows} read)")
    return Exit.FAILED if problem else Exit.OK


def _read(source: Source, level: str) -> int:
    """Read rows: none, some spread over all, or all of them."""
    wanted = {"index": 0, "sample": min(_SAMPLE, len(source)), "full": len(source)}[level]
    rows = np.linspace(0, len(source) - 1, wanted).astype(np.int64)
    with Progress("reading", wanted) as progress:
        for start in range(0, wanted, _AT_ONCE):
            source.gather(rows[start : start + _AT_ONCE])
            progress(start)
    return wanted


COMMAND: Final = Command(
    "validate",
    "check that what is at a path is whole",
    "relive validate runs.a2pack --level full",
    add_arguments,
    run,
)
