"""`relive records validate`: whether a record store is what it promises."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from relive.cli.arguments import add_json, add_store
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, shown
from relive.cli.pack.validate import add_level
from relive.cli.progress import Progress
from relive.store.records import Report, validate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_store(parser)
    add_level(parser, "records")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Check the store, also one that cannot be opened."""
    return check([arguments.path], arguments.level, as_json=arguments.json)


def check(paths: Sequence[str], level: str, *, as_json: bool) -> Exit:
    """Check stores one after the other, and print what is wrong."""
    reports = [(path, _validate(path, level)) for path in paths]
    ok = all(report.ok for _, report in reports)
    if as_json:
        problems = [
            {"path": path, **asdict(problem)} for path, each in reports for problem in each.problems
        ]
        read = sum(report.records for _, report in reports)
        print_json({"level": level, "ok": ok, "records": read, "problems": problems})
        return Exit.OK if ok else Exit.FAILED
    for path, report in reports:
        for problem in report.problems:
            print_line(problem.message)  # which says the field and the row itself
        records = count_text(report.records, "record")
        found = count_text(len(report.problems), "problem") if report.problems else "ok"
        print_line(f"{shown(path)}: {found} ({level}, {records} read)")
    return Exit.OK if ok else Exit.FAILED


def _validate(path: str, level: str) -> Report:
    with Progress("check", 0) as bar:
        return validate(path, level, progress=bar.out_of)


COMMAND: Final = Command(
    "validate",
    "check that a record store is whole",
    "relive records validate arm --level full",
    add_arguments,
    run,
)
