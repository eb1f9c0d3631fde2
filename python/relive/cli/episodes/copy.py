"""`relive episodes copy`: copies episodes to another dataset, with their edits applied."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relive.cli.arguments import parse_names
from relive.cli.command import Exit
from relive.cli.episodes.arguments import (
    add_raw,
    chosen_episodes,
    open_root,
    parse_static,
)
from relive.cli.output import count_text, print_result
from relive.cli.progress import Progress

if TYPE_CHECKING:
    from relive.episodes import Copied

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
        "(default: the profile it was recorded with)",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Append the chosen episodes to the target."""
    from relive.episodes.copy import as_dataset, copy
    from relive.episodes.layout import is_root

    source = Path(arguments.source)
    if is_root(source) or arguments.uids or arguments.where:
        root = open_root(source, raw=arguments.raw)
        dataset = chosen_episodes(root, arguments.uids, arguments.where)
    else:
        dataset = as_dataset(source)
    with Progress("copying") as progress:
        done = copy(dataset, arguments.target, video=arguments.video, progress=progress)
    print_copied(arguments, done)
    return Exit.OK


def print_copied(arguments: argparse.Namespace, done: "Copied") -> None:
    """Print what was copied."""
    skipped = f", {len(done.skipped)} already there" if done.skipped else ""
    print_result(
        {"path": arguments.target, "copied": done.copied, "skipped": done.skipped},
        f"{arguments.target}: {count_text(len(done.copied), 'episode')} copied{skipped}",
        as_json=arguments.json,
    )
