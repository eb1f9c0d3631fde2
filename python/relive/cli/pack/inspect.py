"""`relive pack inspect`: the structure of a pack, or one of its entries."""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from relive.cli.command import Exit
from relive.cli.output import (
    count_text,
    print_json,
    print_line,
    print_pairs,
    print_table,
    size_text,
)
from relive.cli.pack.arguments import add_pack, pack_path
from relive.cli.pack.entries import (
    RUNS,
    codec_of,
    first_entries,
    print_entries,
    status_of,
    stored,
)
from relive.cli.pack.stats import counts_text
from relive.errors import OutOfRangeError
from relive.store.pack import PackReader
from relive.store.pack.files import PackFile
from relive.store.runs import Run

SUMMARY: Final = "print the structure of a pack, or one of its entries"
EXAMPLE: Final = "relive pack inspect runs.a2pack --index 17"

_FIRST: Final = 10
_BYTES: Final = 32
_FLAGS: Final = {0: "data CRC", 1: "sections"}
_SIDE: Final = 4
_GAP: Final = "     "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--index", metavar="N", type=int, help="print the entry at this position")
    which.add_argument("--name", metavar="NAME", help="print the entry with this name")


def run(arguments: argparse.Namespace) -> Exit:
    """Print the structure of the pack and its first entries, or one entry."""
    with PackReader.open(pack_path(arguments)) as reader:
        if arguments.index is None and arguments.name is None:
            return _print_pack(reader, as_json=arguments.json)
        index = reader.find(arguments.name) if arguments.index is None else arguments.index
        if not 0 <= index < len(reader):
            raise OutOfRangeError(
                f"entry {index} does not exist: there are only {count_text(len(reader), 'entry')}"
            )
        _print_entry(reader, index, as_json=arguments.json)
    return Exit.OK


def _print_pack(reader: PackReader, *, as_json: bool) -> Exit:
    files = [_describe(file) for file in reader.files]
    kinds = dict(sorted(Counter(map(reader.kind, range(len(reader)))).items()))
    lines = first_entries(reader, _FIRST)
    if as_json:
        print_json({"entries": len(reader), "kinds": kinds, "files": files, "first": lines})
        return status_of(lines)
    for file in files:
        print_pairs(
            [
                ("path", file["path"]),
                ("size", _size(file["file_bytes"])),
                ("entries", file["entries"]),
                ("flags", ", ".join(file["flags"]) or "-"),
                ("data ends at", file["data_end"]),
                ("stats at", file["stats_offset"] or "-"),
                ("codecs", counts_text(file["codecs"])),
            ]
        )
        if file["sections"]:
            print_line()
            sections = [tuple(each.values()) for each in file["sections"]]
            print_table(("section", "offset", "bytes"), sections)
        print_line()
    print_line(f"kinds  {counts_text(kinds)}")
    if lines:
        print_line()
        print_entries(lines)
    if len(reader) > len(lines):
        print_line(f"and {len(reader) - len(lines)} more")
    return status_of(lines)


def _size(size: int) -> str:
    text = size_text(size)
    return text if text.endswith("bytes") else f"{text} ({size} bytes)"


def _describe(file: PackFile) -> dict[str, Any]:
    native = file.native
    found = native.describe()
    return {
        "path": file.uri,
        "file_bytes": native.size,
        "entries": len(native),
        "flags": [name for bit, name in _FLAGS.items() if found["flags"] >> bit & 1],
        "data_end": found["data_end"],
        "stats_offset": found["stats_offset"],
        "codecs": Counter(codec_of(native.entry(i)[3]) for i in range(len(native))),
        "sections": [
            {"tag": tag, "offset": offset, "bytes": length}
            for tag, offset, length in found["sections"]
        ],
    }


def _print_entry(reader: PackReader, index: int, *, as_json: bool) -> None:
    kind = reader.kind(index)
    entry: dict[str, Any] = {"index": index, "name": reader.name(index), "kind": kind}
    entry |= stored(reader, index)._asdict()
    run = reader.decode(index) if kind in RUNS else None
    boards = {}
    if isinstance(run, Run):
        entry |= asdict(run.meta)
        boards = {"first": int(run.boards[0]), "final": run.final_board}
    else:
        entry["first_bytes"] = bytes(reader.payload(index)[:_BYTES]).hex(" ")
    if as_json:
        print_json(entry | {f"{title}_board": board for title, board in boards.items()})
        return
    print_pairs((name, None if value is None else str(value)) for name, value in entry.items())
    if boards:
        print_line()
        for line in _draw_boards(boards):
            print_line(line)


def _draw_boards(boards: Mapping[str, int]) -> Iterator[str]:
    """Return the lines of 2048 boards side by side, each below its title."""
    drawn = {title: _board_rows(board) for title, board in boards.items()}
    width = max(len(row) for rows in drawn.values() for row in rows)
    yield _GAP.join(title.ljust(width) for title in drawn).rstrip()
    for number in range(_SIDE):
        yield _GAP.join(rows[number].ljust(width) for rows in drawn.values()).rstrip()


def _board_rows(board: int) -> list[str]:
    exponents = [board >> shift & 15 for shift in range(60, -1, -4)]
    tiles = [str(1 << exponent) if exponent else "." for exponent in exponents]
    width = max(map(len, tiles))
    cells = [tile.rjust(width) for tile in tiles]
    return [" ".join(cells[first : first + _SIDE]) for first in range(0, len(cells), _SIDE)]
