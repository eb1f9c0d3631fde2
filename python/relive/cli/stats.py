"""`relive stats`: what the rows of whatever can be opened amount to."""

import argparse
from typing import Any, Final

import numpy as np

from relive._open import open  # noqa: A004 - its public name
from relive.cli.arguments import add_json
from relive.cli.command import Command, Exit
from relive.cli.episodes import summary as episodes_any
from relive.cli.info import add_uri
from relive.cli.output import print_json, print_pairs, print_table, shown
from relive.cli.pack import stats as pack_stats
from relive.cli.progress import Progress
from relive.model.ragged import Ragged
from relive.model.source import Source
from relive.store.pack import PackReader

_AT_ONCE: Final = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_uri(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the numbers: of runs, episodes or signals, else those of every field of numbers."""
    source = open(arguments.path)
    if episodes_any.is_recorded(source):
        episodes_any.print_stats(source, as_json=arguments.json)
        return Exit.OK
    if isinstance(source, PackReader):
        pack_stats.print_stats(source.stats, as_json=arguments.json)
        return Exit.OK
    fields = summaries(source)
    if arguments.json:
        print_json({"rows": len(source), "fields": fields})
        return Exit.OK
    print_pairs([("rows", len(source))])
    if fields:
        names = ("field", "items", "min", "max", "mean")
        print_table(
            names,
            [[shown(name), *(each[key] for key in names[1:])] for name, each in fields.items()],
        )
    return Exit.OK


class _Summary:
    """Least, most and mean of numbers that come in pieces."""

    def __init__(self) -> None:
        self.items = 0
        self.sum = 0.0
        self.low: float | None = None
        self.high: float | None = None

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Take in more numbers."""
        if values.size == 0:
            return
        low, high = values.min().item(), values.max().item()
        self.items += values.size
        self.sum += float(values.sum(dtype=np.float64))
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


def summaries(source: Source) -> dict[str, dict[str, float | None]]:
    """Give how many items each field of numbers has, and their least, most and mean value."""
    numbers = [
        name
        for name, field in source.fields.items()
        if isinstance(field.dtype, np.dtype) and field.dtype.kind in "biuf"
    ]
    found = {name: _Summary() for name in numbers}
    with Progress("reading", len(source)) as progress:
        for start in range(0, len(source) if numbers else 0, _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, len(source)))
            for name, values in source.gather(rows, numbers).items():
                found[name].add(values.values if isinstance(values, Ragged) else values)
            progress(start)
    return {
        name: {
            "items": each.items,
            "min": each.low,
            "max": each.high,
            "mean": each.sum / each.items if each.items else None,
        }
        for name, each in found.items()
    }


COMMAND: Final = Command(
    "stats",
    "print how much there is: rows, their least, most and mean values, episodes, signals",
    "relive stats states.npy",
    add_arguments,
    run,
)
