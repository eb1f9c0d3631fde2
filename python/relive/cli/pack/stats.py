"""`relive pack stats`: what the entries of a pack amount to."""

import argparse
from collections.abc import Mapping
from typing import Final

from relive.cli.arguments import add_json, add_pack, pack_path
from relive.cli.command import Command, Exit
from relive.cli.output import print_json, print_pairs, shown, size_text
from relive.store.pack import PackReader, PackStats


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_pack(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Print the numbers."""
    with PackReader.open(pack_path(arguments)) as reader:
        print_stats(reader.stats, as_json=arguments.json)
    return Exit.OK


def print_stats(stats: PackStats, *, as_json: bool) -> None:
    """Print the numbers of a pack."""
    if as_json:
        print_json(stats.as_dict())
        return
    runs = sum(stats.highest_tile_hist.values())
    pairs: list[tuple[str, object]] = [
        ("entries", stats.count),
        ("kinds", _counts(stats.kind_counts)),
        ("payload", size_text(stats.payload_bytes)),
        ("stored", size_text(stats.stored_bytes)),
        ("padding", size_text(stats.padding_bytes)),
        ("runs", runs),
    ]
    if runs:
        pairs += [
            ("steps", stats.total_steps),
            ("steps per run", f"{stats.min_len} to {stats.max_len}, mean {stats.mean_len:.1f}"),
            ("quantiles", f"50 % {stats.p50_len}, 90 % {stats.p90_len}, 99 % {stats.p99_len}"),
            ("highest tile", _counts(stats.highest_tile_hist)),
            ("engine", _counts(stats.engine_counts)),
        ]
    print_pairs(pairs)


def _counts(counts: Mapping[str, int] | Mapping[int, int]) -> str:
    return ", ".join(f"{shown(str(key))}: {count}" for key, count in counts.items()) or "-"


COMMAND: Final = Command(
    "stats",
    "print how many runs and steps a pack has, and how long they are",
    "relive pack stats runs.a2pack",
    add_arguments,
    run,
)
