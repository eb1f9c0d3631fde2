"""`relive replay migrate`: copies databases that have the arrays of steps as JSON."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from relive.cli.arguments import add_errors
from relive.cli.command import Exit
from relive.cli.output import count_text, note, plain, print_json, print_line, size_text
from relive.cli.progress import Progress
from relive.errors import CorruptError, InvalidError

if TYPE_CHECKING:
    from relive.replay.migrate import MigrationReport

SUMMARY: Final = "copy a database that has observations and frames as JSON to runs"
EXAMPLE: Final = "relive replay migrate old/telemetry.sqlite runs --verify"

_PHASES: Final = {
    "scan": "scanning",
    "copy": "copying",
    "verify": "comparing",
    "drop": "dropping columns",
    "compact": "compacting",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "database",
        metavar="DATABASE",
        help="the SQLite database; other processes may write to it meanwhile",
    )
    parser.add_argument(
        "root",
        metavar="ROOT",
        nargs="?",
        help="the directory of the runs, which is created if it does not exist (default: the "
        "directory of a database that is named telemetry/telemetry.sqlite in it)",
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare every step with the database, bit by bit"
    )
    parser.add_argument(
        "--drop-columns",
        action="store_true",
        help="compare every step, and then remove the columns observation and render_payload from "
        "the database; nothing is removed if there is a difference",
    )
    parser.add_argument(
        "--compact", action="store_true", help="then rewrite the database without unused space"
    )
    add_errors(parser, "a row that cannot be read")


def run(arguments: argparse.Namespace) -> Exit:
    """Copy the steps that the runs do not have yet, and compare them."""
    from relive.replay.migrate import migrate

    root = _root(arguments)
    with _Phases() as phases:
        try:
            report = migrate(
                arguments.database,
                root,
                verify=arguments.verify,
                drop_blobs=arguments.drop_columns,
                compact=arguments.compact,
                skip_damaged=arguments.errors == "skip",
                progress=phases,
            )
        except CorruptError as error:
            if error.hint is None or "skip_damaged" not in error.hint:
                raise
            hint = "repair the row, or pass --errors skip to leave it out"
            raise CorruptError(error.message, hint=hint) from error
    if arguments.json:
        print_json({"root": str(root), **plain(report), "is_verified": report.is_verified})
    else:
        _print_report(root, report)
    losses = list(_losses(report))
    for loss in losses:
        note(f"warning: {loss}")
    if report.staged is not None:
        note(f"the runs are in `{report.staged}`; --drop-columns moves them to the database")
    if report.problem_count:
        return Exit.FAILED
    return Exit.LOSS if losses else Exit.OK


def _root(arguments: argparse.Namespace) -> Path:
    if arguments.root is not None:
        return Path(arguments.root)
    from relive.replay.storage.layout import database_path

    database = Path(arguments.database)
    root = database.parent.parent
    if database_path(root) != database:
        raise InvalidError(
            f"`{database}` is not named telemetry/telemetry.sqlite, and no directory was named",
            hint="add the directory of the runs",
        )
    return root


def _print_report(root: Path, report: "MigrationReport") -> None:
    for problem in report.problems:
        print_line(str(problem))
    present = f", {report.present} already there" if report.present else ""
    repeated = f", {count_text(report.duplicates, 'duplicate row')}" if report.duplicates else ""
    counts = f"{count_text(report.runs, 'run')}, {count_text(report.episodes, 'episode')}"
    print_line(f"{root}: {counts}, {count_text(report.copied, 'step')} copied{present}{repeated}")
    if report.verified is not None:
        found, without = "all are the same", ""
        if report.uncompared:
            columns = " and ".join(report.uncompared)
            without = f", without {columns}, which the database does not have"
            found = "the rest is the same"
        if report.problem_count:
            found = f"{report.problem_count} differ"
        print_line(f"{count_text(report.verified, 'step')} compared{without}: {found}")
    if report.dropped:
        print_line(f"columns dropped: {', '.join(report.dropped)}")
    if report.bytes_before is not None and report.bytes_after is not None:
        sizes = f"{size_text(report.bytes_before)} before, {size_text(report.bytes_after)} now"
        print_line(f"database: {sizes}")


def _losses(report: "MigrationReport") -> list[str]:
    """Return what was left out of the runs, one text for each reason."""
    found = [
        (report.damaged, "cannot be read"),
        (report.late, "added after a later step of the episode was copied"),
        (report.conflicting, "not the same as an earlier row of the same step"),
    ]
    texts = [f"{count_text(count, 'row')} left out: {reason}" for count, reason in found if count]
    texts += [
        f"run {run_id!r} left out: it is archived or deleted" for run_id in report.skipped_runs
    ]
    return texts


class _Phases:
    """Shows how much of each phase is done."""

    def __init__(self) -> None:
        self._phase = ""
        self._progress: Progress | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Show that `done` of `total` is done of a phase."""
        if phase != self._phase or self._progress is None:
            self.clear()
            self._phase, self._progress = phase, Progress(_PHASES.get(phase, phase))
        self._progress(done, total)

    def clear(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
