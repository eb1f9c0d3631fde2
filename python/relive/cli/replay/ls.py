"""`relive replay ls`: the runs of a root."""

import argparse
from typing import TYPE_CHECKING, Final

from relive.cli.arguments import positive
from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_json, print_line, print_table, size_text
from relive.cli.replay.arguments import add_root
from relive.model.clock import now_ns
from relive.view.scale import duration_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relive.replay.manage.runs import RunSummary

SUMMARY: Final = "list the runs of a directory"
EXAMPLE: Final = "relive replay ls runs --last 20"

_DAY_NS: Final = 86_400_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_root(parser)
    parser.add_argument(
        "--last",
        metavar="N",
        type=positive,
        default=100,
        help="how many of the newest episodes count for the mean return (default: 100)",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Print a line for each run."""
    from relive.replay.manage.runs import list_runs, unfinished_deletions

    root = arguments.root
    runs = list_runs(root, last_episodes=arguments.last)
    if arguments.json:
        print_json(runs)
    else:
        print_runs(runs)
    interrupted = sum(each.status == "interrupted" for each in runs)
    if interrupted:
        note(
            f"{count_text(interrupted, 'run')} interrupted; `relive recover {root}` finishes such "
            "runs, and a recorder with the same run_id continues one"
        )
    for run_id in unfinished_deletions(root):
        note(
            f"the deletion of run {run_id!r} was interrupted; run `relive replay rm {root} "
            f"{run_id} --yes` to finish it"
        )
    return Exit.FAILED if any(each.problem for each in runs) else Exit.OK


def print_runs(runs: "Sequence[RunSummary]") -> None:
    """Print runs as a table."""
    if not runs:
        print_line("no runs")
        return
    now = now_ns()
    problems = any(each.problem for each in runs)
    header = ["run", "status", "env", "episodes", "steps", "return", "size", "age"]
    print_table(
        [*header, *(["problem"] if problems else [])],
        [
            [
                *(each.run_id, each.status, each.env_id, each.episodes, each.steps),
                *(each.mean_return, size_text(each.file_bytes)),
                _age_text(now - each.created_ns),
                *([each.problem] if problems else []),
            ]
            for each in runs
        ],
    )


def _age_text(nanoseconds: int) -> str:
    if nanoseconds >= 2 * _DAY_NS:
        return f"{nanoseconds // _DAY_NS} days"
    return duration_text(max(0, nanoseconds))
