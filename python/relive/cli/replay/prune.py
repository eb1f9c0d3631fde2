"""`relive replay prune`: deletes all runs but the newest."""

import argparse
import re
from typing import TYPE_CHECKING, Final

from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_json, print_line
from relive.cli.progress import Progress
from relive.cli.replay.arguments import add_root
from relive.cli.replay.ls import print_runs
from relive.cli.replay.rm import add_yes, print_deleted
from relive.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relive.replay.manage.runs import RunSummary

SUMMARY: Final = "delete the runs that ended first, and keep the others"
EXAMPLE: Final = "relive replay prune runs --keep 10 --yes"

_MOST_NAMED: Final = 20
"""Of the runs that are kept, this many are named; `--json` has all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_root(parser)
    parser.add_argument(
        "--keep",
        metavar="N",
        type=_count,
        required=True,
        help="how many finished and failed runs to keep: those that ended last",
    )
    parser.add_argument(
        "--interrupted",
        action="store_true",
        help="count and delete runs whose recorder was killed as well",
    )
    add_yes(parser, "delete the runs (default: only list them)")


def run(arguments: argparse.Namespace) -> Exit:
    """List the runs, or delete them; archived runs and those being recorded are never deleted."""
    from relive.replay.manage.runs import delete, list_runs, prunable, unfinished_deletions

    root = arguments.root
    runs = prunable(root, arguments.keep, interrupted=arguments.interrupted)
    unfinished = unfinished_deletions(root)
    if not arguments.yes:
        chosen = {each.run_id for each in runs}
        kept = [each for each in list_runs(root) if each.run_id not in chosen]
        if arguments.json:
            print_json({"runs": runs, "unfinished": unfinished, "deleted": [], "kept": kept})
        else:
            print_runs(runs)
            for run_id in unfinished:
                print_line(f"{run_id}: its deletion was interrupted, and is finished with --yes")
            _print_kept(kept)
        if runs or unfinished:
            note("nothing was deleted; pass --yes to delete the runs")
        return Exit.OK
    deleted = []
    status = Exit.OK
    for run_id in [*unfinished, *(each.run_id for each in runs)]:
        with Progress("deleting") as progress:
            try:
                deleted.append(delete(root, run_id, progress=progress))
            except LockedError as error:
                progress.clear()
                note(f"warning: {error.message}, and was left out")
                status = Exit.LOSS
    kept = list_runs(root)
    if arguments.json:
        print_json({"runs": runs, "unfinished": unfinished, "deleted": deleted, "kept": kept})
    else:
        print_deleted(deleted, as_json=False)
        print_line(f"{count_text(len(deleted), 'run')} deleted")
        _print_kept(kept)
    return status


def _print_kept(kept: "Sequence[RunSummary]") -> None:
    """Print the runs that are kept, and why if they do not count."""
    named = [
        each.run_id if each.status in {"finished", "failed"} else f"{each.run_id} ({each.status})"
        for each in kept[:_MOST_NAMED]
    ]
    more = f" and {len(kept) - _MOST_NAMED} more" if len(kept) > _MOST_NAMED else ""
    listed = f": {', '.join(named)}{more}" if kept else ""
    print_line(f"{count_text(len(kept), 'run')} kept{listed}")


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"`{text}` is not an integer of at least 0")
    return int(text)
