"""`relive replay rm`: deletes runs."""

import argparse
import sys
from typing import TYPE_CHECKING, Final

from relive.cli.command import Exit
from relive.cli.output import count_text, print_json, print_line, printable, size_text
from relive.cli.progress import Progress
from relive.cli.replay.arguments import add_root, add_whole_ids, whole_ids
from relive.errors import CorruptError, InvalidError, ReadOnlyError

if TYPE_CHECKING:
    from relive.replay.manage.runs import DeletedRun

SUMMARY: Final = "delete runs: their steps, their episodes and their files"
EXAMPLE: Final = "relive replay rm runs cartpole-1 --yes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_root(parser)
    add_whole_ids(parser)
    parser.add_argument(
        "--archived", action="store_true", help="also delete runs that are archived"
    )
    parser.add_argument(
        "--damaged",
        action="store_true",
        help="also delete runs whose row in the database is damaged",
    )
    add_yes(parser, "delete without asking")


def add_yes(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add the consent to delete."""
    parser.add_argument("-y", "--yes", action="store_true", help=purpose)


def run(arguments: argparse.Namespace) -> Exit:
    """Delete the runs, after asking in a terminal; elsewhere only with `--yes`."""
    from relive.replay.manage.runs import delete, list_runs, unfinished_deletions

    root = arguments.root
    known = {each.run_id: each for each in list_runs(root)}
    wanted = whole_ids(arguments, {*known, *unfinished_deletions(root)})
    for run_id in wanted:
        if run_id in known and known[run_id].status == "archived" and not arguments.archived:
            raise ReadOnlyError(
                f"run {run_id!r} is archived", hint="pass --archived to delete it anyway"
            )
        problem = known[run_id].problem if run_id in known else None
        if problem is not None and not arguments.damaged:
            raise CorruptError(problem, hint="pass --damaged to delete the run anyway")
    if not arguments.yes:
        steps = sum(known[each].steps for each in wanted if each in known)
        size = sum(known[each].file_bytes for each in wanted if each in known)
        named = wanted[0] if len(wanted) == 1 else count_text(len(wanted), "run")
        question = f"delete {named} with {count_text(steps, 'step')} and {size_text(size)}?"
        if not _ask(question, can_ask=not arguments.json):
            print_line("nothing was deleted")
            return Exit.OK
    deleted = []
    for run_id in wanted:
        with Progress("deleting") as progress:
            deleted.append(
                delete(
                    root,
                    run_id,
                    archived=arguments.archived,
                    damaged=arguments.damaged,
                    progress=progress,
                )
            )
    print_deleted(deleted, as_json=arguments.json)
    return Exit.OK


def print_deleted(deleted: "list[DeletedRun]", *, as_json: bool) -> None:
    """Print what was deleted."""
    if as_json:
        print_json(deleted)
        return
    for each in deleted:
        steps, size = count_text(each.steps, "step"), size_text(each.file_bytes)
        print_line(f"{each.run_id}: deleted, {steps}, {size}")


def _ask(question: str, *, can_ask: bool) -> bool:
    if not (can_ask and sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidError("deleting runs needs consent", hint="pass --yes")
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
