"""Arguments that several commands take."""

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import count_text, note, plural, print_result, size_text
from relive.errors import OutOfRangeError
from relive.model.kinds import open_kinds
from relive.model.report import LEVELS, Damaged

_SPAN: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_SLICE: Final = re.compile(r"(\d{1,18})|(\d{0,18}):(\d{0,18})")


def add_uri(parser: argparse.ArgumentParser) -> None:
    """Add what to open."""
    parser.add_argument(
        "path", metavar="PATH", help=f"{open_kinds()}: a path, a URI or a quoted glob pattern"
    )


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the record store to read."""
    parser.add_argument("path", metavar="PATH", help="the directory of a record store")


def add_fields(parser: argparse.ArgumentParser) -> None:
    """Add which fields to read."""
    parser.add_argument(
        "--fields", metavar="LIST", type=parse_names, help="only these fields, as in image,state"
    )


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add how many rows to print."""
    parser.add_argument(
        "-n", "--rows", metavar="N", type=positive, default=5, help="how many (default: 5)"
    )


def add_level(parser: argparse.ArgumentParser) -> None:
    """Add how much to check."""
    parser.add_argument(
        "--level",
        choices=LEVELS,
        default="sample",
        help="check the structure (index), some of the data too (sample, the default), or every "
        "byte (full)",
    )


def add_output(parser: argparse.ArgumentParser, metavar: str, purpose: str) -> None:
    """Add where to write, and whether to replace what exists."""
    parser.add_argument("--output", metavar=metavar, required=True, help=purpose)
    add_overwrite(parser)


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add whether to replace what exists."""
    parser.add_argument("--overwrite", action="store_true", help="replace an existing target")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the number of threads."""
    parser.add_argument(
        "--workers",
        metavar="N",
        type=positive,
        help="number of threads (default: the number of CPU cores, at most eight)",
    )


def add_errors(parser: argparse.ArgumentParser, what: str) -> None:
    """Add what to do when something cannot be read."""
    parser.add_argument(
        "--errors",
        choices=("raise", "skip"),
        default="raise",
        help=f"stop at {what} (raise, the default), or leave it out and exit with 3 (skip)",
    )


def report_damaged(damaged: Iterable[Damaged]) -> Exit:
    """Print the episodes or runs that were left out, and return the exit status."""
    status = Exit.OK
    for each in damaged:
        note(f"warning: `{each.path}` was left out: {each.reason}")
        status = Exit.LOSS
    return status


def print_written(
    arguments: argparse.Namespace, count: int, noun: str, skipped: int | None = None
) -> Exit:
    """Print what was written to `--output`, and return the exit status."""
    path = Path(arguments.output)
    value: dict[str, object] = {"path": str(arguments.output), plural(noun): count}
    text = f"{path}: {count_text(count, noun)}"
    if skipped is not None:
        value["skipped"] = skipped
    if path.is_file():
        value["file_bytes"] = path.stat().st_size
        text += f", {size_text(path.stat().st_size)}"
    print_result(value, text, as_json=arguments.json)
    if skipped:
        note(f"warning: {count_text(skipped, 'entry')} left out")
    return Exit.LOSS if skipped else Exit.OK


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not an integer of at least 1")
    return int(text)


def parse_names(text: str) -> list[str]:
    """Parse a list of names, as in `a,b`."""
    found = [name for name in text.split(",") if name]
    if not found:
        raise argparse.ArgumentTypeError(f"expected at least one name, got `{text}`")
    return found


def parse_bytes(text: str) -> int:
    """Parse a number of bytes, as in `200GB` or `1.5TiB`."""
    from relive.errors import InvalidError
    from relive.store.config import parse_size

    try:
        return parse_size("the size", text)
    except InvalidError:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a size, as in 200GB, 1.5TiB or 4096"
        ) from None


def parse_slice(text: str) -> slice:
    """Parse one slice, as in `0:50`, `10:` or `7`; the end is excluded."""
    found = parse_rows(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"expected one slice, as in 0:50, got `{text}`")
    return found[0]


def parse_spans(text: str) -> Sequence[slice]:
    """Parse positions and spans, as in `0,5,10-20`; the end of a span is included."""

    def read(found: re.Match[str]) -> slice:
        return slice(int(found[1]), int(found[2] or found[1]) + 1)

    return _parse_slices(text, _SPAN, read, "a position or range, as in 0,5,10-20")


def parse_rows(text: str) -> Sequence[slice]:
    """Parse rows and slices, as in `3,7,10:20`; the end of a slice is excluded."""

    def read(found: re.Match[str]) -> slice:
        first = int(found[1] or found[2] or 0)
        if found[1]:
            return slice(first, first + 1)
        return slice(first, int(found[3]) if found[3] else None)

    return _parse_slices(text, _SLICE, read, "a row or slice, as in 3,7,10:20")


def expand_slices(slices: Sequence[slice], length: int, noun: str) -> list[int]:
    """Return the positions of slices one by one; one beyond the end is an error."""
    spans = []
    for each in slices:
        stop = length if each.stop is None else each.stop
        if max(stop, each.start) > length:
            last = max(stop - 1, each.start)
            raise OutOfRangeError(
                f"{noun} {last} does not exist: there are only {count_text(length, noun)}"
            )
        spans.append(range(each.start, stop))
    return [position for span in spans for position in span]


def _parse_slices(
    text: str, pattern: re.Pattern[str], read: Callable[[re.Match[str]], slice], what: str
) -> Sequence[slice]:
    slices = []
    for part in text.split(","):
        found = pattern.fullmatch(part.strip())
        if found is None:
            raise argparse.ArgumentTypeError(f"`{part}` is not {what}")
        each = read(found)
        if each.stop is not None and each.stop < each.start + (pattern is _SPAN):
            raise argparse.ArgumentTypeError(f"the range `{part}` ends before it starts")
        slices.append(each)
    return slices
