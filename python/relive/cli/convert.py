"""`relive convert`: other people's formats into record stores, and back to Parquet and NumPy."""

import argparse
import re
from typing import Any, Final

from relive.bridge.convert import KINDS, TARGETS, Conversion, convert
from relive.cli.arguments import add_json, positive
from relive.cli.command import Command, Exit
from relive.cli.output import count_text, print_json, print_line, say, shown, size_text
from relive.cli.progress import Progress
from relive.errors import ReliveError
from relive.model.schema import CODECS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        help="what to convert: a path or a quoted glob pattern; several are one behind the other",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="a name in .parquet or .npy for such a file, any other for a record store",
    )
    parser.add_argument("--to", choices=TARGETS, help="what to write, whatever its name")
    parser.add_argument("--kind", choices=KINDS, help="what the source is, whatever its name")
    parser.add_argument(
        "--fields", metavar="LIST", type=_names, help="only these fields, as in image,label"
    )
    parser.add_argument(
        "--rename",
        metavar="OLD=NEW",
        type=_rename,
        action="append",
        default=[],
        help="call a field something else; may be repeated",
    )
    parser.add_argument(
        "--codec",
        choices=CODECS,
        help="compress values of any size, and rows of at least 256 bytes",
    )
    parser.add_argument("--level", metavar="N", type=int, help="how hard to compress")
    parser.add_argument(
        "--decode",
        choices=("image", "example", "bytes"),
        help="what to make of stored bytes: images, or the features of a tf.train.Example",
    )
    parser.add_argument(
        "--size", metavar="N", type=_size, help="decode and resize images, to N or HEIGHTxWIDTH"
    )
    parser.add_argument(
        "--steps", action="store_true", help="the rows of a pack are the steps of its runs"
    )
    parser.add_argument(
        "--sample",
        metavar="N",
        type=positive,
        default=1000,
        help="rows to look at to see which fields there are (default: 1000)",
    )
    parser.add_argument("--limit", metavar="N", type=positive, help="stop after so many rows")
    parser.add_argument(
        "--workers",
        metavar="N",
        type=positive,
        default=2,
        help="threads that decode, and threads that compress (default: 2)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace what is there, and the beginning of another conversion",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Convert, and tell what was made."""
    if arguments.rename and arguments.fields:
        arguments.parser.error("--fields picks and --rename renames; give one of them")
    fields: Any = dict(arguments.rename) or arguments.fields
    sources = arguments.sources
    with _Rows("converting") as progress:
        try:
            made = convert(
                sources[0] if len(sources) == 1 else sources,
                arguments.target,
                to=arguments.to,
                kind=arguments.kind,
                fields=fields,
                codec=arguments.codec,
                level=arguments.level,
                decode=arguments.decode,
                size=arguments.size,
                steps=arguments.steps,
                sample=arguments.sample,
                workers=arguments.workers,
                limit=arguments.limit,
                overwrite=arguments.overwrite,
                progress=progress.rows,
            )
        except ReliveError:
            progress.clear()
            if progress.done:
                _tell_what_is_kept(arguments.target)
            raise
    _tell(made, arguments.target, as_json=arguments.json)
    return Exit.OK


class _Rows(Progress):
    """Shows how many rows are done, also where nobody knows of how many."""

    def __init__(self, label: str) -> None:
        super().__init__(label, 0)
        self.done = 0

    def rows(self, done: int, total: int | None) -> None:
        """Show that `done` rows are done."""
        self.done = done
        self.out_of(done, total or 0)

    def _line(self, done: int, seconds: float) -> str:
        return super()._line(done, seconds) if self._total else f"{self._label} {done} rows"


def _tell_what_is_kept(target: str) -> None:
    from relive.bridge.write.record_store import unfinished_path

    place = unfinished_path(target)
    if place.exists():
        say(f"note: what was converted is kept in {shown(str(place))}; the same line goes on")


def _tell(made: Conversion, target: str, *, as_json: bool) -> None:
    if as_json:
        fields = {
            name: {
                "dtype": str(field.dtype),
                "shape": field.shape,
                "ragged": int(field.ragged),
                "codec": field.codec,
            }
            for name, field in made.fields.items()
        }
        told = {"path": target, "rows": made.rows, "file_bytes": made.bytes, "fields": fields}
        print_json(told | {"resumed_from": made.resumed_from})
        return
    again = f", {made.resumed_from} of them from before" if made.resumed_from else ""
    rows = count_text(made.rows, "row")
    print_line(f"{shown(target)}: {rows}{again}, {size_text(made.bytes)}")


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("there is no name in the list")
    return names


def _rename(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not old or not new:
        raise argparse.ArgumentTypeError(f"`{text}` is not OLD=NEW")
    return old, new


def _size(text: str) -> int | tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    if found is None or int(found[1]) < 1 or int(found[2] or 1) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is neither N nor HEIGHTxWIDTH")
    return int(found[1]) if found[2] is None else (int(found[1]), int(found[2]))


COMMAND: Final = Command(
    "convert",
    "convert other formats to a record store, or to Parquet and NumPy",
    "relive convert shards/*.tar train --codec zstd --decode image",
    add_arguments,
    run,
)
