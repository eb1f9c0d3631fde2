"""Arguments that several commands take, and what they mean."""

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from relive.errors import OutOfRangeError

if TYPE_CHECKING:
    from relive.store.pack import PackReader

Spans: TypeAlias = Sequence[tuple[int, int]]
"""First and last position of each span; not counted out, since a span may be any length."""

_SPAN: Final = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_SLICE: Final = re.compile(r"(\d{1,18})|(\d{0,18}):(\d{0,18})")


def add_pack(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Let the pack be named as `PATH` or as `--packfile PATH`."""
    what = "a pack: a path, a URI or a quoted glob pattern"
    if several:
        parser.add_argument("paths", metavar="PATH", nargs="*", help=f"{what}; in this order")
        parser.add_argument(
            "--packfile", metavar="PATH", action="append", default=[], help="the same"
        )
    else:
        parser.add_argument("path", metavar="PATH", nargs="?", help=what)
        parser.add_argument("--packfile", metavar="PATH", help="the same")


def pack_path(arguments: argparse.Namespace) -> str:
    """Give the one pack that was named."""
    given = [path for path in (arguments.path, arguments.packfile) if path is not None]
    if len(given) != 1:
        arguments.parser.error("name one pack: PATH, or --packfile PATH")
    return str(given[0])


def pack_paths(arguments: argparse.Namespace) -> list[str]:
    """Give the packs that were named, at least one."""
    given = [*arguments.paths, *arguments.packfile]
    if not given:
        arguments.parser.error("name the packs: PATH ..., or --packfile PATH")
    return given


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the record store to look into."""
    parser.add_argument("path", metavar="PATH", help="a record store: its directory")


def add_fields(parser: argparse.ArgumentParser) -> None:
    """Add which fields are wanted."""
    parser.add_argument(
        "--fields", metavar="LIST", type=parse_names, help="only these fields, as in image,state"
    )


def add_output(parser: argparse.ArgumentParser, metavar: str, purpose: str) -> None:
    """Add where to write, and whether to replace what is there."""
    parser.add_argument("--output", metavar=metavar, required=True, help=purpose)
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the choice to print for a program."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the number of threads."""
    parser.add_argument(
        "--workers",
        metavar="N",
        type=positive,
        help="threads to use (default: the cores of the machine, at most eight)",
    )


def skip_or_raise(parser: argparse.ArgumentParser, what: str) -> None:
    """Add what happens to things that cannot be read."""
    parser.add_argument(
        "--errors",
        choices=("raise", "skip"),
        default="raise",
        help=f"stop at {what} (raise, the default), or leave it out and exit with 3 (skip)",
    )


def positive(text: str) -> int:
    """Read a number from 1 on."""
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no number from 1 on")
    return int(text)


def add_choice(parser: argparse.ArgumentParser, group: "argparse._ActionsContainer") -> None:
    """Add ways to choose entries to `group`; see `choose`."""
    group.add_argument(
        "--indices",
        metavar="LIST",
        type=parse_spans,
        help="positions and spans of them, as in 0,5,10-20",
    )
    group.add_argument("--names", metavar="LIST", type=parse_names, help="names, as in a,b")
    group.add_argument(
        "--name", metavar="NAME", action="append", help="one name, commas and all; may be repeated"
    )
    parser.set_defaults(indices=None, names=None, name=None)


def choose(reader: "PackReader", arguments: argparse.Namespace) -> Sequence[int]:
    """Give the entries that were chosen, in the order asked, each once; all by default."""
    if arguments.indices is not None:
        return _positions(arguments.indices, len(reader))
    names = arguments.name if arguments.names is None else arguments.names
    if names is not None:
        return list(dict.fromkeys(reader.find(name) for name in names))
    return range(len(reader))


def parse_spans(text: str) -> Spans:
    """Read positions and spans of them, as in `0,5,10-20`."""
    spans = []
    for part in text.split(","):
        found = _SPAN.fullmatch(part.strip())
        if found is None:
            raise argparse.ArgumentTypeError(f"`{part}` is no position; write 0,5,10-20")
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        if last < first:
            raise argparse.ArgumentTypeError(f"`{part}` ends before it begins")
        spans.append((first, last))
    return spans


def parse_rows(text: str) -> Sequence[slice]:
    """Read rows and slices of them, as in `3,7,10:20`; a row is a slice of one."""
    rows = []
    for part in text.split(","):
        found = _SLICE.fullmatch(part.strip())
        if found is None:
            raise argparse.ArgumentTypeError(f"`{part}` is no row; write 3,7,10:20")
        first = int(found[1] or found[2] or 0)
        last = first + 1 if found[1] else int(found[3]) if found[3] else None
        if last is not None and last < first:
            raise argparse.ArgumentTypeError(f"`{part}` ends before it begins")
        rows.append(slice(first, last))
    return rows


def _positions(spans: Spans, count: int) -> list[int]:
    for _, last in spans:
        if last >= count:
            raise OutOfRangeError(f"there is no entry {last}: the pack has {count}")
    return list(dict.fromkeys(i for first, last in spans for i in range(first, last + 1)))


def parse_names(text: str) -> list[str]:
    """Read names, as in `a,b`."""
    found = [name for name in text.split(",") if name]
    if not found:
        raise argparse.ArgumentTypeError("there is no name in the list")
    return found
