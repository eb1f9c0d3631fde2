"""Entries of a pack as lines of a table."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from relive.cli.command import Exit
from relive.cli.output import print_table, shown
from relive.errors import CorruptError
from relive.store.codec import NAMES
from relive.store.pack import PackReader
from relive.store.runs import Run

RUNS: Final = frozenset({"v1", "v2"})
"""The kinds that are runs."""

_CODEC_BITS: Final = 15
_COLUMNS: Final = ("steps", "highest_tile", "max_score", "engine")


class Stored(NamedTuple):
    """How an entry lies in its file."""

    path: str
    codec: str
    offset: int
    stored_bytes: int
    payload_bytes: int
    crc: str


def stored(reader: PackReader, index: int) -> Stored:
    """Tell how an entry is stored, without reading it."""
    numbers, rows = reader[[index]].locate_all()
    file = reader.files[int(numbers[0])]
    offset, length, _, flags, crc, payload = file.native.entry(int(rows[0]))
    return Stored(file.uri, codec_of(flags), offset, length, payload, f"{crc:08x}")


def codec_of(flags: int) -> str:
    """Name the codec that the flags of an entry tell."""
    return NAMES[flags & _CODEC_BITS]


def entry_line(reader: PackReader, index: int) -> dict[str, Any]:
    """Tell about an entry in one line; runs are decoded for it, and damage is told in it."""
    kind = reader.kind(index)
    line: dict[str, Any] = {
        "entry": index,
        "kind": kind,
        "name": reader.name(index),
        "bytes": stored(reader, index).payload_bytes,
        **dict.fromkeys(_COLUMNS),
        "problem": None,
    }
    try:
        run = reader.decode(index) if kind in RUNS else None
        reader.payload(index)
    except CorruptError as error:
        line["problem"] = error.message
    else:
        meta = asdict(run.meta) if isinstance(run, Run) else {}
        line |= {name: meta.get(name) for name in _COLUMNS}
    return line


def print_entries(lines: Sequence[dict[str, Any]]) -> None:
    """Print entries below each other, without columns in which there is nothing."""
    names = [name for name in lines[0] if any(line[name] is not None for line in lines)]
    print_table(names, [[_shown(line[name]) for name in names] for line in lines])


def status_of(lines: Sequence[dict[str, Any]]) -> Exit:
    """Give the exit status of having shown these entries."""
    return Exit.FAILED if any(line["problem"] for line in lines) else Exit.OK


def _shown(value: object) -> object:
    return shown(value) if isinstance(value, str) else value
