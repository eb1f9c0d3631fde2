"""`relive pack validate`: whether a pack is what it promises."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from relive.cli.arguments import add_json, add_pack, pack_path
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, shown
from relive.cli.progress import Progress
from relive.model.report import Level, Problem, Report
from relive.store.pack import validate
from relive.store.paths import expand


def add_level(parser: argparse.ArgumentParser, what: str) -> None:
    """Add how much is checked."""
    parser.add_argument(
        "--level",
        choices=("index", "sample", "full"),
        default="sample",
        help=f"check the index, a sample of the {what} too (the default), or every byte",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_level(parser, "entries")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Check the pack, or all packs that a pattern matches."""
    return check(expand(pack_path(arguments)), arguments.level, as_json=arguments.json)


def check(paths: Sequence[str], level: Level, *, as_json: bool) -> Exit:
    """Check packs one after the other, and print what is wrong."""
    reports = [(path, _validate(path, level)) for path in paths]
    ok = all(report.ok for _, report in reports)
    if as_json:
        print_json(
            {
                "level": level,
                "ok": ok,
                "entries": sum(report.checked["entries"] for _, report in reports),
                "problems": [_as_dict(problem) for _, each in reports for problem in each.problems],
            }
        )
        return Exit.OK if ok else Exit.FAILED
    for path, report in reports:
        for problem in report.problems:
            print_line(_words(problem))
        entries = count_text(report.checked["entries"], "entry", "entries")
        found = count_text(len(report.problems), "problem") if report.problems else "ok"
        print_line(f"{shown(path)}: {found} ({level}, {entries} read)")
    return Exit.OK if ok else Exit.FAILED


def _validate(path: str, level: Level) -> Report:
    with Progress("check", 0) as bar:
        return validate(path, level, progress=bar.out_of)


def _as_dict(problem: Problem) -> dict[str, object]:
    found = asdict(problem)
    del found["field"]
    return {"path": found.pop("path"), "entry": found.pop("row"), **found}


def _words(problem: Problem) -> str:
    places = [
        f"{word} {number}"
        for word, number in (("entry", problem.row), ("at offset", problem.offset))
        if number is not None
    ]
    named = f"`{problem.path}`" in problem.message  # as an error that opening it gave
    before = [] if named else [f"`{shown(problem.path)}`"]
    return ": ".join([*before, *([" ".join(places)] if places else []), problem.message])


COMMAND: Final = Command(
    "validate",
    "check that a pack is whole",
    "relive pack validate runs.a2pack --level full",
    add_arguments,
    run,
)
