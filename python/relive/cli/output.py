"""How results look: aligned text, or JSON."""

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def say(message: str) -> None:
    """Tell the person at the terminal; never part of a result."""
    print(_encodable(message, sys.stderr.encoding), file=sys.stderr, flush=True)


def print_line(line: str) -> None:
    """Print one line of a result, whatever it is made of."""
    print(_encodable(" ".join(line.splitlines()), sys.stdout.encoding))


def print_json(value: object) -> None:
    """Print a result for a program; numbers that JSON has no word for become null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False))


def print_json_line(value: object) -> None:
    """Print one of many results for a program, on a line of its own."""
    print(json.dumps(_plain(value), allow_nan=False))


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print what each thing is, the values below each other."""
    listed = list(pairs)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        print_line(f"{name:<{width}}  {value}")


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below each other; numbers end where their column ends."""
    rows = [list(row) for row in rows]
    texts = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = [
        any(isinstance(row[column], int | float) for row in rows) for column in range(len(header))
    ]
    for line in texts:
        cells = zip(line, widths, right, strict=True)
        padded = [f"{text:>{width}}" if end else f"{text:<{width}}" for text, width, end in cells]
        print_line("  ".join(padded).rstrip())


def size_text(size: int) -> str:
    """Give a number of bytes in a unit that people read."""
    if size < 1024:  # noqa: PLR2004 - below the first unit
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Give a number of things in words."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def shown(text: str) -> str:
    """Give text from a file as it may be printed: without anything that drives a terminal."""
    return text if text.isprintable() else repr(text)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)


def _encodable(text: str, encoding: str | None) -> str:
    # A file name may hold bytes that are no text, and a terminal may know ASCII only.
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return os.fspath(value) if isinstance(value, os.PathLike) else value
