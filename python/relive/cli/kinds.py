"""What `relive info`, `head`, `stats` and `validate` do for each kind that relive can open."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from relive._open import open_kind
from relive.cli import source
from relive.cli.arguments import add_errors, report_damaged
from relive.cli.command import Exit
from relive.cli.episodes import summary as episodes
from relive.cli.pack import entries
from relive.cli.pack import stats as pack_stats
from relive.cli.publish import summary as published
from relive.cli.publish.arguments import add_root, add_table
from relive.cli.records import head as records_head
from relive.cli.replay import summary as replay
from relive.cli.source import Facts
from relive.model.dataset import ConcatDataset
from relive.model.kinds import Kind
from relive.model.report import Report
from relive.store.pack import validate as validate_pack
from relive.store.records import validate as validate_records


def _files(path: str) -> Sequence[Path]:
    return [Path(path)]


def _no_files(_: str) -> Sequence[Path]:
    return []


@dataclass(frozen=True, slots=True)
class KindCommands:
    """The functions of one kind; the defaults are those of any `Source`."""

    describe: Callable[[Any], Facts] = source.describe
    print_head: Callable[..., Exit] = source.print_head
    print_stats: Callable[..., None] = source.print_stats
    validate: Callable[..., Report] = source.validate
    paths: Callable[[str], Sequence[Path]] = _files
    """Returns the files or directories that belong to a path."""


_PACK: Final = KindCommands(
    print_head=entries.print_head, print_stats=pack_stats.print_stats, validate=validate_pack
)
_RECORDS: Final = KindCommands(print_head=records_head.print_head, validate=validate_records)
_EPISODES: Final = KindCommands(
    episodes.describe, episodes.print_head, episodes.print_stats, episodes.validate
)
_SIGNAL: Final = KindCommands(
    episodes.describe,
    episodes.print_head,
    episodes.print_stats,
    episodes.validate,
    episodes.signal_paths,
)
_RUN: Final = KindCommands(replay.describe, replay.print_head, replay.print_stats, replay.validate)
_RUNS: Final = KindCommands(
    replay.describe, replay.print_head, replay.print_stats, replay.validate, replay.root_paths
)
_PUBLISHED: Final = KindCommands(
    published.describe,
    published.print_head,
    published.print_stats,
    published.validate,
    _no_files,
)
_KINDS: Final[Mapping[str, KindCommands]] = {
    "pack": _PACK,
    "records": _RECORDS,
    "signal": _SIGNAL,
    "episode": _EPISODES,
    "dataset": _EPISODES,
    "run": _RUN,
    "runs": _RUNS,
    "published": _PUBLISHED,
}
_SKIPPING: Final = frozenset({"dataset", "runs"})
"""The kinds whose readers leave out what cannot be read."""


def add_skip(parser: argparse.ArgumentParser) -> None:
    """Add what to do with episodes of a dataset, or runs of a directory, that cannot be read."""
    add_errors(parser, "an episode of a dataset, or a run of a directory, that cannot be read")


def add_published(parser: argparse.ArgumentParser, *, table: bool = False) -> None:
    """Add the root of published datasets, and with `table` which of their tables is meant."""
    add_root(parser)
    if table:
        add_table(parser)


def published_options(arguments: argparse.Namespace, kind: Kind, *names: str) -> dict[str, Any]:
    """Return the options of these names that were given; those of other kinds are wrong usage."""
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if given and not kind.reference:
        listed = " and ".join(f"--{name}" for name in given)
        arguments.parser.error(f"only published datasets have {listed}")
    return given


def open_found(arguments: argparse.Namespace, kind: Kind, paths: Sequence[str]) -> Any:
    """Open what `find_kind` found; `--errors skip` leaves out what cannot be read."""
    options = published_options(arguments, kind, "root")
    if arguments.errors == "raise":
        return open_kind(kind, paths, **options)
    if kind.name not in _SKIPPING:
        arguments.parser.error(
            "--errors skip applies only to datasets of episodes and to directories of runs"
        )
    return open_kind(kind, paths, errors=arguments.errors)


def report_skipped(found: Any) -> Exit:
    """Print the episodes or runs that were left out, and return the exit status."""
    datasets = found.datasets if isinstance(found, ConcatDataset) else (found,)
    return report_damaged(each for one in datasets for each in getattr(one, "damaged", ()))


def commands_of(kind: Kind) -> KindCommands:
    """Return the functions of a kind."""
    return _KINDS.get(kind.name, KindCommands())
