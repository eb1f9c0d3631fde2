"""Any `Source` on the command line: what it holds, its first rows, its statistics."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from relive._open import open  # noqa: A004 - its public name
from relive.cli.command import Exit
from relive.cli.output import print_json, print_lines, print_pairs, print_table
from relive.cli.progress import Progress
from relive.errors import ReliveError
from relive.model.ragged import Ragged
from relive.model.report import Problem, Report
from relive.model.report import Progress as Callback
from relive.model.schema import Field
from relive.model.source import Source

_SAMPLE: Final = 1000
_AT_ONCE: Final = 256

Facts = tuple[dict[str, Any], list[tuple[str, object]]]
"""What `relive info` prints: for a program, and for people."""


def describe(source: Source) -> Facts:
    """Return how many rows there are, and their fields."""
    fields = {name: field_facts(field) for name, field in source.fields.items()}
    pairs = [(f"field {name}", _field_text(field)) for name, field in source.fields.items()]
    return {"rows": len(source), "fields": fields}, [("rows", len(source)), *pairs]


def print_head(source: Source, count: int, *, as_json: bool) -> Exit:
    """Print the first rows."""
    rows = source.__getitems__(range(min(count, len(source))))
    print_lines([{"row": i} | row for i, row in enumerate(rows)], "no rows", as_json=as_json)
    return Exit.OK


def print_stats(source: Source, *, as_json: bool) -> None:
    """Print how many rows there are, and the range and mean of the numeric fields."""
    fields = summaries(source)
    if as_json:
        print_json({"rows": len(source), "fields": fields})
        return
    print_pairs([("rows", len(source))])
    if fields:
        lines = [{"field": name} | each for name, each in fields.items()]
        print_table(tuple(lines[0]), [tuple(line.values()) for line in lines])


def validate(path: str, level: str, *, progress: Callback) -> Report:
    """Open a source and read no rows, some rows spread over all of it, or all rows.

    Sources without a `validate` of their own have no checksums.
    """
    try:
        source: Source = open(path)
        wanted = {"index": 0, "sample": min(_SAMPLE, len(source)), "full": len(source)}[level]
        rows = np.linspace(0, len(source) - 1, wanted).astype(np.int64)
        for start in range(0, wanted, _AT_ONCE):
            source.gather(rows[start : start + _AT_ONCE])
            progress(start, wanted)
    except ReliveError as error:
        return Report(level, {"rows": 0}, (Problem(path, error.kind, error.message),))
    return Report(level, {"rows": wanted}, unchecked=(path,))


def field_facts(field: Field) -> dict[str, Any]:
    """Return the properties of a field as JSON values."""
    return {
        "dtype": str(field.dtype),
        "shape": list(field.shape),
        "ragged": int(field.ragged),
        "codec": field.codec,
        "level": field.level,
    }


def summaries(source: Source) -> dict[str, dict[str, float | None]]:
    """Return the number of items, the least, the greatest and the mean of each numeric field."""
    numbers = [
        name
        for name, field in source.fields.items()
        if isinstance(field.dtype, np.dtype) and field.dtype.kind in "biuf"
    ]
    found: dict[str, dict[str, Any]] = {
        name: {"items": 0, "min": None, "max": None, "mean": None} for name in numbers
    }
    sums = dict.fromkeys(numbers, 0.0)
    for name, values in _values(source, numbers):
        if not values.size:
            continue
        each, low, high = found[name], values.min().item(), values.max().item()
        first = each["items"] == 0
        sums[name] += float(values.sum(dtype=np.float64))
        each["items"] += values.size
        each["min"] = low if first else min(each["min"], low)
        each["max"] = high if first else max(each["max"], high)
        each["mean"] = sums[name] / each["items"]
    return found


def _values(source: Source, names: list[str]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    with Progress("reading", len(source)) as progress:
        for start in range(0, len(source) if names else 0, _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, len(source)))
            for name, values in source.gather(rows, names).items():
                yield name, values.values if isinstance(values, Ragged) else values
            progress(start)


def _field_text(field: Field) -> str:
    shape = f" {field.shape}" if field.shape else ""
    ragged = f" ragged{f' {field.ragged}' if field.ragged > 1 else ''}" if field.ragged else ""
    codec = f" {field.codec}" if field.codec != "raw" else ""
    return f"{field.dtype}{shape}{ragged}{codec}"
