"""Entries of a pack as rows of a table."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from relive.cli.command import Exit
from relive.cli.output import print_json, print_line, print_table
from relive.errors import CorruptError
from relive.store.codec import NAMES
from relive.store.pack import PackReader
from relive.store.pack.stats import COLUMNS
from relive.store.runs import Run

RUNS: Final = frozenset({"v1", "v2"})
"""The kinds that are runs."""

_CODEC_BITS: Final = 15


class Stored(NamedTuple):
    """How an entry is stored in its file."""

    path: str
    codec: str
    offset: int
    stored_bytes: int
    payload_bytes: int
    crc: str


def stored(reader: PackReader, index: int) -> Stored:
    """Return how an entry is stored, without reading it."""
    numbers, rows = reader[[index]].locate_all()
    file = reader.files[int(numbers[0])]
    offset, length, _, flags, crc, payload = file.native.entry(int(rows[0]))
    return Stored(file.uri, codec_of(flags), offset, length, payload, f"{crc:08x}")


def codec_of(flags: int) -> str:
    """Return the name of the codec in the flags of an entry."""
    return NAMES[flags & _CODEC_BITS]


def first_entries(reader: PackReader, count: int) -> list[dict[str, Any]]:
    """Describe the first entries; runs are decoded, and damage is reported as a `problem`."""
    return [_line(reader, index) for index in range(min(count, len(reader)))]


def print_head(reader: PackReader, count: int, *, as_json: bool) -> Exit:
    """Print the first entries; the exit status tells whether one is damaged."""
    lines = first_entries(reader, count)
    if as_json:
        print_json(lines)
    elif lines:
        print_entries(lines)
    else:
        print_line("no rows")
    return status_of(lines)


def print_entries(lines: Sequence[dict[str, Any]]) -> None:
    """Print entries as a table, without its empty columns."""
    names = [name for name in lines[0] if any(line[name] is not None for line in lines)]
    print_table(names, [[line[name] for name in names] for line in lines])


def status_of(lines: Sequence[dict[str, Any]]) -> Exit:
    """Return the exit status of a command that printed these entries."""
    return Exit.FAILED if any(line["problem"] for line in lines) else Exit.OK


def _line(reader: PackReader, index: int) -> dict[str, Any]:
    kind = reader.kind(index)
    line: dict[str, Any] = {
        "entry": index,
        "kind": kind,
        "name": reader.name(index),
        "bytes": stored(reader, index).payload_bytes,
        **dict.fromkeys(COLUMNS),
        "problem": None,
    }
    try:
        run = reader.decode(index) if kind in RUNS else None
        reader.payload(index)
    except CorruptError as error:
        line["problem"] = error.message
    else:
        meta = asdict(run.meta) if isinstance(run, Run) else {}
        line |= {name: meta.get(name) for name in COLUMNS}
    return line
