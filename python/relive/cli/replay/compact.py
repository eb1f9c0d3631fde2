"""`relive replay compact`: rewrites the files of runs without unused bytes."""

import argparse
from typing import TYPE_CHECKING, Final

from relive.cli.command import Exit
from relive.cli.output import note, print_json, print_line, size_text
from relive.cli.progress import Progress
from relive.cli.replay.arguments import add_root
from relive.errors import LockedError, ReadOnlyError, UnfinishedError

if TYPE_CHECKING:
    from relive.replay.manage.compact import CompactedDatabase, CompactedRun

SUMMARY: Final = "rewrite the files of closed runs without unused bytes, or with another codec"
EXAMPLE: Final = "relive replay compact runs cartpole-1 --codec zstd:9"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_root(parser)
    parser.add_argument(
        "run_ids",
        metavar="RUN",
        nargs="*",
        help="the whole id of a run (default: all runs that are closed and not archived)",
    )
    parser.add_argument(
        "--codec",
        metavar="[FIELD=]CODEC",
        action="append",
        default=[],
        type=_codec,
        help="the codec of all arrays, as in zstd:9, or of one field, as in observations=gzip: "
        "raw, gzip, lz4 or zstd; may be repeated (default: keep the codecs)",
    )
    parser.add_argument(
        "--layout",
        choices=("train",),
        help="train: store what batches of transitions are read from without a codec, so that it "
        "is read from a map of the file (default: keep the codecs)",
    )
    parser.add_argument(
        "--vacuum", action="store_true", help="also rewrite the database of all runs"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")


def run(arguments: argparse.Namespace) -> Exit:
    """Compact the runs; without any named, those that can be."""
    from relive.replay.manage.compact import compact, vacuum
    from relive.replay.manage.runs import run_ids

    root, is_dry = arguments.root, arguments.dry_run
    codec, layout = dict(arguments.codec) or None, arguments.layout
    compacted = []
    for run_id in dict.fromkeys(arguments.run_ids) or run_ids(root):
        with Progress(f"compacting {run_id}") as progress:
            try:
                done = compact(
                    root, run_id, codec=codec, layout=layout, dry_run=is_dry, progress=progress
                )
            except (LockedError, ReadOnlyError, UnfinishedError) as error:
                if arguments.run_ids:
                    raise
                progress.clear()
                note(f"{error.message}, and was left out")
                continue
        compacted.append(done)
        if not arguments.json:
            print_line(_run_text(done))
    database = vacuum(root, dry_run=is_dry) if arguments.vacuum else None
    if arguments.json:
        print_json({"runs": compacted, "database": database})
    elif database is not None:
        print_line(_database_text(database))
    if is_dry:
        note("nothing was changed")
    return Exit.OK


def _run_text(done: "CompactedRun") -> str:
    before, unused = size_text(done.bytes_before), size_text(done.unused_bytes)
    if not done.has_arrays:
        text = "no arrays"
    elif not done.is_changed:
        text = f"already compact, {before}"
    elif done.bytes_after is None:
        text = f"{before}, {unused} of them unused"
    else:
        text = f"{before} before, {size_text(done.bytes_after)} after"
    return f"{done.run_id}: {text}"


def _database_text(done: "CompactedDatabase") -> str:
    before = size_text(done.bytes_before)
    if done.bytes_after is None:
        return f"{done.path}: {before}, {size_text(done.unused_bytes)} of them unused"
    return f"{done.path}: {before} before, {size_text(done.bytes_after)} after"


def _codec(text: str) -> tuple[str, str]:
    """Parse a codec, and the field that it is for."""
    field, equals, codec = text.rpartition("=")
    if not codec or (equals and not field):
        raise argparse.ArgumentTypeError(f"`{text}` is not a codec, as in zstd:9")
    return field or "*", codec
