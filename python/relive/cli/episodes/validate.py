"""`relive episodes validate`: whether episodes are what was recorded."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from relive.cli.arguments import add_json
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, say, shown
from relive.cli.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "path", metavar="PATH", help="the root of a dataset, an episode, or a signal's file"
    )
    parser.add_argument(
        "--deep", action="store_true", help="decode every frame of video, too; that takes longer"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Check the episodes, also those that cannot be opened."""
    return check([arguments.path], deep=arguments.deep, as_json=arguments.json)


def check(paths: Sequence[str], *, deep: bool, as_json: bool) -> Exit:
    """Check datasets, episodes and signals one after the other, and print what is wrong."""
    from relive.episodes.validate import validate

    reports = []
    for path in paths:
        with Progress("check", 0) as bar:
            reports.append((path, validate(path, deep=deep, progress=bar.out_of)))
    ok = all(report.ok for _, report in reports)
    if as_json:
        problems = [
            asdict(problem) | {"path": str(problem.path)}
            for _, report in reports
            for problem in report.problems
        ]
        print_json(
            {
                "deep": deep,
                "ok": ok,
                "episodes": sum(report.episodes for _, report in reports),
                "signals": sum(report.signals for _, report in reports),
                "unfinished": [str(e.path) for _, report in reports for e in report.unfinished],
                "problems": problems,
            }
        )
        return Exit.OK if ok else Exit.FAILED
    for path, report in reports:
        for problem in report.problems:
            print_line(shown(problem.message))  # which says the file, the signal and the row
        found = count_text(len(report.problems), "problem") if report.problems else "ok"
        how = "every frame decoded" if deep else "no frame decoded"
        signals = count_text(report.signals, "signal")
        alone = report.path.is_file()
        read = signals if alone else f"{count_text(report.episodes, 'episode')}, {signals}"
        print_line(f"{shown(path)}: {found} ({read}, {how})")
        for each in report.unfinished:
            say(f"`{shown(str(each.path))}` is not finished, and was not read")
    return Exit.OK if ok else Exit.FAILED


COMMAND: Final = Command(
    "validate",
    "check that an episode, or all of a dataset, is whole",
    "relive episodes validate kitchen --deep",
    add_arguments,
    run,
)
