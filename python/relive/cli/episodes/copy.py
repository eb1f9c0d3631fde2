"""`relive episodes copy`: episodes into another dataset, as edits left them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relive.cli.arguments import add_json, parse_names
from relive.cli.command import Command, Exit
from relive.cli.episodes.edit import read_static
from relive.cli.episodes.arguments import add_raw, chosen, is_root, open_root
from relive.cli.output import count_text, print_json, print_line, shown
from relive.cli.progress import Progress

if TYPE_CHECKING:
    from relive.episodes.copy import Copied


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "source", metavar="SOURCE", help="the root of a dataset, or the directory of an episode"
    )
    parser.add_argument("target", metavar="TARGET", help="the root to copy to, made if missing")
    parser.add_argument(
        "--uids",
        metavar="LIST",
        type=parse_names,
        help="only these episodes, in this order: uids, beginnings of them, or numbers",
    )
    parser.add_argument(
        "--where",
        metavar="NAME=JSON",
        nargs="+",
        type=read_static,
        default=[],
        help="only episodes with all of these statics, as in success=true",
    )
    add_raw(parser)
    add_video(parser)
    add_json(parser)


def add_video(parser: argparse.ArgumentParser) -> None:
    """Add how video is encoded that cannot be copied as it is."""
    parser.add_argument(
        "--video",
        metavar="PROFILE",
        help="how to encode frames that are no run of those that are stored, as after a sampling "
        "(default: as they were recorded); all other video is copied as it is coded, what was "
        "trimmed or cut too: between two key frames it keeps those before it, and hides them",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Copy the episodes that were chosen behind those that are there."""
    from relive.episodes.copy import as_dataset, copy

    source = Path(arguments.source)
    if is_root(source) or arguments.uids or arguments.where:
        dataset = chosen(open_root(source, raw=arguments.raw), arguments.uids, arguments.where)
    else:
        dataset = as_dataset(source)
    with Progress("copying", 0) as progress:
        done = copy(dataset, arguments.target, video=arguments.video, progress=progress.out_of)
    tell(arguments.target, done, as_json=arguments.json)
    return Exit.OK


def tell(target: str, done: "Copied", *, as_json: bool) -> None:
    """Say what was copied."""
    if as_json:
        print_json({"path": target, "copied": list(done.copied), "skipped": list(done.skipped)})
        return
    there = f", {len(done.skipped)} there already" if done.skipped else ""
    print_line(f"{shown(target)}: {count_text(len(done.copied), 'episode')} copied{there}")


COMMAND: Final = Command(
    "copy",
    "copy episodes to another dataset, with the edits that were made of them",
    'relive episodes copy kitchen picked --where task="pick" success=true',
    add_arguments,
    run,
)
