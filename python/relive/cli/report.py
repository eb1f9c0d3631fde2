"""How the `validate` commands check things and print what they found."""

from collections.abc import Callable, Sequence
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_json, print_line
from relive.cli.progress import Progress
from relive.model.report import Problem, Report, Unfinished

_MOST_UNCHECKED: Final = 3


def check(
    paths: Sequence[str], level: str, validate: Callable[..., Report], *, as_json: bool
) -> Exit:
    """Validate each path and print the problems."""
    reports: list[tuple[str, Report]] = []
    for path in paths:
        with Progress("checking") as progress:
            reports.append((path, validate(path, level, progress=progress)))
    status = Exit.OK if all(report.ok for _, report in reports) else Exit.FAILED
    if as_json:
        print_json(_joined(level, [report for _, report in reports]))
        return status
    for path, report in reports:
        for problem in report.problems:
            print_line(_problem_text(problem, report))
        found = count_text(len(report.problems), "problem") if report.problems else "ok"
        print_line(f"{path}: {found} ({level}, {_checked_text(report)} read)")
        for each in report.unfinished:
            note(f"`{each.path}` {_unfinished_text(each, report)}")
        for unchecked in report.unchecked[:_MOST_UNCHECKED]:
            note(f"`{unchecked}` has no checksums, so not all damage can be found")
        if (more := len(report.unchecked) - _MOST_UNCHECKED) > 0:
            note(f"{more} more have no checksums; --json lists them all")
    return status


def _joined(level: str, reports: Sequence[Report]) -> dict[str, object]:
    checked: dict[str, int] = {}
    for report in reports:
        for what, count in report.checked.items():
            checked[what] = checked.get(what, 0) + count
    return {
        "level": level,
        "ok": all(report.ok for report in reports),
        "checked": checked,
        "problems": [problem for report in reports for problem in report.problems],
        "unfinished": [each for report in reports for each in report.unfinished],
        "unchecked": [path for report in reports for path in report.unchecked],
    }


def _problem_text(problem: Problem, report: Report) -> str:
    if f"`{problem.path}" in problem.message:  # the message names the file itself
        return problem.message
    names = {"entries": "entry", "steps": "step"}
    row = next((name for what, name in names.items() if what in report.checked), "record")
    numbers = ((row, problem.row), ("at offset", problem.offset))
    where = " ".join(f"{word} {number}" for word, number in numbers if number is not None)
    return ": ".join(part for part in (f"`{problem.path}`", where, problem.message) if part)


def _unfinished_text(unfinished: Unfinished, report: Report) -> str:
    if "runs" not in report.checked:
        return "is not finished and was not checked"
    if unfinished.reason == "locked":
        return "is being recorded; what is committed was checked"
    return "was interrupted; what is committed was checked, and `relive recover` finishes it"


def _checked_text(report: Report) -> str:
    counts = {what: count for what, count in report.checked.items() if count} or report.checked
    return ", ".join(count_text(count, _singular(what)) for what, count in counts.items())


def _singular(noun: str) -> str:
    return f"{noun[:-3]}y" if noun.endswith("ies") else noun.removesuffix("s")
