"""Arguments of the commands about episodes: which episode of which dataset, and which time."""

import argparse
import json
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relive.cli.arguments import add_errors, report_damaged
from relive.cli.command import Exit
from relive.errors import InvalidError, UnknownNameError

if TYPE_CHECKING:
    from relive.episodes import LocalDataset
    from relive.model.dataset import Dataset
    from relive.model.episode import Episode

TIME_HELP: Final = "nanoseconds, or +1.5s after the first record (ns, us, ms, s, m, h)"

_PREFIX: Final = 4
"""A uid may be shortened to this many characters, if no other begins with them."""
_DIGITS: Final = 12
_FROM_THE_END: Final = re.compile(r"-0*[1-9]\d{0,11}")
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_RELATIVE: Final = re.compile(r"\+(\d{1,15}(?:\.\d{1,15})?)([a-zµ]{1,2})")
_ABSOLUTE: Final = re.compile(r"-?\d{1,19}")


def add_episode(parser: argparse.ArgumentParser) -> None:
    """Add the episode to read."""
    parser.add_argument(
        "path", metavar="PATH", help="the directory of an episode, or the root of a dataset"
    )
    add_which(parser, nargs="?")
    add_raw(parser)
    add_skip(parser)


def add_which(parser: argparse.ArgumentParser, **options: Any) -> None:
    """Add the argument that selects an episode of a dataset."""
    parser.add_argument(
        "which",
        metavar="WHICH",
        help="an episode of the root: its uid, the beginning of its uid, or its number; -1 is the "
        "last one",
        **options,
    )


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the root of a dataset."""
    parser.add_argument("root", metavar="ROOT", help="the root of a dataset")


def add_raw(parser: argparse.ArgumentParser) -> None:
    """Add the choice to ignore edits."""
    parser.add_argument(
        "--raw", action="store_true", help="episodes as they were recorded, without edits"
    )


def add_skip(parser: argparse.ArgumentParser) -> None:
    """Add what to do with episodes of a dataset that cannot be read."""
    add_errors(parser, "an episode that cannot be read")


def find_episode(arguments: argparse.Namespace) -> "tuple[Episode, Exit]":
    """Open the episode that was named, with its edits unless `--raw` is given.

    The exit status is that of episodes of its dataset that were left out.
    """
    from relive.episodes import DiskEpisode
    from relive.episodes.layout import is_root

    path = Path(arguments.path)
    if arguments.which is None:
        if is_root(path):
            raise InvalidError(
                f"`{path}` is the root directory of a dataset, expected an episode",
                hint=f"add the uid or number of an episode; `relive episodes ls {path}` lists them",
            )
        return DiskEpisode(path), Exit.OK
    dataset = open_root(path, raw=arguments.raw, errors=arguments.errors)
    found = dataset.by_uid(find_uid(dataset, arguments.which))
    return found, report_damaged(dataset.damaged)


def open_root(path: Path, *, raw: bool = False, errors: str = "raise") -> "LocalDataset":
    """Open the dataset with a root."""
    from relive.episodes import LocalDataset
    from relive.episodes.layout import is_episode

    if is_episode(path):
        raise InvalidError(
            f"`{path}` is the directory of an episode, expected the directory of a dataset",
            hint=f"the dataset of the episode is {path.absolute().parent.parent}",
        )
    return LocalDataset(path, edits=not raw, errors=errors)


def find_uid(dataset: "LocalDataset", which: str, others: Sequence[str] = ()) -> str:
    """Return the uid of an episode named by `which`; `others` are further uids to search."""
    uids = list(dict.fromkeys([*dataset.uids, *others]))
    if which in uids:
        return which
    if _FROM_THE_END.fullmatch(which) and int(which) >= -len(dataset):
        return dataset.uids[int(which)]
    found = []
    if which.isdecimal() and len(which) <= _DIGITS:
        found = [uid for uid in dataset.uids if number_of(dataset.by_uid(uid)) == int(which)]
    if not found and len(which) >= _PREFIX:
        found = [uid for uid in uids if uid.startswith(which)]
    if not found:
        raise UnknownNameError(
            f"no episode in `{dataset.path}` has the uid or number {which!r}",
            hint=f"`relive episodes ls {dataset.path}` lists them",
        )
    if len(found) > 1:
        raise InvalidError(
            f"{which!r} matches {len(found)} episodes", hint=f"use one of {', '.join(found)}"
        )
    return found[0]


def number_of(episode: "Episode") -> int | None:
    """Return the number of an episode in its root."""
    path = path_of(episode)
    return int(path.name) if path is not None and path.name.isdecimal() else None


def path_of(episode: Any) -> Path | None:
    """Return the directory of an episode."""
    path = getattr(getattr(episode, "recorded", episode), "path", None)
    return None if path is None else Path(path)


def chosen_episodes(
    dataset: "LocalDataset", uids: Sequence[str] | None, where: Sequence[tuple[str, Any]]
) -> "Dataset":
    """Return the episodes that were named and have all of the statics; all by default."""
    found: Dataset = dataset
    if uids is not None:
        positions = {uid: position for position, uid in enumerate(dataset.uids)}
        wanted = dict.fromkeys(find_uid(dataset, uid) for uid in uids)
        found = dataset.select([positions[uid] for uid in wanted])
    if where:
        found = found.filter(
            lambda episode: all(
                name in episode.statics and episode.statics[name] == value for name, value in where
            )
        )
    return found


def parse_static(text: str) -> tuple[str, Any]:
    """Parse a static and its value, as in `success=true`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"`{text}` is not of the form NAME=JSON")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"`{value}` is not valid JSON: put text in quotes, as in 'task=\"pick\"'"
        ) from None


class Moment(NamedTuple):
    """A time from the command line; a `relative` one counts from the first record."""

    nanoseconds: int
    relative: bool

    def in_episode(self, episode: "Episode") -> int:
        """Return the timestamp in an episode."""
        if not self.relative:
            return self.nanoseconds
        if not any(len(signal) for signal in episode.signals.values()):
            raise InvalidError(
                f"cannot use a time relative to the first record: the episode {episode.uid!r} has "
                "no records"
            )
        return episode.first_ts + self.nanoseconds


def parse_time(text: str) -> Moment:
    """Parse a time, as in `1760000000000000000` or `+1.5s`."""
    if _ABSOLUTE.fullmatch(text):
        return Moment(int(text), relative=False)
    found = _RELATIVE.fullmatch(text)
    if found is None or found[2] not in _UNITS:
        # A relative time without its plus sign is the likely mistake.
        meant = _RELATIVE.fullmatch(f"+{text}") or _RELATIVE.fullmatch(f"+{text}s")
        example = meant[0] if meant is not None and meant[2] in _UNITS else "+1.5s"
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a valid time: use nanoseconds, or {example} "
            "for a time relative to the first record"
        )
    return Moment(round(Fraction(found[1]) * _UNITS[found[2]]), relative=True)


def parse_end(text: str) -> Moment | None:
    """Parse a time, or `-` for an open end."""
    return None if text == "-" else parse_time(text)
