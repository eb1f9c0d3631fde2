"""`relive episodes copy`: copies episodes to another dataset, with their edits applied."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relive.cli.arguments import parse_names, report_damaged
from relive.cli.command import Exit
from relive.cli.episodes.arguments import (
    add_raw,
    add_skip,
    chosen_episodes,
    open_root,
    parse_static,
)
from relive.cli.output import count_text, print_result
from relive.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relive.episodes import Copied, Damaged

SUMMARY: Final = "copy episodes to another dataset, with their edits applied"
EXAMPLE: Final = 'relive episodes copy kitchen picked --where task="pick" success=true'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "source", metavar="SOURCE", help="the root of a dataset, or the directory of an episode"
    )
    parser.add_argument(
        "--uids",
        metavar="LIST",
        type=parse_names,
        help="only these episodes, in this order: uids, beginnings of uids, or numbers",
    )
    parser.add_argument(
        "--where",
        metavar="NAME=JSON",
        nargs="+",
        type=parse_static,
        default=[],
        help="only episodes with all of these statics, as in success=true",
    )
    add_target(parser)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add where to copy to, and what of the episodes."""
    parser.add_argument("target", metavar="TARGET", help="the root to copy to, created if missing")
    add_raw(parser)
    parser.add_argument(
        "--video",
        metavar="PROFILE",
        help="how to encode video that cannot be copied as it is stored, such as sampled frames "
        "(default: the settings it was recorded with)",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="remove other states of the copied episodes from the target, such as those before "
        "an edit, after the copy",
    )
    add_skip(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Append the chosen episodes to the target."""
    from relive.episodes.copy import as_dataset, copy
    from relive.episodes.layout import is_root

    source = Path(arguments.source)
    if is_root(source) or arguments.uids or arguments.where:
        root = open_root(source, raw=arguments.raw, errors=arguments.errors)
        damaged = root.damaged
        dataset = chosen_episodes(root, arguments.uids, arguments.where)
    else:
        damaged = []
        dataset = as_dataset(source)
    options = copy_options(arguments)
    with Progress("copying") as progress:
        done = copy(dataset, arguments.target, **options, progress=progress)
    return print_copied(arguments, done, damaged)


def copy_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `copy` and `merge`."""
    return {name: getattr(arguments, name) for name in ("video", "replace", "errors")}


def print_copied(
    arguments: argparse.Namespace, done: "Copied", damaged: "Sequence[Damaged]" = ()
) -> Exit:
    """Print what was copied and what was left out, and return the exit status."""
    left_out = list(dict.fromkeys([*damaged, *done.damaged]))
    text = f"{arguments.target}: {count_text(len(done.copied), 'episode')} copied"
    if done.skipped:
        text += f", {len(done.skipped)} already there"
    if done.removed:
        text += f", {len(done.removed)} removed"
    if done.encoded_frames:
        text += f", {count_text(done.encoded_frames, 'frame')} encoded again"
    print_result(
        {
            "path": arguments.target,
            "copied": done.copied,
            "skipped": done.skipped,
            "damaged": left_out,
            "removed": done.removed,
            "encoded_frames": done.encoded_frames,
        },
        text,
        as_json=arguments.json,
    )
    return report_damaged(left_out)
