"""`relive pack inspect`: what is in a pack, or in one entry of it."""

import argparse
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

from relive.cli.arguments import add_json, add_pack, pack_path
from relive.cli.command import Command, Exit
from relive.cli.output import print_json, print_line, print_pairs, print_table, shown, size_text
from relive.cli.pack.board import draw_boards
from relive.cli.pack.entries import RUNS, codec_of, entry_line, print_entries, status_of, stored
from relive.errors import OutOfRangeError
from relive.store.pack import PackReader
from relive.store.pack.files import PackFile
from relive.store.runs import Run

_FIRST: Final = 10
_BYTES: Final = 32
_FLAGS: Final = {0: "data CRC", 1: "sections"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--index", metavar="N", type=int, help="look into the entry at this position"
    )
    which.add_argument("--name", metavar="NAME", help="look into the entry of this name")
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print what is there."""
    with PackReader.open(pack_path(arguments)) as reader:
        if arguments.index is None and arguments.name is None:
            return _print_pack(reader, as_json=arguments.json)
        index = reader.find(arguments.name) if arguments.index is None else arguments.index
        if not 0 <= index < len(reader):
            raise OutOfRangeError(f"there is no entry {index}: the pack has {len(reader)}")
        _print_entry(reader, index, as_json=arguments.json)
    return Exit.OK


def _print_pack(reader: PackReader, *, as_json: bool) -> Exit:
    files = [_describe(file) for file in reader.files]
    kinds = dict(sorted(Counter(map(reader.kind, range(len(reader)))).items()))
    lines = [entry_line(reader, i) for i in range(min(_FIRST, len(reader)))]
    if as_json:
        print_json({"entries": len(reader), "kinds": kinds, "files": files, "first": lines})
        return status_of(lines)
    for file in files:
        print_pairs(
            [
                ("path", shown(file["path"])),
                ("size", _size(file["file_bytes"])),
                ("entries", file["entries"]),
                ("flags", ", ".join(file["flags"]) or "-"),
                ("data ends at", file["data_end"]),
                ("stats at", file["stats_offset"] or "-"),
                ("codecs", ", ".join(f"{n}: {c}" for n, c in file["codecs"].items()) or "-"),
            ]
        )
        if file["sections"]:
            print_line("")
            print_table(
                ("section", "offset", "bytes"), [tuple(each.values()) for each in file["sections"]]
            )
        print_line("")
    print_line(f"kinds  {', '.join(f'{shown(k)}: {n}' for k, n in kinds.items()) or '-'}")
    if lines:
        print_line("")
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
    codecs = Counter(codec_of(native.entry(i)[3]) for i in range(len(native)))
    return {
        "path": file.uri,
        "file_bytes": native.size,
        "entries": len(native),
        "flags": [name for bit, name in _FLAGS.items() if found["flags"] >> bit & 1],
        "data_end": found["data_end"],
        "stats_offset": found["stats_offset"],
        "codecs": codecs,
        "sections": [
            {"tag": tag, "offset": offset, "bytes": length}
            for tag, offset, length in found["sections"]
        ],
    }


def _print_entry(reader: PackReader, index: int, *, as_json: bool) -> None:
    entry: dict[str, Any] = {
        "index": index,
        "name": reader.name(index),
        "kind": reader.kind(index),
        **stored(reader, index)._asdict(),
    }
    run = reader.decode(index) if entry["kind"] in RUNS else None
    if isinstance(run, Run):
        entry |= asdict(run.meta)
        entry |= {"first_board": int(run.boards[0]), "final_board": run.final_board}
    else:
        entry["first_bytes"] = bytes(reader.payload(index)[:_BYTES]).hex(" ")
    if as_json:
        print_json(entry)
        return
    print_pairs(
        (name, "-" if value is None else shown(str(value)))
        for name, value in entry.items()
        if name not in {"first_board", "final_board"}
    )
    if isinstance(run, Run):
        print_line("")
        for line in draw_boards({"first": int(run.boards[0]), "final": run.final_board}):
            print_line(line)


COMMAND: Final = Command(
    "inspect",
    "print what is in a pack, or in one entry of it",
    "relive pack inspect runs.a2pack --index 17",
    add_arguments,
    run,
)
