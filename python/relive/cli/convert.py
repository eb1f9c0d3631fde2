"""`relive convert`: other formats to record stores, Parquet and NumPy; runs for Minari."""

import argparse
import re
from typing import Final

from relive.bridge.convert import KINDS, TARGETS, convert
from relive.bridge.images import MODES
from relive.bridge.write.minari import TEXT_OPTIONS
from relive.cli.arguments import add_errors, add_fields, add_overwrite, positive
from relive.cli.command import Exit
from relive.cli.output import count_text, note, print_result, size_text
from relive.cli.progress import Progress
from relive.cli.source import field_facts
from relive.errors import ReliveError
from relive.model.schema import CODECS

SUMMARY: Final = "convert other formats to a record store, Parquet or NumPy, and runs for Minari"
EXAMPLE: Final = "relive convert shards/*.tar train --codec zstd --decode image"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        help="what to convert: a path or a quoted glob pattern; several are concatenated",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="a .parquet or .npy file, or any other name for a record store",
    )
    parser.add_argument("--to", choices=TARGETS, help="the format to write (default: by its name)")
    parser.add_argument(
        "--minari",
        metavar="KEY=VALUE",
        type=_minari,
        action="append",
        help=f"what Minari notes about a dataset: {', '.join(TEXT_OPTIONS)}; may be repeated",
    )
    parser.add_argument("--kind", choices=KINDS, help="the format to read (default: by its name)")
    add_fields(parser)
    parser.add_argument(
        "--rename",
        metavar="OLD=NEW",
        type=_rename,
        action="append",
        default=[],
        help="rename a field; may be repeated",
    )
    parser.add_argument(
        "--codec",
        choices=CODECS,
        help="compress values of variable size, and rows of at least 256 bytes",
    )
    parser.add_argument("--level", metavar="N", type=int, help="the compression level")
    parser.add_argument(
        "--decode",
        choices=("image", "example", "bytes"),
        help="how to decode stored bytes: as images, as tf.train.Example, or not at all",
    )
    parser.add_argument(
        "--size", metavar="N", type=_size, help="decode images and resize them to N or HEIGHTxWIDTH"
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="decode images and convert them to this mode (default: keep depth and channels)",
    )
    parser.add_argument(
        "--steps", action="store_true", help="convert the steps of the runs in a pack, one per row"
    )
    parser.add_argument(
        "--sample",
        metavar="N",
        type=positive,
        default=1000,
        help="how many rows to read to find the fields (default: 1000)",
    )
    parser.add_argument("--limit", metavar="N", type=positive, help="stop after N rows")
    parser.add_argument(
        "--workers",
        metavar="N",
        type=positive,
        default=2,
        help="number of threads that decode, and of threads that compress (default: 2)",
    )
    add_errors(parser, "a row that is damaged or cannot be decoded")
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Convert, and print what was written."""
    if arguments.rename and arguments.fields:
        arguments.parser.error("pass --fields or --rename, not both")
    sources, target = arguments.sources, arguments.target
    options = (
        *("to", "kind", "codec", "level", "decode", "size", "mode", "steps", "sample"),
        "workers",
    )
    with Progress("converting") as progress:
        try:
            made = convert(
                sources[0] if len(sources) == 1 else sources,
                target,
                fields=dict(arguments.rename) or arguments.fields,
                limit=arguments.limit,
                errors=arguments.errors,
                overwrite=arguments.overwrite,
                progress=progress,
                minari=_joined(arguments.minari),
                **{name: getattr(arguments, name) for name in options},
            )
        except ReliveError:
            progress.clear()
            if progress.done:
                _note_what_is_kept(target)
            raise
    resumed = f", {made.resumed_from} of them from before" if made.resumed_from else ""
    print_result(
        {
            "path": target,
            "rows": made.rows,
            "file_bytes": made.bytes,
            "fields": {name: field_facts(field) for name, field in made.fields.items()},
            "resumed_from": made.resumed_from,
            "skipped": made.skipped,
        },
        f"{target}: {count_text(made.rows, 'row')}{resumed}, {size_text(made.bytes)}",
        as_json=arguments.json,
    )
    if made.skipped:
        note(f"warning: {count_text(made.skipped, 'row')} left out")
    if made.left_out:
        what = count_text(made.left_out, "step")
        note(f"note: {what} left out, after which it is not known what was observed")
    return Exit.LOSS if made.skipped else Exit.OK


def _note_what_is_kept(target: str) -> None:
    from relive.bridge.write.record_store import unfinished_path

    path = unfinished_path(target)
    if path.exists():
        note(
            f"note: the rows converted so far are kept in `{path}`; run the command again to go on"
        )


def _rename(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not old or not new:
        raise argparse.ArgumentTypeError(f"`{text}` is not of the form OLD=NEW")
    return old, new


def _minari(text: str) -> tuple[str, str]:
    key, is_pair, value = text.partition("=")
    if not is_pair or key not in TEXT_OPTIONS:
        known = ", ".join(TEXT_OPTIONS)
        raise argparse.ArgumentTypeError(f"`{text}` is not of the form KEY=VALUE; keys: {known}")
    return key, value


def _joined(given: list[tuple[str, str]] | None) -> dict[str, str | list[str]] | None:
    """Return texts by key; those of a key that was repeated are a list."""
    if given is None:
        return None
    texts: dict[str, list[str]] = {}
    for key, value in given:
        texts.setdefault(key, []).append(value)
    return {key: values[0] if len(values) == 1 else values for key, values in texts.items()}


def _size(text: str) -> int | tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    if found is None or int(found[1]) < 1 or int(found[2] or 1) < 1:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a size: use 224 or 224x320 (height x width)"
        )
    return int(found[1]) if found[2] is None else (int(found[1]), int(found[2]))
