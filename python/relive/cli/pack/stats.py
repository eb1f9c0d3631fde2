"""`relive pack stats`: statistics of the entries of a pack."""

import argparse
from collections.abc import Mapping
from typing import Final

from relive.cli.command import Exit
from relive.cli.output import print_json, print_pairs, size_text
from relive.cli.pack.arguments import add_pack, pack_path
from relive.store.pack import PackReader

SUMMARY: Final = "print how many runs and steps a pack has, and how long they are"
EXAMPLE: Final = "relive pack stats runs.a2pack"

add_arguments = add_pack


def run(arguments: argparse.Namespace) -> Exit:
    """Print the statistics."""
    with PackReader.open(pack_path(arguments)) as reader:
        print_stats(reader, as_json=arguments.json)
    return Exit.OK


def print_stats(reader: PackReader, *, as_json: bool) -> None:
    """Print the statistics of a pack."""
    stats = reader.stats
    if as_json:
        print_json(stats.as_dict())
        return
    runs = sum(stats.highest_tile_hist.values())
    pairs: list[tuple[str, object]] = [
        ("entries", stats.count),
        ("kinds", counts_text(stats.kind_counts)),
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
            ("highest tile", counts_text(stats.highest_tile_hist)),
            ("engine", counts_text(stats.engine_counts)),
        ]
    print_pairs(pairs)


def counts_text(counts: Mapping[str, int] | Mapping[int, int]) -> str:
    """Return counts as text: "v1: 1, v2: 2"."""
    return ", ".join(f"{key}: {count}" for key, count in counts.items()) or "-"
