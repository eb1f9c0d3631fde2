"""How results are printed: aligned text, or JSON."""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np

_FEW: Final = 12
"""Arrays with more items are printed as their dtype and shape."""


def note(message: str) -> None:
    """Print a line to stderr: a warning, a hint or an error, never part of a result."""
    print(_one_line(message, sys.stderr.encoding), file=sys.stderr, flush=True)


def print_line(line: str = "") -> None:
    """Print one line of a result."""
    print(_one_line(line, sys.stdout.encoding))


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print a result for a program; NaN and infinity become null."""
    print(json.dumps(plain(value, finite=True), indent=indent, allow_nan=False))


def print_result(value: object, line: str, *, as_json: bool) -> None:
    """Print a result that is one line of text, or `value` as JSON."""
    if as_json:
        print_json(value)
    else:
        print_line(line)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns."""
    listed = [(printable(name), _text(value)) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        print_line(f"{name:<{width}}  {value}")


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns with numbers are aligned to the right."""
    rows = [[v.item() if isinstance(v, np.generic) else v for v in row] for row in rows]
    texts = [list(map(printable, header)), *(list(map(_text, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    for line in texts:
        cells = zip(line, widths, right, strict=True)
        padded = [f"{text:>{width}}" if end else f"{text:<{width}}" for text, width, end in cells]
        print_line("  ".join(padded).rstrip())


def print_lines(lines: Sequence[Mapping[str, Any]], nothing: str, *, as_json: bool) -> None:
    """Print mappings of one set of keys as a table, or as a list of JSON objects."""
    if as_json:
        print_json(lines)
    elif lines:
        print_table(tuple(lines[0]), [tuple(line.values()) for line in lines])
    else:
        print_line(nothing)


def plain(value: Any, *, finite: bool = False) -> Any:  # noqa: PLR0911 - one for each type
    """Return a value with JSON types: arrays as lists, bytes as hexadecimal digits.

    With `finite`, NaN and infinity become None.
    """
    if isinstance(value, float):
        return None if finite and not math.isfinite(value) else float(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), finite=finite)
    if isinstance(value, bytes):
        return value.hex()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item, finite=finite) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, finite=finite) for item in value]
    return str(value)


def value_text(value: Any) -> str:
    """Return a value as text, with few digits; large arrays as their dtype and shape."""
    if isinstance(value, np.ndarray) and value.size > _FEW:
        return f"{value.dtype}{list(value.shape)}"
    return _text(plain(value))


def size_text(size: int) -> str:
    """Return a number of bytes in a readable unit."""
    if size < 1024:  # noqa: PLR2004 - below the first unit
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is one: "3 entries"."""
    return f"1 {noun}" if count == 1 else f"{count} {plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun: "entries"."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def printable(text: str) -> str:
    """Return text with control characters escaped, so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, np.ndarray):
        return value_text(value)
    return "-" if value is None else printable(str(value))


def _one_line(text: str, encoding: str | None) -> str:
    # A terminal may be limited to ASCII.
    encoding = encoding or "utf-8"
    line = printable(" ".join(text.splitlines()))
    return line.encode(encoding, "backslashreplace").decode(encoding)
