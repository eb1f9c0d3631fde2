"""Which episode is meant: a directory of its own, or one in a root by its uid or number."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relive.errors import InvalidError, UnknownNameError

if TYPE_CHECKING:
    from relive.episodes.read.local_dataset import LocalDataset
    from relive.model.dataset import Dataset
    from relive.model.episode import Episode

_PREFIX: Final = 4
"""So many letters of a uid are enough, if no other begins with them."""
_DIGITS: Final = 12
_FROM_THE_END: Final = re.compile(r"-0*[1-9]\d{0,11}")


def add_episode(parser: argparse.ArgumentParser) -> None:
    """Add the episode to look at."""
    parser.add_argument(
        "path", metavar="PATH", help="the directory of an episode, or the root of a dataset"
    )
    parser.add_argument(
        "which",
        metavar="WHICH",
        nargs="?",
        help="which episode of the root: its uid, the beginning of it, or its number; -1 is the "
        "last one",
    )
    add_raw(parser)


def add_raw(parser: argparse.ArgumentParser) -> None:
    """Add the choice to see episodes as they were recorded."""
    parser.add_argument(
        "--raw", action="store_true", help="as recorded: without the edits that were made since"
    )


def find_episode(arguments: argparse.Namespace) -> "Episode":
    """Open the episode that was named, as edits left it unless the raw one is asked for."""
    from relive.episodes.layout import is_root
    from relive.episodes.read.episode import DiskEpisode

    path = Path(arguments.path)
    if arguments.which is None:
        if is_root(path):
            raise InvalidError(
                f"`{path}` holds many episodes, and one is meant",
                hint=f"name it by its uid or number; `relive episodes ls {path}` lists them",
            )
        return DiskEpisode(path)
    dataset = open_root(path, raw=arguments.raw)
    return dataset.by_uid(find_uid(dataset, arguments.which))


def open_root(path: Path, *, raw: bool = False) -> "LocalDataset":
    """Open the dataset in a directory."""
    from relive.episodes.layout import is_episode
    from relive.episodes.read.local_dataset import LocalDataset

    if is_episode(path):
        raise InvalidError(
            f"`{path}` is one episode, and the root of a dataset is meant",
            hint=f"its root is {path.absolute().parent.parent}",
        )
    return LocalDataset(path, edits=not raw)


def find_uid(dataset: "LocalDataset", which: str, others: Sequence[str] = ()) -> str:
    """Give the uid of the episode that is meant; `others` are further uids it may be."""
    uids = list(dict.fromkeys([*dataset.uids, *others]))
    if which in uids:
        return which
    if _FROM_THE_END.fullmatch(which) and int(which) >= -len(dataset):
        return dataset.uids[int(which)]
    if which.isdecimal() and len(which) <= _DIGITS:
        found = [uid for uid in dataset.uids if number_of(dataset.by_uid(uid)) == int(which)]
    else:
        found = []
    if not found and len(which) >= _PREFIX:
        found = [uid for uid in uids if uid.startswith(which)]
    if not found:
        raise UnknownNameError(
            f"no episode in `{dataset.path}` has the uid or number {which!r}",
            hint=f"`relive episodes ls {dataset.path}` lists them",
        )
    if len(found) > 1:
        raise InvalidError(
            f"{which!r} may be any of {len(found)} episodes", hint=f"say which: {', '.join(found)}"
        )
    return found[0]


def number_of(episode: "Episode") -> int | None:
    """Give the number of an episode in its root."""
    path = path_of(episode)
    return int(path.name) if path is not None and path.name.isdecimal() else None


def path_of(episode: Any) -> Path | None:
    """Give where an episode was recorded."""
    recorded = getattr(episode, "recorded", episode)
    path = getattr(recorded, "path", None)
    return None if path is None else Path(path)


def chosen(
    dataset: "LocalDataset", uids: Sequence[str] | None, where: Sequence[tuple[str, Any]]
) -> "Dataset":
    """Give the episodes that were named, or that have all of the statics; all by default."""
    found: Dataset = dataset
    if uids is not None:
        wanted = {find_uid(dataset, uid): None for uid in uids}
        places = {uid: place for place, uid in enumerate(dataset.uids)}
        found = dataset.select([places[uid] for uid in wanted])
    if where:
        found = found.filter(
            lambda episode: all(
                name in episode.statics and episode.statics[name] == value for name, value in where
            )
        )
    return found
